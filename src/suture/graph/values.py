"""Symbolic values: what stands for a result while a graph is made.

A value is called, indexed and computed with like the tensor that it stands for; everything that is done to it becomes
a call of the graph.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils import _pytree as pytree

from suture.layers.symbolic import Symbolic

if TYPE_CHECKING:
    from suture.graph.calls import Call, Scope


def _binary(name: str) -> Callable[[Value, Any], Any]:
    function: Callable[..., Any] = getattr(operator, name)
    return lambda self, other: self.call(function, (self, other), {})


def _reflected(name: str) -> Callable[[Value, Any], Any]:
    function: Callable[..., Any] = getattr(operator, name)
    return lambda self, other: self.call(function, (other, self), {})


def _unary(name: str) -> Callable[[Value], Any]:
    function: Callable[..., Any] = getattr(operator, name)
    return lambda self: self.call(function, (self,), {})


class Value(Symbolic):
    """The result of a call in a graph.

    >>> import torch
    >>> from suture.graph.input import Input
    >>> x = Input("x", shape=(None, 4))
    >>> y = torch.relu(x) * 2
    >>> y.origin.target.__name__, tuple(y.example.shape)
    ('mul', (2, 4))
    """

    def __init__(
        self,
        example: Any,
        origin: Call | None = None,
        alias_of: Value | None = None,
        scope: Scope | None = None,
    ) -> None:
        self.example = example
        """A fake tensor like what it stands for; where it stands for something else, that."""
        self.origin = origin
        """The call that made it."""
        self.alias_of = alias_of
        """The value that this is, under a name of its own: an argument seen inside a scope, a result seen outside."""
        self.scope = scope
        """The scope that it is an argument or a result of."""

    def call(self, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        from suture.graph.recording import record  # what is recorded are values

        return record(target, args, kwargs)

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        from suture.graph.recording import record

        return record(function, args, kwargs or {})

    # Tensors are computed with through these.

    @property
    def shape(self) -> tuple[Any, ...]:
        """The sizes, as values: none of them becomes a constant of the graph."""
        return tuple(self.size(number) for number in range(self.dim()))

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.call(Tensor.size, (self, dim), {})

    def dim(self) -> int:
        """The number of dimensions, which a graph fixes."""
        return self._tensor("dim").dim()

    @property
    def ndim(self) -> int:
        return self.dim()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(Tensor, name):
            raise AttributeError(
                f"A symbolic value has no {name!r}: it has what tensors have. It stands for {describe(self)}."
            )
        self._tensor(name)
        if name.endswith("_"):
            self._refuse(f"changed in place by {name!r}; {name.rstrip('_')!r} gives a new one")
        attribute = getattr(Tensor, name)
        if not callable(attribute):
            return self.call(getattr, (self, name), {})

        def method(*args: Any, **kwargs: Any) -> Any:
            return self.call(cast("Callable[..., Any]", attribute), (self, *args), kwargs)

        return method

    def __getitem__(self, index: Any) -> Any:
        return self.call(operator.getitem, (self, index), {})

    def _tensor(self, wanted: str) -> Tensor:
        if isinstance(self.example, Tensor):
            return self.example
        raise AttributeError(
            f"{wanted!r} was asked of a symbolic value that stands for no tensor but for {describe(self)}. Give it to "
            f"a layer, which is called with what comes when the graph runs."
        )

    # What would fix a part of the graph by one value of it.

    def __bool__(self) -> NoReturn:
        self._refuse("asked for its truth, as in `if`, `and` or `while`")

    def __iter__(self) -> NoReturn:
        self._refuse("iterated; `value.unbind()` gives the parts of a tensor")

    def __len__(self) -> NoReturn:
        self._refuse("asked for its length; `value.shape[0]` is a symbolic value")

    def __index__(self) -> NoReturn:
        self._refuse("used as a whole number")

    def __int__(self) -> NoReturn:
        self._refuse("made a whole number")

    def __float__(self) -> NoReturn:
        self._refuse("made a number")

    def __contains__(self, item: object) -> NoReturn:
        self._refuse("searched")

    def _refuse(self, what: str) -> NoReturn:
        raise TypeError(
            f"A symbolic value was {what}. It stands for {describe(self)}, which is known only when the graph runs. "
            f"Put code that looks at values in a layer, such as sl.Lambda(function): a layer is one step of the graph."
        )

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        self._refuse("changed in place; `torch.where` and `value.index_put(...)` give a new one")

    # Arithmetic and comparisons

    __add__, __radd__ = _binary("add"), _reflected("add")
    __sub__, __rsub__ = _binary("sub"), _reflected("sub")
    __mul__, __rmul__ = _binary("mul"), _reflected("mul")
    __truediv__, __rtruediv__ = _binary("truediv"), _reflected("truediv")
    __floordiv__, __rfloordiv__ = _binary("floordiv"), _reflected("floordiv")
    __mod__, __rmod__ = _binary("mod"), _reflected("mod")
    __pow__, __rpow__ = _binary("pow"), _reflected("pow")
    __matmul__, __rmatmul__ = _binary("matmul"), _reflected("matmul")
    __and__, __rand__ = _binary("and_"), _reflected("and_")
    __or__, __ror__ = _binary("or_"), _reflected("or_")
    __xor__, __rxor__ = _binary("xor"), _reflected("xor")
    __lt__, __le__ = _binary("lt"), _binary("le")
    __gt__, __ge__ = _binary("gt"), _binary("ge")
    # As for tensors, element by element; symbolic values are told apart by identity.
    __eq__, __ne__ = _binary("eq"), _binary("ne")
    __neg__, __pos__, __invert__ = _unary("neg"), _unary("pos"), _unary("invert")
    __abs__ = _unary("abs")
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"Value({describe(self)})"


def describe(value: object) -> str:
    """What a value stands for, in words."""
    example = value.example if isinstance(value, Value) else value
    if isinstance(example, Tensor):
        dtype = str(example.dtype).removeprefix("torch.")
        return f"a {tuple(example.shape)} tensor of {dtype}"
    return (
        "nothing: it is an input that was left out" if example is None else f"{type(example).__name__} {example!r:.40}"
    )


def values_in(structure: Any) -> list[Value]:
    """The symbolic values in nested tuples, lists and dictionaries, in order."""
    found: list[Value] = []
    map_values(found.append, structure)
    return found


_NO_STRUCTURES = frozenset((NoneType, int, float, bool, str, Tensor, Parameter, torch.dtype))


def map_values(function: Callable[[Value], Any], structure: Any) -> Any:
    """The structure with the result of `function` for every symbolic value; slices are looked into as well."""
    # No function that knows itself: what it holds would live until the garbage is collected.
    if isinstance(structure, Value):
        return function(structure)
    kind: Any = type(cast("object", structure))
    if kind is tuple or kind is list:
        each: list[Any] = [map_values(function, part) for part in structure]
        return each if kind is list else tuple(each)
    if kind is dict:
        return {key: map_values(function, each) for key, each in structure.items()}
    if kind is slice:
        return slice(*map_values(function, bounds_of(structure)))
    if kind in _NO_STRUCTURES or pytree.tree_is_leaf(structure):
        return structure
    return pytree.tree_map(partial(map_values, function), structure)


def bounds_of(index: Any) -> tuple[Any, Any, Any]:
    """The start, the stop and the step of a slice."""
    return index.start, index.stop, index.step


def alias(structure: Any, scope: Scope) -> Any:
    """The structure with a name of its own, at the border of `scope`, for every value in it."""
    return map_values(lambda value: Value(value.example, alias_of=value, scope=scope), structure)


def examples_of(structure: Any) -> Any:
    """The structure with the example of every symbolic value."""
    return map_values(lambda value: value.example, structure)


def as_parts(value: Value) -> Any:
    """A value that stands for a tuple, list or dictionary as a structure of values; any other as it is."""
    # A part that is a structure itself comes as one.
    example = value.example
    if isinstance(example, tuple):
        parts = [value[number] for number in range(len(cast("tuple[Any, ...]", example)))]
        kind: Any = type(cast("object", example))
        if kind is tuple or kind is torch.Size:
            return tuple(parts)
        return kind(*parts) if hasattr(kind, "_fields") else kind(parts)
    if isinstance(example, list):
        return [value[number] for number in range(len(cast("list[Any]", example)))]
    if isinstance(example, dict):
        return {key: value[key] for key in cast("dict[Any, Any]", example)}
    return value
