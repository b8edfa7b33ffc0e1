"""A folder with the weights of a model: those of the model and those of each adapter in files of their own.

`suture.json` says which files there are. New files are written beside the old ones; replacing `suture.json` by one that
says where they are is the moment from which they count, and then they take the names of the old ones. Wherever this
stops, what is read from the folder is all that was saved before or all that is new.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from urllib.parse import quote

import torch
from torch import nn

from suture.weights.checkpoint import CheckpointError, MissingFileError
from suture.weights.folder import read_json
from suture.weights.loading import fold
from suture.weights.parts import StoredPlace, parts_of
from suture.weights.safe_file import TensorFile, flush, open_tensors, write_tensors

MANIFEST = "suture.json"
VERSION = 1
STAGING = ".suture-saving-"


def save(model: nn.Module, path: Path | str) -> None:
    """Saves the weights of a model: `base.safetensors`, and a file for all adapters of one class and name.

    The keys are those of the model without its adapters, on plain modules too; a tensor that several layers share is
    saved once. What was saved in the folder before is replaced as a whole, or stays whole where saving fails.

    Args:
        model: Any module, edited or not.
        path: A folder, made where it does not exist. Other files in it are left alone.

    Raises:
        CheckpointError: `path` is a file, or something of the model cannot be stored; nothing was written.

    Example:
        >>> from suture import layers as sl
        >>> model = sl.Chain(sl.Linear(2, 2), sl.Linear(2, 2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(model, folder)
        ...     sorted(path.name for path in Path(folder).iterdir())
        ['base.safetensors', 'suture.json']
    """
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is a file, so no model can be saved into it. Give a folder.")
    parts = parts_of(model)
    files = _file_names(parts)
    folder.mkdir(parents=True, exist_ok=True)
    before: Mapping[str, str] = _take_names(folder) if (folder / MANIFEST).exists() else {}
    staging = Path(tempfile.mkdtemp(prefix=STAGING, dir=folder))
    try:
        for part, file in files.items():
            tensors = {place.keys[0]: place.tensor for place in parts[part]}
            write_tensors(staging / file, tensors, {"format": "pt", "part": part})
        flush(folder)
        _Manifest(files, staging.name).write(folder)
    except BaseException:
        _clear(folder)
        raise
    _take_names(folder)
    for file in set(before.values()) - set(files.values()):
        (folder / file).unlink(missing_ok=True)


def load(model: nn.Module, path: Path | str) -> None:
    """Loads what `save` wrote into a model with the same layers and adapters.

    Every tensor is written in place, in the model's dtype and on its device: shared tensors stay shared. Nothing is
    written before everything is known to fit.

    Args:
        model: Any module. Its adapters are those of the saved model, by class and name.
        path: The folder.

    Raises:
        MissingFileError: There is no such folder, or a file is missing in it.
        CheckpointError: The model has keys that the files lack, lacks some that they have, or has them in another
            shape or kind; the folder has adapters that the model lacks, or the other way round; a file is damaged.
            Each is named, and the model is as it was.

    Example:
        >>> from suture import layers as sl
        >>> model, other = sl.Linear(2, 3), sl.Linear(2, 3)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(model, folder)
        ...     load(other, folder)
        >>> torch.equal(model.weight, other.weight)
        True
    """
    folder = Path(path)
    manifest, parts = _Manifest.read(folder), parts_of(model)
    complaints = [
        f"{file} has the weights of {part}, which is not in the model"
        for part, file in manifest.files.items()
        if part not in parts
    ]
    complaints += [f"{part} is in the model and has no file" for part in parts if part not in manifest.files]
    for part in parts.keys() & manifest.files:
        with open_tensors(manifest.path(folder, part)) as file:
            complaints += (f"{manifest.files[part]} {complaint}" for complaint in _compare(file, parts[part]))
    if complaints:
        raise CheckpointError(
            f"The weights in {folder} are not those of this model: {'; '.join(sorted(complaints))}. Nothing was "
            "loaded. Make the edits and inject the adapters that the saved model had, then load."
        )
    for part, places in parts.items():
        with open_tensors(manifest.path(folder, part)) as file, torch.no_grad():
            stored = set(file.keys())
            for place in places:
                place.tensor.copy_(file.get_tensor(next(key for key in place.keys if key in stored)))


def _compare(file: TensorFile, places: Iterable[StoredPlace]) -> list[str]:
    """What of a file does not fit the tensors of a model."""
    stored = set(file.keys())
    missing: list[str] = []
    complaints: list[str] = []
    for place in places:
        found = [key for key in place.keys if key in stored]
        stored -= set(found)
        if not found:
            missing.append(place.keys[0])
            continue
        for key in found:
            shape, kind = file.get_slice(key).get_shape(), file.get_slice(key).get_dtype()
            if shape != list(place.tensor.shape):
                complaints.append(f"has {key} as {shape} where {list(place.tensor.shape)} is expected")
            elif place.tensor.is_floating_point():
                if not kind.startswith(("F", "BF")):
                    complaints.append(f"has {key} as {kind} where {place.tensor.dtype} is expected")
            elif file.get_tensor(key).dtype != place.tensor.dtype:
                complaints.append(f"has {key} as {kind} where {place.tensor.dtype} is expected")
        differing = [key for key in found[1:] if not torch.equal(file.get_tensor(key), file.get_tensor(found[0]))]
        complaints += [f"has other values for {key} than for {found[0]}, which are one tensor" for key in differing]
    complaints += [f"lacks {fold(missing)}"] if missing else []
    return complaints + ([f"has {fold(sorted(stored))}, which the model has not"] if stored else [])


def _file_names(parts: Iterable[str]) -> dict[str, str]:
    """A file for every part, under names that any file system takes and tells apart."""
    files: dict[str, str] = {}
    for part in parts:
        stem = name = quote(part, safe=" +")
        number = 2
        while any(name.casefold() == Path(file).stem.casefold() for file in files.values()):
            name, number = f"{stem}-{number}", number + 1
        files[part] = f"{name}.safetensors"
    return files


@dataclass(frozen=True)
class _Manifest:
    """The content of `suture.json`: the file of every part, and the folder in which new files wait for their names."""

    files: Mapping[str, str]
    pending: str | None = None

    def path(self, folder: Path, part: str) -> Path:
        """Where the file of a part is now."""
        waiting = folder / (self.pending or "") / self.files[part]
        return waiting if waiting.is_file() else folder / self.files[part]

    def write(self, folder: Path) -> None:
        content = {"format": "suture", "version": VERSION, "files": self.files}
        content |= {"pending": self.pending} if self.pending is not None else {}
        beside = folder / f".{MANIFEST}.new"
        beside.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        flush(beside)
        beside.replace(folder / MANIFEST)
        flush(folder)

    @classmethod
    def read(cls, folder: Path) -> _Manifest:
        path = folder / MANIFEST
        if not path.is_file():
            raise MissingFileError(f"There is no {path}, so {folder} is no folder that suture.save wrote.")
        content = read_json(path)
        if content.get("format") != "suture" or content.get("version") != VERSION:
            raise CheckpointError(
                f"{path} is of the format {content.get('format')!r} and version {content.get('version')!r}, where "
                f"'suture' and {VERSION} can be read. Was it saved by a newer version?"
            )
        files, pending = content.get("files"), content.get("pending")
        named = [*cast("dict[str, object]", files).values()] if isinstance(files, dict) else [None]
        named += [pending] if pending is not None else []
        if not all(isinstance(name, str) and name not in ("", "..") and Path(name).name == name for name in named):
            raise CheckpointError(f"{path} does not name the files that belong to it. Save the model again.")
        return cls(cast("dict[str, str]", files), cast("str | None", pending))


def _take_names(folder: Path) -> Mapping[str, str]:
    """Gives new files that count already the names of the old ones."""
    manifest = _Manifest.read(folder)
    if manifest.pending is not None:
        for file in manifest.files.values():
            waiting = folder / manifest.pending / file
            if waiting.is_file():
                waiting.replace(folder / file)
        flush(folder)
        _Manifest(manifest.files).write(folder)
    _clear(folder)
    return manifest.files


def _clear(folder: Path) -> None:
    """Takes away what a saving that failed left, unless it counts."""
    counts = _Manifest.read(folder).pending if (folder / MANIFEST).exists() else None
    for left in folder.glob(f"{STAGING}*"):
        if left.name != counts:
            shutil.rmtree(left, ignore_errors=True)
