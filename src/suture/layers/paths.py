"""The paths of layers from the root of their tree, and the slots below a composite."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from suture.layers.node import Node, Slot, node_of
from suture.layers.ownership import home_of

if TYPE_CHECKING:
    from suture.layers.composite import Composite


def path_to(node: Node) -> str:
    """The path of a composite."""
    names: list[str] = []
    while (owner := node.owner) is not None:
        names.append(node.name)
        node = owner.node
    return ".".join(reversed(names))


def path_in(home: Composite, name: str) -> str:
    """The path of what `home` owns as `name`."""
    return join(path_to(home.node), name)


def join(around: str, name: str) -> str:
    """The path of what has a path of its own in what is at `around`."""
    return ".".join(filter(None, [around, name]))


def around_path(path: str) -> str:
    """The path of what owns what is at `path`."""
    return path.rpartition(".")[0]


def path_within(name: str, path: str) -> str:
    """A path that begins with `name`, from what has that name."""
    return "" if path == name else path.removeprefix(f"{name}.")


def prefixes(path: str) -> list[str]:
    """The paths of what owns what is at `path`, the outermost first, and `path`."""
    names = path.split(".")
    return [".".join(names[:length]) for length in range(1, len(names) + 1)] if path else []


def slot_path(composite: Composite, slot: Slot) -> str:
    """The path of what a slot holds, or held last, where what owned that may be out of the tree now."""
    names, node = [slot.name], home_of(composite, slot).node
    while (owner := node.last_owner) is not None:
        names.append(node.name)
        node = owner.node
    return ".".join(reversed(names))


def slots_of(composite: Composite) -> Iterator[tuple[Composite, Slot]]:
    """The slots of a composite and of those that it calls, depth first, the empty ones too."""
    for slot in list(composite.node.slots):
        yield composite, slot
        node = node_of(slot.layer)
        inner = node.module() if node is not None else None
        if inner is not None:
            yield from slots_of(inner)
