"""What an edit leaves uncalled leaves the ownership too, and waits with the edit.

A layer that is not called any more stays a home while something that is still called is owned inside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from suture.layers.node import Node, node_of
from suture.layers.recording import Recording
from suture.layers.swaps import Swap, sites_in, wired_sites

if TYPE_CHECKING:
    from suture.layers.composite import Composite
    from suture.layers.swaps import Site


def release_what_left(change: Swap, record: Recording, old: nn.Module) -> None:
    """Takes out of the ownership what is not called any more, wherever it is owned."""
    called: set[tuple[int, str]] = set()
    if change.new is not None:
        called.add((id(change.slot.home or change.composite), change.slot.name))
    called |= {(id(slot.home or composite), slot.name) for composite, slot in sites_in(change.new)}
    here = (id(change.home), change.old_name)
    if change.old_stays_owned:
        if here not in called and not is_called_elsewhere(change, change.home, change.old_name):
            _release_inside(change, record, old, called)
    elif here not in called and not is_called_elsewhere(change, change.home, change.old_name):
        _release(change, record, change.home.node, change.old_name)
    for composite, slot in sites_in(old):
        if slot.home is None or (id(slot.home), slot.name) in called or is_owned_in((composite, slot), old):
            continue
        if not is_called_elsewhere(change, slot.home, slot.name):
            _release(change, record, slot.home.node, slot.name)


def _release(change: Swap, record: Recording, node: Node, name: str) -> None:
    """Releases a name, and a home with it that is not called and now holds nothing."""
    layer = node.children.get(name)
    if layer is None:
        return
    change.released.append((node, name, layer))
    record.disown(node, name, change)
    if not node.children and node.owner is not None and not _is_called(node):
        _release(change, record, node.owner.node, node.name)


def _release_inside(change: Swap, record: Recording, home: nn.Module, called: set[tuple[int, str]]) -> None:
    """Of a layer that stays as a home, releases what is owned in it and not called."""
    node = node_of(home)
    homes = {identity for identity, _ in called}
    for name, child in list(node.children.items()) if node is not None else ():
        if node is None or child is None or (id(home), name) in called:
            continue
        if any(id(module) in homes for module in child.modules()):
            _release_inside(change, record, child, called)
        else:
            change.released.append((node, name, child))
            record.disown(node, name, change)


def _is_called(node: Node) -> bool:
    """Whether a composite is called from the root of its tree; a home may only be owned."""
    while (parent := node_of(node.parent)) is not None:
        node = parent
    return node.owner is None


def is_called_elsewhere(change: Swap, home: Composite, name: str) -> bool:
    """Whether what `home` owns as `name` is called at another place of the tree too.

    Only an edit that called it twice can bring that about, and then it is called away from its home.
    """
    if home is change.composite:
        return False
    root = change.composite
    while (parent := root.node.parent) is not None:
        root = parent
    return any(
        other is not change.slot and other.name == name and (other.home or composite) is home
        for composite, other in wired_sites(root)
    )


def is_owned_in(site: Site, old: nn.Module) -> bool:
    """Whether the layer at a site is owned inside `old`, directly or deeper."""
    owner: Composite | None = site[1].home or site[0]
    while owner is not None:
        if owner is old:
            return True
        owner = owner.node.owner
    return False
