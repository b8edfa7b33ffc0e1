"""The file of LoRAs: their weights by the path of what they adapt, and how each was made.

In the file a weight is called as it is in the model: `blocks.0.query+LoRA.lora.down.weight`. Paths are names, which no
edit changes, so the file fits a model in which blocks were inserted or removed since.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from suture import layers as sl
from suture.adapters.lora import LoRA, LoRAs
from suture.layers.recording import recording
from suture.surgery.selection import select
from suture.surgery.survey import Match, SelectionError
from suture.weights.checkpoint import CheckpointError
from suture.weights.safe_file import read_tensors, write_tensors

FORMAT = "suture.lora"
VERSION = "1"


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
        weights = adapter.branch.state_dict()
        tensors |= {_key(adapter.target_path, adapter.adapter_name, name): each for name, each in weights.items()}
    write_tensors(path, tensors, {"format": FORMAT, "version": VERSION, "adapters": json.dumps(entries)})


def load(model: nn.Module, path: Path) -> LoRAs:
    """Injects the LoRAs of a file at the places that it names; all or none.

    Raises:
        CheckpointError: the file is damaged, or not one of LoRAs.
        SelectionError: the model has no layer at a path.
        ValueError: a layer is of another shape, or not one that can be adapted.
    """
    tensors, entries = _read(path)
    while isinstance(model, sl.Composite) and model.parent is not None:
        model = model.parent
    places: dict[str, Match] = {match.path: match for match in select(model, "**")}
    missing = [target for target, _ in entries if target not in places]
    if missing:
        near = get_close_matches(missing[0], places, n=3, cutoff=0)
        raise SelectionError(
            f"{type(model).__name__} has no layer at {', '.join(map(repr, missing[:8]))}"
            f"{f' and {len(missing) - 8} more' if len(missing) > 8 else ''}, for which {path} has a LoRA. Nothing was "
            f"loaded. Near are: {', '.join(near)}."
        )
    with recording():
        return LoRAs([_inject(places[target], arguments, tensors, path) for target, arguments in entries])


def _inject(place: Match, arguments: Mapping[str, Any], tensors: Mapping[str, Tensor], path: Path) -> LoRA:
    what = f"the {type(place.layer).__name__} at {place.path!r}"
    try:
        adapter = LoRA(place.layer, **arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} has a LoRA that does not fit {what}: {error} Nothing was loaded.") from error
    weights = {name: tensors.get(_key(place.path, adapter.adapter_name, name)) for name in adapter.branch.state_dict()}
    for name, own in adapter.branch.state_dict().items():
        stored = weights[name]
        if stored is None or stored.shape != own.shape:
            found = "is not there" if stored is None else f"is of the shape {tuple(stored.shape)}"
            raise ValueError(
                f"{path} has a LoRA that does not fit {what}: its {name} {found}, where {tuple(own.shape)} is wanted. "
                f"Was it made for another model? Nothing was loaded."
            )
    adapter.inject_at(*place.open())
    # Only now, in the dtype of its place.
    adapter.branch.load_state_dict(weights)
    return adapter


def _read(path: Path) -> tuple[dict[str, Tensor], list[tuple[str, dict[str, Any]]]]:
    """The tensors of a file, and of each LoRA the path of its target and its arguments."""
    tensors, metadata = read_tensors(path)
    found = (metadata.get("format"), metadata.get("version"))
    if found != (FORMAT, VERSION):
        raise CheckpointError(
            f"{path} is a file of the format {found[0]!r}, version {found[1]!r}. LoRA.load reads {FORMAT!r}, version "
            f"{VERSION!r}, as group.save() writes it."
        )
    try:
        entries = [_entry(entry) for entry in cast("list[dict[str, Any]]", json.loads(metadata["adapters"]))]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} does not say how its LoRAs were made: {error!r}.") from error
    known = [f"{target}+LoRA.{arguments['name']}." for target, arguments in entries]
    unknown = [name for name in tensors if not name.startswith(tuple(known))]
    if unknown:
        raise CheckpointError(f"{path} has tensors of no LoRA that it names: {', '.join(unknown[:8])}.")
    return tensors, entries


def _entry(entry: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    arguments = dict(entry["arguments"])
    if arguments["dtype"] is not None:
        arguments["dtype"] = _dtype(arguments["dtype"])
    return entry["target"], arguments


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is no dtype")
    return dtype


def _key(target: str, name: str, weight: str) -> str:
    return f"{target}+LoRA.{name}.{weight}"
