"""Functions of a graph as data: by names, of which each stands for one known function and for nothing else."""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from suture.layers.functions import function_of, name_of

# What symbolic values record where they are computed with.
_OPERATORS = (
    *("abs", "neg", "pos", "invert", "getitem"),
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
    *("and_", "or_", "xor", "lt", "le", "gt", "ge", "eq", "ne"),
)
_MAKERS = ("new_empty", "new_full", "new_ones", "new_tensor", "new_zeros")
_BY_OPERATOR: dict[Callable[..., Any], str] = {getattr(operator, name): name for name in _OPERATORS}


def name_function(function: Callable[..., Any]) -> str | None:
    """The name of a function: of torch, of operator, or a registered one. None for any other.

    >>> name_function(torch.relu), name_function(operator.add), name_function(print)
    ('torch.relu', 'operator.add', None)
    """
    if function is getattr:
        return "getattr"
    if function in _BY_OPERATOR:
        return f"operator.{_BY_OPERATOR[function]}"
    if (name := name_of(function)) is not None:
        return f"registered.{name}"
    maker = f"torch.Tensor.{getattr(function, '__name__', '')}"
    name = torch.overrides.resolve_name(function) or maker
    return name if _torch_functions().get(name) is function else None


def named_function(name: str) -> Callable[..., Any] | None:
    """The function that has a name. No name is looked up anywhere but among those that `name_function` gives.

    >>> named_function("torch.relu") is torch.relu, named_function("torch.load"), named_function("os.system")
    (True, None, None)

    For `getattr`, see `is_attribute` before it is called.
    """
    kind, _, rest = name.partition(".")
    match kind:
        case "getattr" if not rest:
            return getattr
        case "operator":
            return getattr(operator, rest) if rest in _OPERATORS else None
        case "registered":
            return function_of(rest)
        case _:
            return _torch_functions().get(name)


def is_attribute(name: object) -> bool:
    """Whether a tensor has a value of this name, which a graph may ask for.

    >>> is_attribute("dtype"), is_attribute("__class__"), is_attribute("numpy")
    (True, False, False)
    """
    return isinstance(name, str) and not name.startswith("_") and not callable(getattr(Tensor, name, callable))


@functools.cache
def _torch_functions() -> dict[str, Callable[..., Any]]:
    """What torch lets others stand in for, and so what can be called with symbolic values; private names are not."""
    with warnings.catch_warnings(action="ignore"):
        known = cast("dict[Any, list[Callable[..., Any]]]", torch.overrides.get_overridable_functions())
        named = {torch.overrides.resolve_name(each): each for functions in known.values() for each in functions}
    # Makers of tensors like one that is given are methods, which nobody can stand in for.
    named |= {f"torch.Tensor.{name}": getattr(Tensor, name) for name in _MAKERS}
    return {name: function for name, function in named.items() if name and not name.rpartition(".")[2].startswith("_")}
