"""Who owns what follows from the wiring.

What stands in a slot is owned at its home, under its name, as long as a slot that is called has that home. A composite
that left the wiring stays owned while it is the home of something that is called, and then of that alone. What left
altogether keeps what it owns, so that it can be used by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import nn

from suture.layers.node import Slot, node_of
from suture.layers.recording import EditError, Recording

if TYPE_CHECKING:
    from suture.layers.composite import Composite
    from suture.layers.swap import Swap

    Site = tuple[Composite, Slot]


def composite_of(layer: nn.Module | None) -> Composite | None:
    """The layer, if it is a composite."""
    node = node_of(layer)
    return node.module() if node is not None else None


def wired_sites(layer: nn.Module | None, stop: frozenset[int] = frozenset()) -> Iterator[Site]:
    """The filled slots below, depth first; layers whose id is in `stop` are not entered."""
    composite = composite_of(layer)
    if composite is None:
        return
    for slot in list(composite.node.filled()):
        yield composite, slot
        if id(slot.layer) not in stop:
            yield from wired_sites(slot.layer, stop)


def home_of(composite: Composite, slot: Slot) -> Composite:
    """The composite that owns what stands in a slot of `composite`."""
    return composite if slot.home is None else slot.home


def is_within(home: Composite, root: nn.Module) -> bool:
    """Whether `home` is owned in the tree of `root`, also where nothing calls it."""
    return any(around is root for around in _around(home))


def top_of(composite: Composite) -> Composite:
    """The outermost composite of the tree that this one is in, or waits to return to."""
    return list(_around(composite))[-1]


def _around(composite: Composite) -> Iterator[Composite]:
    around: Composite | None = composite
    seen: set[int] = set()
    while around is not None and id(around) not in seen:
        seen.add(id(around))
        yield around
        around = around.node.last_owner or around.node.parent


def claim(record: Recording, composite: Composite, slot: Slot) -> None:
    """Has what stands in a slot owned at its home, if the slot is called.

    Raises `EditError` for a name that is taken.
    """
    home, root = home_of(composite, slot), composite
    is_called = slot.layer is not None and not root.node.only_home
    while (parent := root.node.parent) is not None:
        root = parent
        is_called = is_called and not root.node.only_home
    if slot.layer is not None and is_called and not slot.used and is_within(home, root):
        record.count(slot, home, slot.name, 1)
        _own(record, root, home, slot.name, slot.layer)


def _own(record: Recording, root: Composite, home: Composite, name: str, layer: nn.Module) -> None:
    present = home.node.children.get(name)
    if present is layer:
        return
    if present is not None:
        raise EditError(
            f"{type(layer).__name__} cannot return to {path_of(home, name)!r}, where a {type(present).__name__} "
            f"stands now. Take that out first."
        )
    record.own(home, name, layer)
    owner = home.node.last_owner
    if home is not root and owner is not None:
        _own(record, root, owner, home.node.name, home)


def drop(record: Recording, home: Composite, name: str, by: Swap | None) -> None:
    """Ends the ownership of what no slot is the reason for any more, and of homes that became empty by that."""
    layer = home.node.children.get(name)
    if layer is None or name in home.node.uses or is_home(layer):
        return
    record.disown(home, name, by)
    owner = home.node.owner
    if owner is not None:
        drop(record, owner, home.node.name, by)


def count_out(record: Recording, composite: Composite, slot: Slot) -> None:
    """Takes a slot out of the reasons for an ownership, which `drop` ends when there is none left."""
    if slot.used:
        record.count(slot, home_of(composite, slot), slot.name, -1)


def is_home(layer: nn.Module) -> bool:
    """Whether something that is called from outside of `layer` is owned in it."""
    node = node_of(layer)
    if node is None:
        return False
    inside = Counter((id(home_of(*site)), site[1].name) for site in wired_sites(layer) if site[1].used)
    owners = [(id(module), inner) for module in layer.modules() if (inner := node_of(module)) is not None]
    return any(count > inside[owner, name] for owner, inner in owners for name, count in inner.uses.items())


def detach(record: Recording, layer: nn.Module | None, kept: frozenset[int], by: Swap | None) -> None:
    """Ends what a layer that left the wiring was the reason for. Layers whose id is in `kept` are still called."""
    composite = composite_of(layer)
    if composite is not None:
        stays = is_home(composite)
        if stays:
            record.set(composite.node, "only_home", True)
        _detach(record, composite, composite, stays, kept, by)


def _detach(
    record: Recording, composite: Composite, left: Composite, stays: bool, kept: frozenset[int], by: Swap | None
) -> None:
    """The same for what is inside `composite`, which left as a part of `left`; that `stays` owned as a home, or not."""
    for slot in list(composite.node.filled()):
        is_stray = slot.home is not None and not is_within(slot.home, left)
        if stays or is_stray:
            count_out(record, composite, slot)
            drop(record, home_of(composite, slot), slot.name, by)
        inner = composite_of(slot.layer)
        if inner is None or id(inner) in kept:
            continue
        if is_stray:
            detach(record, inner, kept, by)
        else:
            _detach(record, inner, left, stays, kept, by)


def attach(record: Recording, layer: nn.Module | None, kept: frozenset[int] = frozenset()) -> None:
    """Has all owned that a layer which came into the wiring brings along."""
    sites = list(wired_sites(layer, kept))
    for each in (layer, *(slot.layer for _, slot in sites)):
        if (node := node_of(each)) is not None and node.only_home and id(each) not in kept:
            record.set(node, "only_home", False)
    for composite, slot in sites:
        claim(record, composite, slot)


def adopt(record: Recording, composite: Composite, layer: nn.Module | None, kept: frozenset[int]) -> None:
    """Makes `layer`, which came into the tree of `composite`, of one piece with it.

    Composites in it that had no parent get one, and what was owned in another tree gets a home in `layer`.
    """
    root = composite
    while root.node.parent is not None:
        root = root.node.parent
    for inner, slot in list(wired_sites(layer, kept)):
        node = node_of(slot.layer)
        if slot.home is not None and not is_within(slot.home, root):
            record.fill(inner, slot, slot.layer, inner.node.unused(slot.name), inner)
        elif node is not None and node.parent is not inner:
            record.fill(inner, slot, slot.layer, slot.name, slot.home)


def everything_in(*layers: nn.Module | None) -> list[nn.Module]:
    """The layers, all below that are wired or owned, and all that was taken out there and can return."""
    found: dict[int, nn.Module] = {}
    waiting = list(layers)
    while waiting:
        layer = waiting.pop()
        if layer is None or id(layer) in found:
            continue
        found[id(layer)] = layer
        node = node_of(layer)
        if node is not None:
            waiting += [*node.children.values(), *(slot.layer for slot in node.slots)]
            waiting += [change.old for slot in node.slots for change in slot.swaps]
    return list(found.values())


def set_aside(composite: Composite) -> list[nn.Module]:
    """What edits took out of a composite and can put back, with all that is in it."""
    return everything_in(*(change.old for slot in composite.node.slots for change in slot.swaps))


def count_anew(copied: Composite) -> None:
    """Owns in a copy what was owned outside of what was copied, and counts the reasons for each ownership."""
    nodes = [node for layer in everything_in(copied) if (node := node_of(layer)) is not None]
    for node in nodes:
        node.uses.clear()
    for node in nodes:
        for slot in node.filled():
            composite = node.module()
            if composite is None or slot.layer is None or not slot.used:
                continue
            home = home_of(composite, slot).node
            if home.children.get(slot.name) is not slot.layer:
                node.fill(slot, slot.layer, node.unused(slot.name), None)
                node.own(slot.name, slot.layer)
                home, inner = node, node_of(slot.layer)
                if inner is not None:
                    inner.last_owner, inner.name = composite, slot.name
            home.uses[slot.name] = home.uses.get(slot.name, 0) + 1


def path_of(home: Composite, name: str) -> str:
    """The path of what `home` owns as `name`."""
    return ".".join(filter(None, [home.path, name]))
