"""Recorded edits: every change of a tree is a swap of what stands in one slot, and can be undone.

A swap takes `old` out of a slot and puts `new` in; either may be absent. Where `new` holds `old`, or layers of `old`,
those places are the *holes* of the swap: the layers in them keep their homes. Undoing a swap puts `old` back where
`new` stands, and what stands in each hole *now* returns to where it came from; so edits nested in one another can be
undone in any order. What cannot be undone without taking another edit along is refused, and nothing is changed.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch import nn

from suture.layers.node import Slot, node_of
from suture.layers.placing import fit, place_of
from suture.layers.recording import EditError, Recording, recording
from suture.layers.releasing import is_called_elsewhere, is_owned_in, release_what_left
from suture.layers.swaps import Hole, Swap, sites_in, wired_sites

if TYPE_CHECKING:
    from suture.layers.composite import Composite
    from suture.layers.swaps import Site

    Content = tuple[nn.Module | None, str, Composite]


class Edit:
    """What one editing call changed. It can be undone while this handle lives.

    `layers` are the layers put in or, for a removal, taken out.
    """

    def __init__(self, swaps: list[Swap]) -> None:
        self.swaps = swaps

    @property
    def layers(self) -> tuple[nn.Module, ...]:
        return tuple(layer for swap in self.swaps if (layer := swap.old if swap.new is None else swap.new) is not None)

    def undo(self) -> None:
        """Takes the edit back, whole or not at all. Raises `EditError`, naming what is in the way."""
        if self.swaps and not any(swap.live for swap in self.swaps):
            raise EditError("This edit is undone already.")
        undo_swaps(self.swaps)

    def __repr__(self) -> str:
        state = "" if any(swap.live for swap in self.swaps) else " (undone)"
        return f"Edit({'; '.join(map(str, self.swaps)) or 'nothing'}){state}"


@contextmanager
def editing(model: Composite) -> Generator[Edit]:
    """A block of edits that holds whole or not at all: an exception inside takes every edit back.

    >>> from suture import layers as sl
    >>> model = sl.Chain(sl.Linear(2, 2), sl.ReLU())
    >>> with editing(model) as edit:
    ...     _ = model.append(sl.Linear(2, 2))
    >>> edit.undo()
    >>> len(model)
    2
    """
    if node_of(model) is None:
        raise TypeError(f"editing() takes a tree of suture layers, such as a Chain. Received: {type(model).__name__}.")
    edit = Edit([])
    with recording() as record:
        yield edit
        edit.swaps = list(record.swaps)


def swap(composite: Composite, slot: Slot, new: nn.Module | None, name: str | None = None) -> Edit:
    """Puts `new` where `slot` of `composite` holds a layer, or nothing; None takes the layer out.

    Raises `EditError` when a composite in `new` stands somewhere else too, or the tree would contain itself.
    """
    with recording() as record:
        if _cancels(record, composite, slot.layer, new):
            return Edit([])
        _refuse_cycle(composite, new)
        change = Swap(composite, slot, new, record.author)
        _find_holes(change, record)
        _rewire(change, record, name)
        record.set_changes(slot, [weakref.ref(other) for other in [*slot.swaps, change]])
        # What was changed at a place moves with the layer that stands there.
        for hole in change.holes:
            _move_changes(record, hole.origin or (composite, slot), (hole.composite, hole.slot), {change.number})
        if change.hoisted_from is not None:
            _move_changes(record, change.hoisted_from, (composite, slot), set())
        record.swaps.append(change)
        if new is not None and change.hoisted_from is None:
            fit(new, change.place, [hole.layer for hole in change.holes])
    return Edit([change])


def insert(composite: Composite, position: int, new: nn.Module, name: str | None = None) -> Edit:
    """Puts `new` in a new slot at `position` among the slots of `composite`."""
    with recording() as record:
        if _cancels(record, composite, None, new):
            return Edit([])
        slot = Slot()
        record.add_slot(composite, position, slot)
        return swap(composite, slot, new, name)


def undo_swaps(swaps: list[Swap]) -> None:
    """Takes swaps back, the last first; all or none."""
    together = {id(change) for change in swaps}
    with recording() as record:
        for change in reversed(swaps):
            if change.live:
                _undo(change, together, record)


def _refuse_cycle(composite: Composite, new: nn.Module | None) -> None:
    around: Composite | None = composite
    while around is not None:
        if around is new:
            raise EditError(f"{type(new).__name__} cannot be put inside itself, at {composite.node.path!r}.")
        around = around.node.parent


def _find_holes(change: Swap, record: Recording) -> None:
    parts: dict[int, Site | None] = {}
    if change.old is not None:
        parts[id(change.old)] = None
        for site in sites_in(change.old):
            parts.setdefault(id(site[1].layer), site)
    change.hoisted_from = parts.get(id(change.new))
    node = node_of(change.new)
    module = node.module() if node is not None else None
    if node is None or module is None or change.hoisted_from is not None:
        return
    for composite, slot in wired_sites(module, frozenset(parts)):
        inner = node_of(slot.layer)
        if id(slot.layer) in parts:
            change.holes.append(Hole(composite, slot, parts[id(slot.layer)]))
        elif inner is not None and inner.parent is not composite:
            record.borrowed.append((composite, slot, inner.parent))
    if node.parent is not None:
        record.borrowed.append((change.composite, change.slot, node.parent))


def _rewire(change: Swap, record: Recording, name: str | None) -> None:
    composite, slot, old, new, home = change.composite, change.slot, change.old, change.new, change.home
    kept: list[Site | None] = [hole.origin for hole in change.holes]
    kept += [change.hoisted_from] if change.hoisted_from is not None else []
    change.old_stays_owned = old is not None and (
        any(site is None or is_owned_in(site, old) for site in kept)
        or is_called_elsewhere(change, home, change.old_name)
    )
    if change.hoisted_from is not None:
        where, origin = change.hoisted_from
        record.fill(composite, slot, new, origin.name, origin.home or where)
    elif new is not None:
        removal = _removal_of(change, new)
        change.new_name = name or (removal.old_name if removal is not None else _name_for(change, new))
        change.former_name = change.new_name in home.node.names
        if removal is not None and change.new_name == removal.old_name:
            record.do(lambda: setattr(removal, "returned_by", change), lambda: setattr(removal, "returned_by", None))
        record.own(home.node, change.new_name, new)
        record.fill(composite, slot, new, change.new_name, home)
    else:
        record.fill(composite, slot, None, change.old_name, home)
    for hole in change.holes:
        owner, owned_as = home, change.old_name
        if hole.origin is not None:
            where, origin = hole.origin
            owner, owned_as = origin.home or where, origin.name
        if hole.composite.node.children.get(hole.own_name) is hole.layer:
            record.disown(hole.composite.node, hole.own_name, change)
        if hole.layer is not None:
            record.own(owner.node, owned_as, hole.layer)
        record.fill(hole.composite, hole.slot, hole.layer, owned_as, owner)
    if old is not None:
        release_what_left(change, record, old)


def _removal_of(change: Swap, new: nn.Module) -> Swap | None:
    """What took `new` out of the composite that it is now put in again, under its own name."""
    names = change.home.node.names
    for name, removal in names.items() if change.old is None else ():
        swap = removal() if removal is not None else None
        if swap is not None and swap.live and swap.old is new and name not in change.home.node.children:
            return swap if swap.home is change.home and swap.old_name == name else None
    return None


def _name_for(change: Swap, new: nn.Module) -> str:
    if change.old is None:
        return change.home.name_for(new)
    if change.old_stays_owned:
        return change.home.node.unused(f"{change.old_name}+{type(new).__name__}")
    return change.old_name


def _move_changes(record: Recording, source: Site, target: Site, staying: set[int]) -> None:
    """Moves the changes of one slot to another, but for those whose numbers stay."""
    for change in source[1].swaps:
        if change.number not in staying:
            record.relocate(change, *target)


def _cancels(record: Recording, composite: Composite, old: nn.Module | None, new: nn.Module | None) -> bool:
    """Whether this edit takes back a swap that is being ejected; then that swap is undone instead."""
    for change in reversed(record.cancels):
        if change.live and change.composite is composite and change.new is old and _alike(change.old, new):
            undo_swaps([change])
            return True
    return False


def _alike(one: nn.Module | None, other: nn.Module | None) -> bool:
    """Whether two layers are one, or composites of a class that wire the same layers."""
    if one is other:
        return True
    ours, theirs = node_of(one), node_of(other)
    if ours is None or theirs is None or type(one) is not type(other):
        return False
    pairs = itertools.zip_longest(ours.filled(), theirs.filled())
    return all(a is not None and b is not None and _alike(a.layer, b.layer) for a, b in pairs)


def _undo(change: Swap, together: set[int], record: Recording) -> None:
    composite, slot, old, new, home = change.composite, change.slot, change.old, change.new, change.home
    _refuse_what_is_in_the_way(change, together)

    # What stands in the holes now leaves the new layer, which gets back what it was made with.
    contents: list[tuple[Hole, Content]] = []
    for hole in change.holes:
        contents.append((hole, (hole.slot.layer, hole.slot.name, hole.slot.home or hole.composite)))
        record.fill(hole.composite, hole.slot, hole.layer, hole.own_name, None, borrowed=True)
        if hole.layer is not None and hole.own_name not in hole.composite.node.children:
            record.own(hole.composite.node, hole.own_name, hole.layer, borrowed=True)

    record.set_changes(slot, [weakref.ref(other) for other in slot.swaps if other is not change])
    if change.hoisted_from is not None:
        content = (slot.layer, slot.name, slot.home or composite)
        record.fill(composite, slot, None, change.old_name, home)
        record.fill(*change.hoisted_from, *content)
        _move_changes(record, (composite, slot), change.hoisted_from, change.own_changes)
    elif new is not None:
        record.disown(home.node, change.new_name, None)
    for node, name, layer in reversed(change.released):
        if node.children.get(name) is None:
            record.own(node, name, layer)
    whole = next((content for hole, content in contents if hole.origin is None), None)
    if whole is None and old is not None and home.node.children.get(change.old_name) is None:
        record.own(home.node, change.old_name, old)
    if whole is None:
        record.fill(composite, slot, old, change.old_name, home)
    else:
        record.fill(composite, slot, *whole)
    for hole, content in contents:
        if hole.origin is not None:
            record.fill(*hole.origin, *content)
        _move_changes(record, (hole.composite, hole.slot), hole.origin or (composite, slot), hole.own_changes)
    if new is not None and change.new_name and not change.former_name:
        record.forget(home.node, change.new_name)
    if old is None:
        record.drop_slot(composite, slot)
    record.mark(change, live=False)
    if old is not None and whole is None and (now := place_of(composite, slot)) != change.place:
        fit(old, now, [])


def _refuse_what_is_in_the_way(change: Swap, together: set[int]) -> None:
    slot, new = change.slot, change.new
    if slot.layer is not new:
        later = next((other for other in reversed(slot.swaps) if other.number > change.number), None)
        raise EditError(f"Cannot undo {change}: {later or 'another edit'} stands in its place. Undo that first.")
    if change.old is None and slot.home is not None:
        raise EditError(f"Cannot undo {change}: a layer was put around it since. Undo that first.")
    if change.old is not None and all(hole.origin is not None for hole in change.holes):
        _refuse_where_it_stands_elsewhere(change, change.old)
    wholes = [hole.slot.layer for hole in change.holes if hole.origin is None]
    if any(layer is not wholes[0] for layer in wholes):
        raise EditError(f"Cannot undo {change}: its places hold different layers now. Undo the edits of those first.")
    node = node_of(new) if change.hoisted_from is None else None
    module = node.module() if node is not None else None
    holes = {id(hole.slot) for hole in change.holes}
    stop = frozenset(id(hole.slot.layer) for hole in change.holes)
    for _, inner in wired_sites(module, stop) if module is not None else ():
        for other in inner.swaps if id(inner) not in holes else ():
            if other.number > change.number and id(other) not in together:
                raise EditError(f"Cannot undo {change}: it would take {other} out with it. Undo that first.")


def _refuse_where_it_stands_elsewhere(change: Swap, old: nn.Module) -> None:
    node, owned = node_of(old), change.home.node.children.get(change.old_name)
    elsewhere = node is not None and node.parent is not None
    returned = change.returned_by is not None and change.returned_by.live
    if elsewhere or returned or not (owned is None or owned is change.new or owned is old):
        raise EditError(
            f"Cannot undo {change}: {type(old).__name__} stands at another place since, or its name is taken. "
            f"Undo that first."
        )
