"""What an edit is made of: swaps, their holes, and the sites of a tree."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import nn

from suture.layers.node import Node, Slot, node_of
from suture.layers.placing import place_of

if TYPE_CHECKING:
    from suture.layers.composite import Composite

    Site = tuple[Composite, Slot]


class Hole:
    """A slot of the new layer that took over `layer`, which came from `origin` in the old one.

    `origin` is None where `layer` is the old layer itself.
    """

    def __init__(self, composite: Composite, slot: Slot, origin: Site | None) -> None:
        self.composite = composite
        self.slot = slot
        self.origin = origin
        self.layer = slot.layer
        self.own_name = slot.name
        self.own_changes = {change.number for change in slot.swaps}


class Swap:
    """One recorded change of one slot."""

    _numbers = itertools.count()

    def __init__(self, composite: Composite, slot: Slot, new: nn.Module | None, author: object) -> None:
        self.composite = composite
        self.slot = slot
        self.old, self.old_name = slot.layer, slot.name
        self.new, self.new_name = new, ""
        self.home = slot.home or composite
        self.old_stays_owned = False
        self.holes: list[Hole] = []
        self.hoisted_from: Site | None = None
        self.own_changes = {other.number for other in slot.swaps}
        self.released: list[tuple[Node, str, nn.Module]] = []
        self.former_name = False
        self.returned_by: Swap | None = None
        self.place = place_of(composite, slot)
        self.number = next(Swap._numbers)
        self.live = True
        self._author = weakref.ref(author) if author is not None else None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_author": self._author() if self._author is not None else None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._author = weakref.ref(state["_author"]) if state["_author"] is not None else None

    def __str__(self) -> str:
        where = ".".join(filter(None, [self.home.node.path, self.new_name or self.old_name]))
        author = self._author() if self._author is not None else None
        if author is not None:
            return f"the adapter {type(author).__name__} at {where!r}"
        if self.old is None:
            return f"the insertion of {where!r} ({type(self.new).__name__})"
        if self.new is None:
            return f"the removal of {where!r} ({type(self.old).__name__})"
        return f"the replacement of {self.old_name!r} by {where!r} ({type(self.new).__name__})"


def wired_sites(composite: Composite, stop: frozenset[int] = frozenset()) -> Iterator[Site]:
    """The filled slots below, depth first; layers whose id is in `stop` are not entered."""
    for slot in composite.node.filled():
        yield composite, slot
        node = node_of(slot.layer)
        inner = node.module() if node is not None and id(slot.layer) not in stop else None
        if inner is not None:
            yield from wired_sites(inner, stop)


def sites_in(layer: nn.Module | None) -> Iterator[Site]:
    """The filled slots of a layer and below; none of a leaf."""
    node = node_of(layer)
    module = node.module() if node is not None else None
    return wired_sites(module) if module is not None else iter(())
