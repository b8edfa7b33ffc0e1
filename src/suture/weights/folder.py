"""Reading a folder as transformers saves it: `config.json` beside safetensors files, one or several.

Format: https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch

from suture.weights.checkpoint import Checkpoint, CheckpointError, MissingFileError, StoredTensor
from suture.weights.safe_file import open_tensors

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


def open_folder(folder: Path) -> Checkpoint:
    """Open a transformers folder: `config.json` and the safetensors headers are read now, the tensors when copied.

    Args:
        folder: Holds `config.json` and either `model.safetensors` or `model.safetensors.index.json` with its shards.

    Raises:
        MissingFileError: There is no configuration, are no weights, or a shard that the index names is not there.
        CheckpointError: A file is not what its name says or was cut short.

    Example:
        >>> import json, tempfile, torch
        >>> from safetensors.torch import save_file
        >>> with tempfile.TemporaryDirectory() as name:
        ...     folder = Path(name)
        ...     _ = (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
        ...     save_file({"model.norm.weight": torch.arange(3.0)}, folder / "model.safetensors")
        ...     stored = open_folder(folder).tensors["model.norm.weight"]
        ...     place = torch.empty(3, dtype=torch.bfloat16)
        ...     stored.copy_to(place)
        >>> stored.shape, stored.kind, place
        ((3,), 'F32', tensor([0., 1., 2.], dtype=torch.bfloat16))
    """
    if not (folder / CONFIG).is_file():
        raise MissingFileError(
            f"{folder} has no {CONFIG}, so it is not a folder as transformers saves it. It holds {_listing(folder)}."
            + _gguf_hint(folder)
        )
    config = read_json(folder / CONFIG)
    architecture = config.get("model_type")
    if not isinstance(architecture, str):
        raise CheckpointError(f"{folder / CONFIG} does not say which family it is of (no model_type). Add it.")
    if (folder / WEIGHTS).is_file():
        tensors = _stored_tensors(folder / WEIGHTS)
    elif (folder / INDEX).is_file():
        tensors = _sharded_tensors(folder)
    else:
        raise _without_weights(folder)
    return Checkpoint(folder, "transformers", architecture, config, {tensor.name: tensor for tensor in tensors})


def read_json(path: Path) -> dict[str, object]:
    """The content of a JSON file that holds one object.

    Raises:
        CheckpointError: The file is not JSON or holds something else.
    """
    try:
        content: object = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}. Download it again or correct it.") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a JSON {type(content).__name__} where an object is expected.")
    return cast("dict[str, object]", content)


def read_text(path: Path) -> str:
    """The content of a text file.

    Raises:
        CheckpointError: The file is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not text in UTF-8: {error}. Download it again.") from error


def _stored_tensors(path: Path) -> list[SafetensorsTensor]:
    with open_tensors(path) as file:
        slices = [(name, file.get_slice(name)) for name in file.keys()]  # noqa: SIM118, it is no dictionary
        return [SafetensorsTensor(name, tuple(s.get_shape()), s.get_dtype(), path) for name, s in slices]


def _sharded_tensors(folder: Path) -> list[SafetensorsTensor]:
    index = read_json(folder / INDEX)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointError(f"{folder / INDEX} has no weight_map, so it does not say where the weights are.")
    shard_of = cast("dict[str, str]", weight_map)
    shards = sorted({str(shard) for shard in shard_of.values()})
    outside = [shard for shard in shards if Path(shard).name != shard]
    if outside:
        raise CheckpointError(f"{folder / INDEX} names files outside its folder: {_enumerated(outside)}.")
    missing = [shard for shard in shards if not (folder / shard).is_file()]
    if missing:
        raise MissingFileError(
            f"{folder} lacks {len(missing)} of the {len(shards)} files that {INDEX} names: {_enumerated(missing)}. "
            "Download them into the folder."
        )
    tensors = [tensor for shard in shards for tensor in _stored_tensors(folder / shard)]
    stored = {tensor.name: tensor.path.name for tensor in tensors}
    lost = [name for name, shard in shard_of.items() if stored.get(name) != shard]
    if lost:
        raise CheckpointError(
            f"{folder / INDEX} names tensors that are not in the file it gives for them: {_enumerated(lost)}. "
            "The files are of different versions; download the folder again."
        )
    return tensors


def _without_weights(folder: Path) -> CheckpointError:
    pickles = [path.name for path in sorted(folder.iterdir()) if path.suffix in PICKLES]
    if pickles:
        return CheckpointError(
            f"{folder} holds its weights as {_enumerated(pickles)}: pickles, which can run any code when opened and "
            "are never read. Load the folder with transformers and save it again: that writes safetensors."
        )
    return MissingFileError(
        f"{folder} has no weights: neither {WEIGHTS} nor {INDEX}. It holds {_listing(folder)}." + _gguf_hint(folder)
    )


def _gguf_hint(folder: Path) -> str:
    found = sorted(folder.glob("*.gguf"))
    return f" To load a GGUF file, give its own path: {found[0]}." if found else ""


def _listing(folder: Path) -> str:
    return _enumerated(sorted(path.name for path in folder.iterdir())) or "nothing"


def _enumerated(names: Iterable[str], limit: int = 12) -> str:
    names = list(names)
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest


@dataclass(frozen=True)
class SafetensorsTensor(StoredTensor):
    """A tensor of a safetensors file."""

    def copy_to(self, destination: torch.Tensor) -> None:
        # The file is mapped into memory while it is open, and what was touched stays resident: opening it for each
        # tensor keeps no more than one of them there.
        with open_tensors(self.path) as file:
            destination.copy_(file.get_tensor(self.name).view(destination.shape))
