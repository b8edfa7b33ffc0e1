"""One change of one slot, forth and back.

A swap takes `old` out of a slot and puts `new` in; either may be absent. Where `new` holds `old`, or layers of `old`,
those places are the *holes* of the swap: the layers in them keep their homes. Taking a swap back puts `old` where `new`
stands, and what stands in each hole *now* returns to where it came from; so swaps nested in one another can be taken
back in any order. What cannot be taken back without taking another swap along is refused, and nothing is changed.
"""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Any

from torch import nn

from suture.layers.node import Slot, node_of
from suture.layers.ownership import (
    count_in,
    count_out,
    home_of,
    make_root,
    path_of,
    root_of,
    taken_out,
    top_of,
    wired_sites,
)
from suture.layers.placing import fit, place_of
from suture.layers.recording import EditError, Recording

if TYPE_CHECKING:
    from suture.layers.composite import Composite
    from suture.layers.ownership import Site

    Content = tuple[nn.Module | None, str, Composite]


class Hole:
    """A slot that took over `layer` from `origin`, a place in the old layer; None where it is the old layer itself.

    What is called its own here is what the slot had before.
    """

    def __init__(self, composite: Composite, slot: Slot, layer: nn.Module, origin: Site | None) -> None:
        self.composite = composite
        self.slot = slot
        self.layer = layer
        self.origin = origin
        _, self.own_name, self.own_home = _content(composite, slot)
        self.own_changes = {change.number for change in slot.swaps}

    @property
    def source(self) -> int:
        """The identity of the slot that `layer` came from; 0 for the slot of the swap itself."""
        return id(self.origin[1]) if self.origin is not None else 0


