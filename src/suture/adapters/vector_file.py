"""A file of named tensors that says what it is: safetensors, written whole or not at all."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor


def write_vectors(path: Path, tensors: Mapping[str, Tensor], kind: str) -> None:
    """Writes tensors beside `path` and moves them there, so that an interruption leaves an older file whole."""
    contents = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with tempfile.TemporaryDirectory(prefix=".saving-", dir=path.absolute().parent) as folder:
        beside = Path(folder, path.name)
        safetensors.torch.save_file(contents, beside, metadata={"format": kind, "version": "1"})
        beside.replace(path)


def read_vectors(path: Path, kind: str) -> dict[str, Tensor]:
    """Reads the tensors of a file that `write_vectors` wrote.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is truncated, not safetensors, or of another kind.
    """
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    try:
        opened: Any = safetensors.safe_open(path, framework="pt")
        with opened as file:
            metadata: dict[str, str] = file.metadata() or {}
            found = metadata.get("format")
            if found != kind:
                raise ValueError(f"{path} is a safetensors file of the format {found!r}, where {kind!r} is wanted.")
            return {name: file.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  # it is no mapping
    except safetensors.SafetensorError as error:
        raise ValueError(
            f"{path} cannot be read as safetensors ({error}). Is it truncated, or another file?"
        ) from error
