"""Which tensor of a model belongs to what: to the model itself, or to one of its adapters."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import cast

from torch import Tensor, nn

from suture.layers.mount import logical_keys
from suture.layers.node import children_of, node_of
from suture.surgery.adapter import Adapter
from suture.weights.checkpoint import CheckpointError
from suture.weights.loading import fold

BASE = "base"
"""What is of the model and not of an adapter."""


@dataclass
class StoredPlace:
    """A tensor of a model, and every key that it has: several where it is tied."""

    tensor: Tensor
    keys: list[str] = field(default_factory=list[str])


def parts_of(model: nn.Module) -> dict[str, list[StoredPlace]]:
    """The tensors of a model by the part that they belong to: `BASE`, or the class and name of an adapter.

    Keys are those of the bare model for what it had, whatever is put around it, also on plain modules and under
    `torch.compile`. What the model shares with an adapter is the model's.

    Raises:
        CheckpointError: A tensor has no values here, or the model keeps something that is no tensor.

    Example:
        >>> from suture import layers as sl
        >>> {part: [place.keys for place in places] for part, places in parts_of(sl.Linear(2, 2)).items()}
        {'base': [['weight'], ['bias']]}
    """
    adapted, logical = _Adapted(model), logical_keys(model)
    found: dict[object, tuple[str, StoredPlace]] = {}
    for key, tensor in _state(model).items():
        part = adapted.part_of(key)
        known, place = found.setdefault(_identity(tensor), (part, StoredPlace(tensor)))
        name = logical[key].replace("_orig_mod.", "")
        if part == BASE != known:
            found[_identity(tensor)] = (BASE, place)
            place.keys.insert(0, name)
        else:
            place.keys.append(name)
    parts: dict[str, list[StoredPlace]] = {BASE: []}
    for part, place in found.values():
        parts.setdefault(part, []).append(place)
    _refuse_equal_keys(parts)
    return parts


def _state(model: nn.Module) -> dict[str, Tensor]:
    state: dict[str, object] = model.state_dict(keep_vars=True)
    for key, value in state.items():
        if not isinstance(value, Tensor) or key.rpartition(".")[2] == "_extra_state":
            reason = f"it is a {type(value).__name__} from get_extra_state(). Save this model with torch.save"
        elif value.is_meta:
            reason = "it is on the meta device, where it has no values. Call model.to_empty(device=...) first"
        elif hasattr(value, "device_mesh"):
            reason = "it is spread over several processes. Use torch.distributed.checkpoint, on model.state_dict()"
        else:
            continue
        raise CheckpointError(f"{key} has no place in a file of tensors: {reason}.")
    return cast("dict[str, Tensor]", state)


def _identity(tensor: Tensor) -> object:
    """What is equal for two names of one tensor."""
    if not tensor.numel():
        return id(tensor)
    return tensor.device, tensor.dtype, tensor.data_ptr(), tensor.shape, tensor.stride()


class _Adapted:
    """What the adapters of a model brought."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._parts: dict[int, str] = {}
        """The adapter, by class and name, of each layer that one brought, by identity."""
        self._given: set[tuple[int, str]] = set()
        """The homes, by identity, and names that adapters gave to what they put in."""
        for module in model.modules():
            if isinstance(module, Adapter):
                self._add(cast("Adapter[nn.Module]", module))
            node = node_of(module)
            for swap in (swap for slot in (node.slots if node is not None else ()) for swap in slot.swaps):
                # An adapter may change a model without standing in it.
                if isinstance(swap.author, Adapter):
                    self._add(cast("Adapter[nn.Module]", swap.author))
                    self._given.add((id(swap.home), swap.new_name))

    def _add(self, adapter: Adapter[nn.Module]) -> None:
        kind = type(adapter).__name__
        part = kind if adapter.adapter_name == kind else f"{kind}.{adapter.adapter_name}"
        self._parts.update((id(layer), part) for layer in adapter.brought)

    def part_of(self, key: str) -> str:
        """The adapter, by class and name, that brought the tensor at `key`; `BASE` where none did."""
        around = self._model
        part = self._parts.get(id(around), BASE)
        for name in key.split(".")[:-1]:
            module = children_of(around)[name]
            if id(module) in self._parts:
                # A layer of an adapter may be put in elsewhere, and one of the model may be called by an adapter.
                is_own = id(around) in self._parts or (id(around), name) in self._given
                part = self._parts[id(module)] if is_own else BASE
            elif node_of(around) is not None:
                part = BASE
            around = module
        return part


def _refuse_equal_keys(parts: dict[str, list[StoredPlace]]) -> None:
    counts = Counter(key for places in parts.values() for place in places for key in place.keys)
    twice = [key for key, count in counts.items() if count > 1]
    if twice:
        raise CheckpointError(
            f"Without the names of what edits put around layers, several tensors have the key {fold(twice)}. Give the "
            "layers that were put in other names."
        )
