"""A layer as data: the name of its class, what it was made with, and the children of a composite.

Only registered classes have a description. Suture's own are registered; one of yours is by `@suture.register`. What a
layer was made with is remembered when it is made, and holds no other layer alive.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast, overload

import torch
from torch import Tensor, nn

from suture.layers.node import node_of

C = TypeVar("C", bound=type)

_UNKEPT = "it was made with a tensor whose values are not among its weights. Keep them in a buffer"

_classes: dict[str, type] = {}


@overload
def register(kind: C, /) -> C: ...
@overload
def register(kind: str, /) -> Callable[[C], C]: ...
def register(kind: Any, /) -> Any:
    """Lets a class of layers stand in recipes, under its own name or the one given: `@register("name")`.

    Its arguments must be plain data, tensors of which only the shape counts, or layers.

    Raises:
        ValueError: Another class has the name.

    Example:
        >>> @register("docs.Doubled")
        ... class Doubled(nn.Module):
        ...     def forward(self, x: Tensor) -> Tensor:
        ...         return 2 * x
        >>> describe(Doubled()).content
        {'class': 'docs.Doubled', 'arguments': {}}
    """
    if isinstance(kind, str):
        return functools.partial(_register, name=kind)
    return _register(kind, kind.__name__)


def register_own(value: Any) -> None:
    """Registers what is a class of layers, or of what they are made with."""
    if inspect.isclass(value) and (issubclass(value, nn.Module) or dataclasses.is_dataclass(value)):
        _register(value, value.__name__)


def class_of(name: str) -> type | None:
    """The class that is registered under a name."""
    return _classes.get(name)


def _register(kind: C, name: str) -> C:
    known = _classes.get(name, kind)
    if (known.__module__, known.__qualname__) != (kind.__module__, kind.__qualname__):
        raise ValueError(
            f"The name {name!r} is that of {known.__module__}.{known.__qualname__}. "
            f'Register {kind.__module__}.{kind.__qualname__} under another: @suture.register("another name").'
        )
    _classes[name] = kind
    if issubclass(kind, nn.Module):
        vars_of: Any = kind
        vars_of.__init__ = _remembering(kind, name)
    return kind


def _remembering(kind: type[nn.Module], name: str) -> Callable[..., None]:
    initialise = kind.__init__

    @functools.wraps(initialise)
    def remembering(self: nn.Module, *args: Any, **keywords: Any) -> None:
        initialise(self, *args, **keywords)
        if type(self) is kind:
            self.__dict__["_made"] = Made(name, self, args, keywords)

    return remembering


class Held:
    """A layer that is known and not kept alive."""

    def __init__(self, layer: nn.Module | None) -> None:
        self._reference = weakref.ref(layer) if layer is not None else None

    @property
    def layer(self) -> nn.Module | None:
        return self._reference() if self._reference is not None else None

    def __reduce__(self) -> tuple[type[Held], tuple[nn.Module | None]]:
        return Held, (self.layer,)


class Made:
    """What a layer of a registered class was made with."""

    def __init__(self, name: str, layer: nn.Module, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        self.name = name
        node = node_of(layer)
        self.is_generic = node is not None and _takes_any_children(type(layer))
        if self.is_generic:
            args, keywords = (), {key: value for key, value in keywords.items() if not isinstance(value, nn.Module)}
        self.args = tuple(_held(value, layer) for value in args)
        self.keywords = {key: _held(value, layer) for key, value in keywords.items()}
        given = dict(zip(signature_of(type(layer)).parameters, args, strict=False)) | self.keywords
        self.kept = {name: value for name, value in given.items() if _is_kept(layer, name, value)}
        """The numbers and words that the layer has as attributes of the same names."""
        if node is not None:
            # What its constructor did is done again by it.
            node.history, node.edits = None, 0


def _is_kept(layer: nn.Module, name: str, value: object) -> bool:
    attribute = _attribute(layer, name) if type(value) in (bool, int, float, str) else None
    return type(attribute) is type(value) and attribute == value


def _attribute(layer: nn.Module, name: str) -> object:
    try:
        return getattr(layer, name, None)
    except Exception:  # a property of a layer that is not finished may raise anything
        return None


def changed_arguments(layer: nn.Module) -> dict[str, Any]:
    """The arguments that a layer keeps as attributes and that were set anew since it was made, as they are now.

    >>> from suture import layers as sl
    >>> dropout = sl.Dropout(p=0.1)
    >>> dropout.p = 0.5
    >>> changed_arguments(dropout)
    {'p': 0.5}
    """
    made: Made | None = layer.__dict__.get("_made")
    kept = made.kept if made is not None else {}
    now = {name: _attribute(layer, name) for name in kept}
    return {
        name: encoded(value) for name, value in now.items() if type(value) is type(kept[name]) and value != kept[name]
    }


def _takes_any_children(kind: type[nn.Module]) -> bool:
    initialise: Any = inspect.unwrap(kind.__init__)
    parameters = inspect.signature(initialise).parameters.values()
    # A class that was made by exec has no module.
    return (initialise.__module__ or "").startswith("suture.layers.") and any(
        parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters
    )


def _held(value: Any, layer: nn.Module) -> Any:
    """An argument as it is kept: without the layers and the values of tensors in it."""
    match value:
        case nn.Module():
            return Held(value)
        case Tensor():
            is_kept = any(_is_same(value, weight) for weight in layer.state_dict().values())
            return torch.empty_like(value, device="meta", requires_grad=False) if is_kept else Unknown(_UNKEPT)
        case list() | tuple():
            values = [_held(each, layer) for each in cast("Iterable[Any]", value)]
            return tuple(values) if isinstance(value, tuple) else values
        case dict():
            return {key: _held(each, layer) for key, each in cast("dict[Any, Any]", value).items()}
        case _:
            return value


def _is_same(value: Tensor, weight: Tensor) -> bool:
    if value.shape != weight.shape:
        return False
    return value.is_meta or weight.is_meta or bool((value == weight.to(value.device)).all())


# Descriptions. They are made when an edit is, and read when somebody asks for the recipe.


class Reference:
    """A place of the tree, by its path there; `number` tells those apart that call one layer."""

    def __init__(self, path: str, number: int | None = None) -> None:
        self.path = path
        self.number = number


class Original(Reference):
    """The place of a composite that was copied."""


@dataclasses.dataclass
class Unknown:
    """What has no description, and why. Whoever asks for the recipe is told."""

    reason: str


@dataclasses.dataclass
class Described:
    """A layer as data, which may hold references, layers that may stand elsewhere too, and what has no description."""

    held: Held
    content: dict[str, Any]


Places = Mapping[int, tuple[str, Reference]]
"""The slots of a new layer that hold what was in the tree before, by identity: the name there, and where it is from."""
Known = Callable[[nn.Module], Reference | None]
"""Where a layer stands in the tree; None where it is new."""


def describe(
    layer: nn.Module, known: Known = lambda _: None, places: Places | None = None, expected: int = 0
) -> Described:
    """Describes a layer, to which `expected` edits are done again by what it is. What cannot be told is `Unknown`."""
    made: Made | None = layer.__dict__.get("_made")
    node, name = node_of(layer), type(layer).__name__
    if made is None:
        return Described(Held(layer), {"class": Unknown(_unregistered(layer))})
    if node is not None and node.copy_of is not None:
        original, version = node.copy_of[0].layer, node.copy_of[1]
        reference = known(original) if original is not None else None
        inner = node_of(original)
        if reference is not None and inner is not None and inner.version == version and not node.edits:
            return Described(Held(layer), {"copy": Original(reference.path)})
    content: dict[str, Any] = {"class": made.name, "arguments": _arguments(type(layer), made, known)}
    if node is None:
        return Described(Held(layer), content)
    if made.is_generic:
        children: dict[str, Any] = {}
        for slot in node.filled():
            if places is not None and id(slot) in places:
                child, where = places[id(slot)]
                children[child] = where
            elif slot.layer is not None:
                children[slot.name] = describe(slot.layer, known, places)
        content["children"] = children
    elif node.shares_leaves:
        content["class"] = Unknown(f"the {name} is a copy of what is not in the tree as it was then")
    elif node.edits > expected:
        history = node.history
        is_whole = history is not None and history.count == node.edits - expected
        content["edits"] = history if is_whole else Unknown(f"the {name} was edited in another tree")
    return Described(Held(layer), content)


def _unregistered(layer: nn.Module) -> str:
    kind = type(layer)
    if kind.__module__.startswith("torch.nn."):
        return f"torch's own {kind.__name__} does not remember its arguments. sl.{kind.__name__}, the same layer, does"
    return (
        f"{kind.__name__} is not registered, or was made before it was. Register the class where it is defined: "
        "@suture.register"
    )


def _arguments(kind: type[nn.Module], made: Made, known: Known) -> dict[str, Any]:
    signature = signature_of(kind)
    bound = (
        signature.bind(*made.args, **made.keywords) if not made.is_generic else signature.bind_partial(**made.keywords)
    )
    return {name: encoded(value, known) for name, value in bound.arguments.items()}


@functools.lru_cache(maxsize=512)
def signature_of(kind: type) -> inspect.Signature:
    """What a class is called with."""
    whole = inspect.signature(kind.__init__)
    return whole.replace(parameters=list(whole.parameters.values())[1:])


def encoded(value: Any, known: Known = lambda _: None) -> Any:
    """A value as JSON knows it; what it does not know is a dictionary with one telling key."""
    match value:
        case None | bool() | str() | Unknown():
            return value
        case int() | float() if type(value) in (int, float):
            return value if abs(value) < float("inf") else {"float": str(value)}
        case Held():
            layer = value.layer
            if layer is None:
                return Unknown("a layer that it was made with is gone")
            return known(layer) or describe(layer, known)
        case Tensor():
            return {"tensor": list(value.shape), "dtype": _name(value.dtype)}
        case torch.dtype():
            return {"dtype": _name(value)}
        case torch.device():
            return {"device": str(value)}
        case slice():
            parts: list[Any] = [value.start, value.stop, value.step]
            return {"slice": [encoded(each, known) for each in parts]}
        case list():
            return [encoded(each, known) for each in cast("list[Any]", value)]
        case tuple():
            return {"tuple": [encoded(each, known) for each in cast("tuple[Any, ...]", value)]}
        case dict():
            pairs = cast("dict[Any, Any]", value).items()
            return {"dict": [[encoded(key, known), encoded(each, known)] for key, each in pairs]}
        case _ if dataclasses.is_dataclass(value) and _classes.get(type(value).__name__) is type(value):
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
            return {"class": type(value).__name__, "arguments": {k: encoded(v, known) for k, v in fields.items()}}
        case _ if inspect.isroutine(value):
            return Unknown(
                f"it calls the function {value.__name__!r}, and recipes hold no code. Make it a class of layers"
            )
        case _:
            return Unknown(f"it was made with {value!r:.60} ({type(value).__name__}), which is no plain data")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
