"""The dtype, device and mode of a place, which what is put there takes on."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from suture.layers.node import Slot, node_of

if TYPE_CHECKING:
    from suture.layers.composite import Composite

_NEAR = 64
"""How many modules are looked at on each level for a parameter that tells the dtype and device of a place."""


@dataclass(frozen=True)
class Placing:
    """What a layer takes on where it is put."""

    dtype: torch.dtype | None
    device: torch.device | None
    training: bool


def place_of(composite: Composite, slot: Slot) -> Placing:
    """What the layer in this slot has, else its siblings, else the layers around."""
    around: nn.Module | None = composite
    reference = _first_floating(slot.layer) if slot.layer is not None else None
    while reference is None and around is not None:
        reference = _first_floating(around)
        node = node_of(around)
        around = node.parent if node is not None else None
    if reference is None:
        return Placing(None, None, composite.training)
    return Placing(reference.dtype, reference.device, composite.training)


def place_beside(layer: nn.Module, model: nn.Module) -> Placing:
    """What a layer of a model has, where a new one is called beside it."""
    reference = _first_floating(layer)
    reference = _first_floating(model) if reference is None else reference
    dtype, device = (None, None) if reference is None else (reference.dtype, reference.device)
    return Placing(dtype, device, layer.training)


def fit(layer: nn.Module, place: Placing, kept: Iterable[nn.Module | None]) -> None:
    """Gives the new parts of `layer` the dtype, device and mode of its place; what was there before is left alone."""
    for part in _new_parts(layer, {id(other) for other in kept}):
        is_leaf = node_of(part) is None
        if is_leaf:
            part.train(place.training)
        else:
            part.training = place.training
        tensors = [*part.parameters(recurse=is_leaf), *part.buffers(recurse=is_leaf)]
        if place.device is None or not tensors or any(tensor.is_meta for tensor in tensors):
            continue
        if is_leaf:
            part.to(place.device, place.dtype)
        else:
            # A composite's own tensors alone: what it calls has its turn, or was there before.
            for tensor in tensors:
                tensor.data = tensor.data.to(place.device, place.dtype if tensor.is_floating_point() else None)


def _new_parts(layer: nn.Module, kept: set[int]) -> Iterator[nn.Module]:
    """The layer and what is wired in it, without what was kept and the leaves that a structural copy shares."""
    if id(layer) in kept:
        return
    yield layer
    node = node_of(layer)
    for slot in node.filled() if node is not None else ():
        shared = node is not None and node.shares_leaves and node_of(slot.layer) is None
        if slot.layer is not None and not shared:
            yield from _new_parts(slot.layer, kept)


def _first_floating(layer: nn.Module) -> Tensor | None:
    """A parameter near by: the search is bounded, so that an edit does not cost the size of the model."""
    for module in itertools.islice(_modules(layer), _NEAR):
        # Past torch's generators, which cost more than all else in an edit.
        parameters: dict[str, Tensor | None] = vars(module)["_parameters"]
        for tensor in parameters.values():
            if tensor is not None and tensor.is_floating_point():
                return tensor
    return None


def _modules(layer: nn.Module) -> Iterator[nn.Module]:
    """The layer and all that it owns, without going through the children of a wide one to find the first."""
    yield layer
    waiting: list[Iterator[nn.Module | None]] = [iter(vars(layer)["_modules"].values())]
    while waiting:
        module = next(waiting[-1], layer)
        if module is layer:
            waiting.pop()
        elif module is not None:
            yield module
            waiting.append(iter(vars(module)["_modules"].values()))
