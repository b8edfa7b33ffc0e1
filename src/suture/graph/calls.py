"""What a graph is made of: calls of layers and functions, and scopes, the calls of composites that hold others."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

_numbers = itertools.count()


def next_number() -> int:
    """The place in the order of recording of what is recorded now."""
    return next(_numbers)


@dataclass(eq=False, kw_only=True)
class Item:
    """Something that was called with symbolic values, and what it gave."""

    target: nn.Module | Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    path: str = ""
    """Where a layer is, seen from `root`; "" for a function and for a root."""
    root: nn.Module | None = None
    """The outermost composite or graph whose call this belongs to; None where a layer was called by itself."""
    parent: Scope | None
    number: int = field(default_factory=next_number)
    """The order of recording, over all graphs: what depends on another has a higher number."""
    output: Any = None
    """What it gave, as those that called it see it: a symbolic value, or a structure of such."""

    @property
    def is_layer(self) -> bool:
        return isinstance(self.target, nn.Module)

    @property
    def name(self) -> str:
        """The class of a layer, or the name of a function."""
        return type(self.target).__name__ if self.is_layer else getattr(self.target, "__name__", repr(self.target))

    @property
    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What it was called with, by position and by keyword."""
        return self.args, self.kwargs

    @property
    def around(self) -> list[Scope]:
        """The scopes that it is in, the outermost first."""
        return [] if self.parent is None else [*self.parent.around, self.parent]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path or self.name!r} -> {self.output!r})"


@dataclass(eq=False, kw_only=True, repr=False)
class Call(Item):
    """A call of a layer or of a function that is one step of the graph."""

    whole: Any = None
    """What it gave as one symbolic value; the parts of a structure are steps of their own."""


@dataclass(eq=False, kw_only=True, repr=False)
class Scope(Item):
    """A call of a composite or of a graph: everything recorded while it ran, in order."""

    entries: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """The context entries that it began with."""
    parameters: Any = None
    """The arguments as they are seen inside: values of their own, so that a replay can give others."""
    result: Any = None
    """What it gave, as it is seen inside."""
    items: list[Item] = field(default_factory=list[Item])
