"""The file of LoRAs: their weights by the path of what they adapt, and how each was made.

In the file a weight is called as it is in the model: `blocks.0.query+LoRA.lora.down.weight`. Paths are names, which no
edit changes, so the file fits a model in which blocks were inserted or removed since.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from suture import layers as sl
from suture.adapters.lora import LoRA, LoRAs
from suture.layers.edit import editing
from suture.surgery.selection import select
from suture.surgery.survey import Match, SelectionError
from suture.weights.checkpoint import CheckpointError
from suture.weights.safe_file import read_tensors, write_tensors

FORMAT = "suture.lora"
VERSION = "1"


@dataclass(frozen=True)
class StoredLoRA:
    """What is known of a LoRA that is in a file.

    Attributes:
        target: The path of the layer that it adapts.
        arguments: How it was made, besides the layer.
        weights: The tensors of its branch, by their keys there.
    """

    target: str
    arguments: dict[str, Any]
    weights: dict[str, Tensor]


def save(adapters: Sequence[LoRA], path: Path) -> None:
    """Writes LoRAs to a file, whole or not at all. Raises `ValueError` for one that was never injected."""
    tensors: dict[str, Tensor] = {}
    entries: list[dict[str, object]] = []
    for adapter in adapters:
        if adapter.target_path is None:
            raise ValueError(
                f"The LoRA {adapter.adapter_name!r} was never injected, so there is no path to save it by."
            )
        entries.append({"target": adapter.target_path, "arguments": adapter.arguments})
        prefix = _prefix(adapter.target_path, adapter.adapter_name)
        tensors |= {f"{prefix}{name}": tensor for name, tensor in adapter.branch.state_dict().items()}
    write_tensors(path, tensors, {"format": FORMAT, "version": VERSION, "adapters": json.dumps(entries)})


def read(path: Path) -> list[StoredLoRA]:
    """Reads the LoRAs of a file. Raises `CheckpointError` for one that is damaged, or not of LoRAs."""
    tensors, metadata = read_tensors(path)
    found = (metadata.get("format"), metadata.get("version"))
    if found != (FORMAT, VERSION):
        raise CheckpointError(
            f"{path} is a file of the format {found[0]!r}, version {found[1]!r}. LoRA.load reads {FORMAT!r}, version "
            f"{VERSION!r}, as group.save() writes it."
        )
    try:
        stored = [_stored(entry, tensors) for entry in cast("list[dict[str, Any]]", json.loads(metadata["adapters"]))]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} does not say how its LoRAs were made: {error!r}.") from error
    if tensors:
        raise CheckpointError(f"{path} has tensors of no LoRA that it names: {', '.join(list(tensors)[:8])}.")
    return stored


def put_in(model: nn.Module, stored: Sequence[StoredLoRA], source: Path) -> LoRAs:
    """Injects LoRAs that were read from `source`, at the places that they were saved for; all or none.

    Raises:
        SelectionError: the model has no layer at a path.
        ValueError: a layer is of another shape, or not one that can be adapted.
    """
    while isinstance(model, sl.Composite) and model.parent is not None:
        model = model.parent
    places: dict[str, Match] = {match.path: match for match in select(model, "**")}
    missing = [each.target for each in stored if each.target not in places]
    if missing:
        near = get_close_matches(missing[0], places, n=3, cutoff=0)
        raise SelectionError(
            f"{type(model).__name__} has no layer at {', '.join(map(repr, missing[:8]))}"
            f"{f' and {len(missing) - 8} more' if len(missing) > 8 else ''}, for which {source} has a LoRA. Nothing "
            f"was loaded. Near are: {', '.join(near)}."
        )
    with editing(model):
        return LoRAs([_inject(places[each.target], each, source) for each in stored])


def _inject(place: Match, stored: StoredLoRA, source: Path) -> LoRA:
    trouble = f"{source} has a LoRA that does not fit the {type(place.layer).__name__} at {place.path!r}"
    try:
        adapter = LoRA(place.layer, **stored.arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{trouble}: {error} Nothing was loaded.") from error
    own = adapter.branch.state_dict()
    for name in {**own, **stored.weights}:
        found = tuple(stored.weights[name].shape) if name in stored.weights else "nothing"
        wanted = tuple(own[name].shape) if name in own else "nothing"
        if found != wanted:
            raise ValueError(
                f"{trouble}: for its {name} there is {found}, where {wanted} is wanted. Was it made for another model? "
                f"Nothing was loaded."
            )
    adapter.inject_at(*place.open(), place.path)
    # Only now, in the dtype of its place.
    adapter.branch.load_state_dict(stored.weights)
    return adapter


def _stored(entry: dict[str, Any], tensors: dict[str, Tensor]) -> StoredLoRA:
    """The LoRA of an entry, whose tensors are taken out of those of the file."""
    arguments = dict(entry["arguments"])
    if arguments["dtype"] is not None:
        arguments["dtype"] = _dtype(arguments["dtype"])
    prefix = _prefix(entry["target"], arguments["name"])
    names = [name for name in tensors if name.startswith(prefix)]
    return StoredLoRA(entry["target"], arguments, {name.removeprefix(prefix): tensors.pop(name) for name in names})


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is no dtype")
    return dtype


def _prefix(target: str, name: str) -> str:
    return f"{target}+LoRA.{name}."