class Swap:
    """One recorded change of one slot."""

    _numbers = itertools.count()

    def __init__(self, composite: Composite, slot: Slot, new: nn.Module | None, author: object) -> None:
        self.composite = composite
        self.slot = slot
        self.old, self.old_name, self.home = _content(composite, slot)
        self.new, self.new_name = new, ""
        self.gives_name = self.frees_name = False
        """Whether `new_name` was given here for the first time, and whether `old_name` ended here."""
        self.holes: list[Hole] = []
        self.hoists = False
        """Whether `new` is a part of the old layer; then the slot itself is the only hole."""
        self.number = next(Swap._numbers)
        self.live = False
        """Whether it can be taken back: not before it is made, and not twice."""
        self._author = weakref.ref(author) if author is not None else None

    @property
    def author(self) -> object:
        """Who made it, such as an adapter; None for a plain edit, or when the author is no more."""
        return self._author() if self._author is not None else None

    @property
    def inherits(self) -> bool:
        """Whether the new layer took the name of the old one."""
        return self.new is not None and self.new_name == self.old_name

    @property
    def kept(self) -> frozenset[int]:
        return frozenset(id(hole.layer) for hole in self.holes)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_author": self.author}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._author = weakref.ref(state["_author"]) if state["_author"] is not None else None

    def __str__(self) -> str:
        name = self.new_name or self.old_name
        # A copy of a part does not have the tree around it.
        where = path_of(self.home, name) if node_of(self.home) is not None else name
        author = self.author
        if author is not None:
            return f"the adapter {type(author).__name__} at {where!r}"
        if self.old is None:
            return f"the insertion of {where!r} ({type(self.new).__name__})"
        if self.new is None:
            return f"the removal of {where!r} ({type(self.old).__name__})"
        return f"the replacement of {self.old_name!r} by {where!r} ({type(self.new).__name__})"

    # Forth

    def make(self, record: Recording, name: str | None) -> None:
        """Makes the change. `name` is for the new layer, which otherwise gets one.

        Raises `EditError` when a composite in the new layer stands somewhere else too, or would contain itself.
        """
        self._refuse_where_nothing_is_called("edit")
        self._find_holes()
        self._refuse_second_places()
        place = place_of(self.composite, self.slot)
        self._put_in(record, name)
        self.frees_name = self.old is not None and self.home.node.children.get(self.old_name) is not self.old
        record.set(self, "live", True)
        record.set_changes(self.slot, [*self.slot.swaps, self])
        record.swaps.append(self)
        if self.new is not None and not self.hoists:
            fit(self.new, place, [hole.layer for hole in self.holes])

    def _find_holes(self) -> None:
        """Finds where the new layer holds the old one or parts of it."""
        old, new = self.old, self.new
        if old is None or new is None:
            return
        around = list(wired_sites(new, frozenset([id(old)])))
        # A new layer that holds the whole old one has no other part of it; what they share are leaves.
        parts: dict[int, Site | None] = {id(old): None}
        if not any(slot.layer is old for _, slot in around):
            for site in wired_sites(old):
                parts.setdefault(id(site[1].layer), site)
        if id(new) in parts:
            self.holes = [Hole(self.composite, self.slot, new, parts[id(new)])]
            self.hoists = True
            return
        sites = list(wired_sites(new, frozenset(parts)))
        # What is inside a composite that is kept does not leave it: a leaf there may be called by `new` too, shared.
        kept = frozenset(id(slot.layer) for _, slot in sites if node_of(slot.layer) is not None)
        origins: dict[int, Site | None] = {id(old): None}
        for site in wired_sites(old, kept):
            origins.setdefault(id(site[1].layer), site)
        self.holes = [
            Hole(*site, layer, origins[id(layer)])
            for site in sites
            if (layer := site[1].layer) is not None and id(layer) in origins
        ]

    def _refuse_second_places(self) -> None:
        taken_over = {id(hole.slot) for hole in self.holes}
        seen: set[int] = set()
        for around, slot in [(None, self.slot), *wired_sites(self.new, self.kept)]:
            layer = self.new if around is None else slot.layer
            node = node_of(layer)
            if node is None:
                continue
            elsewhere = node.parent is not None and node.parent is not around and id(slot) not in taken_over
            if elsewhere or id(layer) in seen:
                raise EditError(
                    f"{type(layer).__name__} is wired at {node.path!r} already, and a composite has one parent. "
                    f"Put in a copy that shares its layers: layer.structural_copy()."
                )
            seen.add(id(layer))
        ancestor: Composite | None = self.composite
        while ancestor is not None:
            if id(ancestor) in seen:
                raise EditError(f"{type(ancestor).__name__} cannot be put inside itself, at {self.composite.path!r}.")
            ancestor = ancestor.parent

    def _put_in(self, record: Recording, name: str | None) -> None:
        composite, slot, old, new, kept = self.composite, self.slot, self.old, self.new, self.kept
        contents = [(hole, _content(*(hole.origin or (composite, slot)))) for hole in self.holes]
        entering = [] if self.hoists else list(wired_sites(new, kept))
        for site in [(composite, slot), *wired_sites(old, kept), *entering]:
            count_out(record, *site, self)
        for hole, content in contents:
            record.fill(hole.composite, hole.slot, *content)
            for change in (hole.origin[1] if hole.origin is not None else slot).swaps:
                record.relocate(change, hole.composite, hole.slot)
            self._count_in(record, hole.composite, hole.slot)
        if not self.hoists:
            self._name(name)
            record.fill(composite, slot, new, self.new_name or self.old_name, self.home)
            _returned(record, new)
        for around, inner in entering:
            node = node_of(inner.layer)
            if node is not None and id(inner.layer) not in kept:
                record.set(node, "parent", around)
                _returned(record, inner.layer)
        for site in [(composite, slot), *entering]:
            self._count_in(record, *site)
        if (node := node_of(old)) is not None and id(old) not in kept:
            record.set(node, "removal", weakref.ref(self))
            record.set(node, "taken_apart", bool(node.uses or self.holes))
            if not node.uses:
                make_root(record, old, kept)

    def _name(self, name: str | None) -> None:
        if self.new is None:
            return
        node = self.home.node
        if name is None and self.old is None:
            name = node.name_before(self.new) or self.home.name_for(self.new)
        elif name is None:
            is_in_use = self.old_name in node.uses
            name = node.unused(f"{self.old_name}+{type(self.new).__name__}") if is_in_use else self.old_name
        self.new_name = name
        self.gives_name = node.is_new(name)

    def _count_in(self, record: Recording, composite: Composite, slot: Slot, *, returns: bool = False) -> None:
        """Counts a slot in. What is owned in another tree is refused, but where it can return there with its tree."""
        home, root = home_of(composite, slot), root_of(self.composite)
        if slot.layer is None or slot.used:
            return
        # A new layer is in the tree when it has its name there, which it gets after what it holds.
        if (around := top_of(home)) is root or around is self.new:
            count_in(record, composite, slot)
            return
        removal = _removal_of(root)
        if removal is None or not returns:
            removal = removal or _removal_of(around)
            raise EditError(
                f"The {type(slot.layer).__name__} in {type(composite).__name__} is owned in another tree, as "
                f"{path_of(home, slot.name)!r} of a {type(around).__name__}. "
                + (f"Undo {removal} first." if removal is not None else "Put in a copy: copy.deepcopy(layer).")
            )

    @property
    def _shell_holes(self) -> list[Hole]:
        """The holes in a new layer: the places that have names of their own there."""
        return [] if self.hoists else self.holes

    # Back

    def take_back(self, record: Recording, together: set[int]) -> None:
        """Takes the change back, of those whose identities are in `together`, the last first.

        Raises `EditError`, naming what is in the way.
        """
        self._refuse_what_is_in_the_way(together)
        record.set_changes(self.slot, [change for change in self.slot.swaps if change is not self])
        self._put_back(record)
        names = self.home.node.children
        if self.gives_name and self.new_name in names and names[self.new_name] is None:
            record.forget(self.home, self.new_name)
        if self.old is None:
            record.drop_slot(self.composite, self.slot)
        record.set(self, "live", False)

    def _put_back(self, record: Recording) -> None:
        composite, slot, old, new = self.composite, self.slot, self.old, self.new
        contents = [(hole, _content(hole.composite, hole.slot)) for hole in self.holes]
        kept = self.kept | {id(layer) for _, (layer, _, _) in contents}
        entering = list(wired_sites(old, kept))
        leaving = [] if self.hoists else list(wired_sites(new, kept))
        for site in [(composite, slot), *leaving, *entering]:
            count_out(record, *site, None)

        for hole in self._shell_holes:
            record.fill(hole.composite, hole.slot, hole.layer, hole.own_name, hole.own_home, borrowed=True)
        wrapped = next((content for hole, content in contents if hole.origin is None), None)
        record.fill(composite, slot, *((old, self.old_name, self.home) if wrapped is None else wrapped))
        if wrapped is None:
            _returned(record, old)
        for hole, content in contents:
            if hole.origin is not None:
                record.fill(*hole.origin, *content)
            for change in hole.slot.swaps:
                if change.number not in hole.own_changes:
                    record.relocate(change, *(hole.origin or (composite, slot)))
        for site in [(composite, slot), *(hole.origin for hole in self.holes if hole.origin is not None), *entering]:
            self._count_in(record, *site, returns=True)
        node = node_of(new)
        if node is not None and not self.hoists:
            if node.uses:
                raise EditError(
                    f"Cannot undo {self}: something in the {type(new).__name__} that it put in is called outside of "
                    f"it now. Undo that first."
                )
            make_root(record, new, self.kept)

    def _refuse_what_is_in_the_way(self, together: set[int]) -> None:
        slot, new = self.slot, self.new
        if node_of(self.composite) is None or node_of(self.home) is None:
            raise EditError("This was copied without the tree around it, so it cannot be taken out of that tree.")
        if slot.layer is not new and not (self.hoists and slot.layer is not None):
            later = next((change for change in reversed(slot.swaps) if change.number > self.number), None)
            raise EditError(f"Cannot undo {self}: {later or 'another edit'} stands in its place. Undo that first.")
        if self.old is None and slot.home is not None:
            raise EditError(f"Cannot undo {self}: a layer was put around it since. Undo that first.")
        self._refuse_where_nothing_is_called(f"undo {self} in")
        self._refuse_to_part()
        is_leaf = new is not None and node_of(new) is None
        calls = home_of(self.composite, slot).node.uses.get(slot.name, 0) if slot.used and is_leaf else 0
        if calls > 1 and not self.hoists:
            raise EditError(
                f"Cannot undo {self}: what it put in is called at {calls} places now, by the "
                f"{type(self.composite).__name__} at {self.composite.path!r}. Take that out first."
            )
        returning, owned = node_of(self.old), self.home.node.children.get(self.old_name)
        stands_elsewhere = returning is not None and returning.parent is not None and id(self.old) not in self.kept
        if stands_elsewhere or (self.frees_name and owned is self.old and self.old is not None):
            where = returning.path if returning is not None else path_of(self.home, self.old_name)
            raise EditError(
                f"Cannot undo {self}: the {type(self.old).__name__} that it took out stands at {where!r} now. "
                f"Take it out there first."
            )
        self._refuse_moved_parts()
        self._refuse_unequal_holes()
        holes = {id(hole.slot) for hole in self.holes}
        stop = frozenset(id(hole.slot.layer) for hole in self.holes)
        for _, inner in wired_sites(new, stop) if not self.hoists else ():
            for change in inner.swaps if id(inner) not in holes else ():
                if change.number > self.number and id(change) not in together:
                    raise EditError(f"Cannot undo {self}: it would take {change} out with it. Undo that first.")

    def _refuse_where_nothing_is_called(self, what: str) -> None:
        around = taken_out(self.composite)
        if around is not None:
            removal = _removal_of(around)
            raise EditError(
                f"Cannot {what} the {type(self.composite).__name__} at {self.composite.path!r}: it was taken out, but "
                f"for what is still called elsewhere. Undo {removal or 'the edit that took it out'} first."
            )

    def _refuse_moved_parts(self) -> None:
        """A part of the new layer that was put elsewhere would be left without what it holds of the old one."""
        for hole in self._shell_holes:
            root = hole.composite
            while root is not self.new and root.node.parent is not None:
                root = root.node.parent
            if root is not self.new and hole.slot.used:
                raise EditError(
                    f"Cannot undo {self}: the {type(hole.composite).__name__} in it was put elsewhere, at "
                    f"{hole.composite.path!r}. Take it out there first."
                )

    def _refuse_unequal_holes(self) -> None:
        """One layer that several holes took over can only return from all."""
        standing: dict[int, nn.Module | None] = {}
        for hole in self.holes:
            if standing.setdefault(hole.source, hole.slot.layer) is not hole.slot.layer:
                raise EditError(
                    f"Cannot undo {self}: its places hold different layers now. Undo the edits of those first."
                )

    def _refuse_to_part(self) -> None:
        """What stands in one of several holes that a later swap filled with one layer cannot change alone."""
        inside, composite = {id(self.slot)}, self.composite
        while (parent := composite.parent) is not None:
            for slot in parent.node.slots_of(composite):
                inside.add(id(slot))
                for change in slot.swaps:
                    if change.number > self.number and change.calls_twice(inside):
                        raise EditError(f"Cannot undo {self}: {change} calls it at several places. Undo that first.")
            composite = parent

    def calls_twice(self, slots: set[int]) -> bool:
        """Whether one of these slots is a hole that has what another hole has too."""
        sources = [hole.source for hole in self.holes]
        return any(id(hole.slot) in slots and sources.count(hole.source) > 1 for hole in self.holes)


def _content(composite: Composite, slot: Slot) -> Content:
    return slot.layer, slot.name, home_of(composite, slot)


def _removal_of(composite: Composite) -> Swap | None:
    """The change that took a composite out."""
    removal = composite.node.removal
    return removal() if removal is not None else None


def _returned(record: Recording, layer: nn.Module | None) -> None:
    """A composite that comes into a tree is not taken out any more."""
    node = node_of(layer)
    if node is not None:
        record.set(node, "removal", None)
        record.set(node, "taken_apart", False)
