"""A file of named vectors that says what it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from suture.weights.checkpoint import CheckpointError
from suture.weights.safe_file import read_tensors, write_tensors


def write_vectors(path: Path, tensors: Mapping[str, Tensor], kind: str) -> None:
    """Writes tensors to a safetensors file of a kind, whole or not at all."""
    write_tensors(path, tensors, {"format": kind, "version": "1"})


def read_vectors(path: Path, kind: str) -> dict[str, Tensor]:
    """Reads the tensors of a file that `write_vectors` wrote.

    Raises:
        MissingFileError: There is no such file.
        CheckpointError: It is truncated, not safetensors, or of another kind.
    """
    tensors, metadata = read_tensors(path)
    found = metadata.get("format")
    if found != kind:
        raise CheckpointError(f"{path} is a safetensors file of the format {found!r}, where {kind!r} is wanted.")
    return tensors
