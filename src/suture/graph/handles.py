"""A layer in a graph, as one looks it up by its path: how often it is called, with what, and what it gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from suture.graph.calls import Item


@dataclass(frozen=True)
class LayerCall:
    """One call of a layer in a graph."""

    args: tuple[Any, ...]
    """The symbolic values that it is called with."""
    output: Any
    """The symbolic value, or the structure of such, that it gives."""


@dataclass(frozen=True)
class Handle:
    """A layer of a graph: `graph["blocks.2"]`."""

    path: str
    layer: nn.Module
    items: tuple[Item, ...]

    @property
    def calls(self) -> tuple[LayerCall, ...]:
        """Its calls, in order."""
        return tuple(LayerCall(item.args, item.output) for item in self.items)

    @property
    def output(self) -> Any:
        """What its one call gives. Raises `ValueError` for a layer that is called several times."""
        return self._one().output

    @property
    def args(self) -> tuple[Any, ...]:
        """What its one call is called with."""
        return self._one().args

    def _one(self) -> LayerCall:
        if len(self.items) != 1:
            raise ValueError(
                f"{self.path!r} is called {len(self.items)} times in this graph. Say which: .calls[0].output."
            )
        return self.calls[0]
