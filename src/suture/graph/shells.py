"""Composites of a graph that was read: of each the class, since what it would call are calls of the graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from suture.layers.composite import Composite
from suture.layers.description import class_of
from suture.weights.checkpoint import CheckpointError


class Shell(Composite):
    """The class of a composite whose calls are calls of a graph that was read. It has no layers and is not called."""

    told: Mapping[str, Any]
    """What the file says of it."""

    def forward(self, *_: Any, **__: Any) -> Any:
        raise TypeError(
            f"A {type(self).__name__} of a graph that was read from a file stands for its class alone: its layers are "
            "steps of the graph. In a call function, call it as layer(*args, **kwargs)."
        )

    def extra_repr(self) -> str:
        return ""


def shell(told: Mapping[str, Any]) -> Shell:
    """A composite of a class, made without what its constructor makes.

    >>> from suture import layers as sl
    >>> isinstance(shell({"class": "Sum", "registered": True, "training": True}), sl.Sum)
    True

    Raises:
        CheckpointError: No class is registered under the name that was one of a registered class.
    """
    name: str = told["class"]
    kind = class_of(name) if told["registered"] else None
    if told["registered"] and kind is None:
        raise CheckpointError(
            f"No class is registered as {name!r}. Import the module that defines it first, and mark the class there "
            "with @suture.register."
        )
    bases: tuple[type, ...] = (Shell,) if kind is None or not issubclass(kind, Composite) else (Shell, kind)
    made: Any = type(name if kind is None else kind.__name__, bases, {})
    empty: Shell = made.__new__(made)
    Composite.__init__(empty)
    empty.told = told
    empty.training = told["training"]
    return empty


def tell(composite: nn.Module) -> dict[str, Any]:
    """What is kept of a composite: its class, by its registered name, or by what it is called.

    >>> from suture import layers as sl
    >>> tell(sl.Sum())
    {'class': 'Sum', 'registered': True, 'training': True}
    """
    if isinstance(composite, Shell):
        return {**composite.told, "training": composite.training}
    made = vars(composite).get("_made")
    name: str = type(composite).__name__ if made is None else made.name
    return {"class": name, "registered": class_of(name) is type(composite), "training": composite.training}
