"""Who owns what follows from the wiring.

What stands in a slot that is called is owned at its home, under its name. So every name of a composite has its *uses*:
the slots that call what has it, and one more while that is a composite in which something is in use. A name without
uses is owned by nothing. Nothing else decides: an edit counts out the slots that leave and counts in those that come.

A composite that left the wiring stays owned while it is the home of something that is called, and then of that alone.
What left altogether is the root of a tree of its own.
"""

from __future__ import annotations

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
    if composite is None or id(composite) in stop:
        return
    for slot in list(composite.node.filled()):
        yield composite, slot
        if id(slot.layer) not in stop:
            yield from wired_sites(slot.layer, stop)


def home_of(composite: Composite, slot: Slot) -> Composite:
    """The composite that owns what stands in a slot of `composite`."""
    return composite if slot.home is None else slot.home


def top_of(composite: Composite) -> Composite:
    """The outermost composite of the tree that this one is in."""
    top = composite
    while (around := top.node.last_owner or top.node.parent) is not None:
        top = around
    return top


def root_of(composite: Composite) -> Composite:
    """The outermost composite around this one that calls it."""
    root = composite
    while (parent := root.node.parent) is not None:
        root = parent
    return root


def stem_of(composite: Composite) -> Composite:
    """The outermost composite of the tree that this one is in, or was taken out of."""
    stem = top_of(composite)
    while (removal := stem.node.removal() if stem.node.removal is not None else None) is not None:
        stem = top_of(removal.home)
    return stem


def taken_out(composite: Composite) -> Composite | None:
    """This composite, or the first around it, that was taken out but for layers in it that are still called."""
    around: Composite | None = composite
    while around is not None and not around.node.taken_apart:
        around = around.node.parent
    return around


def count_in(record: Recording, composite: Composite, slot: Slot) -> None:
    """Makes a slot a reason for its home to own what stands in it.

    Raises `EditError` where the name has another layer, or the layer is in use elsewhere.
    """
    layer, node = slot.layer, node_of(slot.layer)
    if layer is None or slot.used:
        return
    home = home_of(composite, slot)
    record.set(slot, "used", True)
    _use(record, home, slot.name, layer)
    if node is not None and node.parent is composite and (node.last_owner is not home or node.name != slot.name):
        _place(record, layer, home, slot.name)


def count_out(record: Recording, composite: Composite, slot: Slot, by: Swap | None) -> None:
    """Takes back `count_in`; `by` is what takes the layer away, and may return it."""
    if slot.used:
        record.set(slot, "used", False)
        _end_use(record, home_of(composite, slot), slot.name, by)


def _place(record: Recording, layer: nn.Module, home: Composite | None, name: str) -> None:
    """Says where a composite is owned; None for the root of a tree."""
    node = node_of(layer)
    if node is None:
        return
    if node.uses and node.last_owner is not None:
        raise EditError(
            f"{type(layer).__name__} was taken out, but something in it is still called and has its home there, at "
            f"{node.path!r}. It can return by an undo only; put in a copy that shares its layers, "
            f"layer.structural_copy()."
        )
    record.set(node, "last_owner", home)
    record.set(node, "name", name)
    if node.uses and home is not None:
        _use(record, home, name, layer)


def _use(record: Recording, home: Composite, name: str, layer: nn.Module) -> None:
    node = home.node
    present, began = node.children.get(name), not node.uses
    if present is not None and present is not layer:
        raise EditError(
            f"{type(layer).__name__} cannot return to {path_of(home, name)!r}, where a {type(present).__name__} "
            f"stands now. Take that out first."
        )
    if present is None:
        record.own(home, name, layer)
    record.count(home, name, 1)
    if began and node.last_owner is not None:
        _use(record, node.last_owner, node.name, home)


def _end_use(record: Recording, home: Composite, name: str, by: Swap | None) -> None:
    node = home.node
    record.count(home, name, -1)
    if name not in node.uses:
        record.disown(home, name, by)
    if not node.uses and node.last_owner is not None:
        _end_use(record, node.last_owner, node.name, by)


def make_root(record: Recording, layer: nn.Module | None, stop: frozenset[int]) -> None:
    """Makes what is in no tree any more a tree of its own, which has what was owned in it; `stop` is not in it."""
    top = composite_of(layer)
    if layer is None or top is None:
        return
    _place(record, layer, None, "")
    for composite, slot in wired_sites(top, stop):
        if top_of(home_of(composite, slot)) is top:
            count_in(record, composite, slot)


def release(record: Recording, layer: nn.Module) -> None:
    """Makes a composite that a plain module has the root of a tree, whoever holds it."""
    node = node_of(layer)
    if node is None:
        return
    if node.uses and node.last_owner is not None:
        record.count(node.last_owner, node.name, -1)
    record.set(node, "parent", None)
    record.set(node, "last_owner", None)


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
    """What edits took out of a composite, or of what it owns, and can put back, with all that is in it."""
    owned = {id(module): node_of(module) for module in composite.modules()}
    slots = [slot for node in owned.values() if node is not None for slot in node.slots]
    return [layer for layer in everything_in(*(c.old for slot in slots for c in slot.swaps)) if id(layer) not in owned]


def count_anew(copied: Composite) -> None:
    """Owns in a copy what was owned outside of what was copied, and counts the uses of every name."""
    copied.node.taken_apart, copied.node.removal = False, None
    nodes = [node for layer in everything_in(copied) if (node := node_of(layer)) is not None]
    for node in nodes:
        node.uses.clear()
    counted = [(composite, slot) for node in nodes if (composite := node.module()) for slot in list(node.filled())]
    called = {id(slot) for _, slot in wired_sites(copied)}
    counted = [(composite, slot) for composite, slot in counted if slot.used or id(slot) in called]
    record = Recording(None, [])
    for composite, slot in counted:
        node = composite.node
        if slot.layer is not None and home_of(composite, slot).node.children.get(slot.name) is not slot.layer:
            node.fill(slot, slot.layer, node.unused(slot.name), None)
        slot.used = False
        count_in(record, composite, slot)


def path_of(home: Composite, name: str) -> str:
    """The path of what `home` owns as `name`."""
    return ".".join(filter(None, [home.path, name]))
