"""Every place of any model, inside composites and plain modules alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from suture.layers.composite import Composite
from suture.layers.mount import Mount, mount
from suture.layers.navigation import path_below
from suture.layers.node import Slot, children_of


@dataclass(frozen=True)
class AnyPlace:
    """A layer where it stands: its path, the composite or plain module that has it, and how deep it is."""

    path: str
    layer: nn.Module
    parent: nn.Module
    slot: Slot | None
    """Where a composite calls it; None for a layer that a plain module has, until that place is edited."""
    depth: int


def places_in(model: nn.Module) -> Iterator[AnyPlace]:
    """Every layer of a model, depth first: as composites call them, and as plain modules have them.

    A mount is no layer of its own: what stands in it stands in the plain module.

    >>> from suture import layers as sl
    >>> [place.path for place in places_in(nn.Sequential(nn.ReLU(), sl.Chain(up=nn.Linear(2, 4))))]
    ['0', '1', '1.up']
    """
    yield from _below(model, "", 1, {})


def open_place(parent: nn.Module, slot: Slot | None, path: str) -> tuple[Composite, Slot]:
    """The composite and the slot in which what stands at a place can be edited; a plain module's gets a mount."""
    if isinstance(parent, Composite) and slot is not None:
        return parent, slot
    around, _, name = path.rpartition(".")
    mounted = mount(parent, name, around)
    return mounted, mounted.node.slot_at(0)


def _below(module: nn.Module, path: str, depth: int, paths: dict[int, str]) -> Iterator[AnyPlace]:
    """The places below a module; `paths` has the path of every composite and plain module that was entered."""
    if isinstance(module, Composite):
        paths[id(module)] = path
        for slot in list(module.node.filled()):
            if slot.layer is not None:
                inner = AnyPlace(_path_of(module, slot, paths), slot.layer, module, slot, depth)
                yield inner
                yield from _below(slot.layer, inner.path, depth + 1, paths)
    elif id(module) not in paths:
        # A plain module that stands at two places has each of its layers once.
        paths[id(module)] = path
        for name, child in children_of(module).items():
            if isinstance(child, Mount):
                yield from _below(child, path, depth, paths)
            else:
                inner = AnyPlace(_joined(path, name), child, module, None, depth)
                yield inner
                yield from _below(child, inner.path, depth + 1, paths)


def _path_of(composite: Composite, slot: Slot, paths: dict[int, str]) -> str:
    home = composite if slot.home is None else slot.home
    name = home.logical_name(slot.name) if isinstance(home, Mount) else slot.name
    return _joined(path_below(home, paths), name)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
