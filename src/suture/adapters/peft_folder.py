"""LoRAs as PEFT saves them: a folder with adapter_config.json and adapter_model.safetensors.

Format: https://huggingface.co/docs/peft/developer_guides/checkpoint
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from suture.adapters.lora_file import StoredLoRA
from suture.generation.causal_lm import CausalLM
from suture.weights.checkpoint import CheckpointError, MissingFileError
from suture.weights.names import as_is
from suture.weights.safe_file import read_tensors

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

USED = {"peft_type", "r", "lora_alpha", "lora_dropout", "use_rslora", "rank_pattern", "alpha_pattern"}
"""The fields that are read."""

IGNORED = {
    *("auto_mapping", "base_model_name_or_path", "eva_config", "exclude_modules", "fan_in_fan_out", "inference_mode"),
    *("init_lora_weights", "layers_pattern", "layers_to_transform", "loftq_config", "megatron_config"),
    *("megatron_core", "peft_version", "qalora_group_size", "revision", "runtime_config", "target_modules"),
    "task_type",
}
"""The fields that say nothing about the numbers beside what the names and shapes of the tensors say."""

KEEPS_BASE = (True, False, "gaussian", "eva", "orthogonal")
"""The ways of starting that leave the base weights as they are; others (PiSSA, OLoRA) changed those of the model."""

_KEY = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")


def read(model: nn.Module, folder: Path) -> list[StoredLoRA]:
    """Reads the LoRAs of a folder of PEFT, for a model whose names they fit or can be translated to.

    Raises:
        MissingFileError: a file is missing.
        CheckpointError: a file is damaged, or something in it is not understood.
    """
    config = _read_config(folder / CONFIG)
    tensors, _ = read_tensors(folder / WEIGHTS)
    pairs: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        found = _KEY.fullmatch(key)
        if found is None:
            raise CheckpointError(f"{folder / WEIGHTS} has a tensor that is not understood: {key}. Nothing was loaded.")
        pairs.setdefault(found[1], {})[{"A": "down", "B": "up"}[found[2]]] = tensor
    return [each for name, pair in pairs.items() for each in _stored(model, name, pair, config, folder)]


def _stored(
    model: nn.Module, name: str, pair: Mapping[str, Tensor], config: Mapping[str, Any], folder: Path
) -> Iterator[StoredLoRA]:
    """The LoRA of one layer of transformers: several where the tree has the layer in parts."""
    rank = int(_of_layer(config.get("rank_pattern"), name, config["r"]))
    alpha = float(_of_layer(config.get("alpha_pattern"), name, config.get("lora_alpha", 8)))
    if config.get("use_rslora"):
        alpha *= math.sqrt(rank)  # https://arxiv.org/abs/2312.03732
    arguments = {"rank": rank, "alpha": alpha, "dropout": float(config.get("lora_dropout", 0))}
    weights = {f"{part}.weight": tensor for part, tensor in pair.items()}
    weights["scale.factor"] = torch.tensor(alpha / rank)
    paths = _paths_in(model, name, folder)
    sizes = [_outputs(model, path) for path in paths] if len(paths) > 1 else []
    if sum(sizes) == len(weights.get("up.weight", ())):
        ups: tuple[Tensor, ...] = torch.split(weights["up.weight"], sizes)
        for path, up in zip(paths, ups, strict=True):
            yield StoredLoRA(path, arguments, {**weights, "up.weight": up})
    else:
        yield from (StoredLoRA(path, arguments, weights) for path in paths)


def _paths_in(model: nn.Module, name: str, folder: Path) -> tuple[str, ...]:
    """The paths in the model of a layer that PEFT calls by its name in transformers."""
    if not isinstance(model, CausalLM) or model.description is None:
        return (name,)
    description = model.description
    translated = description.family.names(description.config, "transformers").to_tree(f"{name}.weight")
    # Which way a weight is stored does not matter to a pair of matrices; another order of its rows would.
    if translated is None or translated[1].layout not in (as_is, torch.t, Tensor.t):
        raise CheckpointError(
            f"{folder} has a LoRA for {name}, which is no layer that {description.family.name} has. Nothing was loaded."
        )
    return tuple(key.removesuffix(".weight") for key in translated[0])


def _outputs(model: nn.Module, path: str) -> int:
    return cast("Tensor", model.get_submodule(path).weight).shape[0]


def _of_layer(patterns: Mapping[str, Any] | None, name: str, usual: Any) -> Any:
    """The value of the first pattern that is the end of a layer's name."""
    for pattern, value in (patterns or {}).items():
        if re.fullmatch(rf"(.*\.)?{pattern}", name):
            return value
    return usual


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise MissingFileError(f"{path.parent} is no folder of PEFT: it has no {path.name}.")
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        kind = config["peft_type"]
        _ = int(config["r"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} does not describe LoRAs: {error!r}.") from error
    if kind != "LORA":
        raise CheckpointError(f"{path} describes adapters of the type {kind!r}. Only LORA can be read.")
    if (start := config.get("init_lora_weights", True)) not in KEEPS_BASE:
        raise CheckpointError(
            f"{path} says init_lora_weights = {start!r}: it goes with base weights that were changed as well. Convert "
            f"it with PEFT first: save_pretrained(..., path_initial_model_for_weight_conversion=...)."
        )
    # What is off says nothing; what is on and not known may change the numbers.
    unknown = {
        field: value
        for field, value in config.items()
        if field not in USED | IGNORED and value not in (None, False, "none") and value not in ([], {})
    }
    if unknown:
        raise CheckpointError(
            f"{path} asks for what is not understood: {', '.join(f'{k} = {v!r:.40}' for k, v in unknown.items())}."
        )
    return config
