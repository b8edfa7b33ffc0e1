"""A file of named tensors: safetensors, written whole or not at all.

Format: https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

from torch import Tensor

from suture.weights.checkpoint import CheckpointError, MissingFileError


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Writes a safetensors file, which takes the place of an older one when all of it is on the disk.

    The new file is written beside the old one, flushed and then renamed: a crash on the way leaves the old one whole. A
    view is stored at its own size, and what has two names is stored under both; who wants one copy gives one name.

    Args:
        path: Its folder is made where it does not exist.
        tensors: Of any shape, on any device.
        metadata: What the file says about itself.

    Raises:
        CheckpointError: A tensor has no values or a type that safetensors does not know, or `path` is a folder. Nothing
            was written.

    Example:
        >>> import torch
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "some.safetensors")
        ...     write_tensors(path, {"row": torch.arange(6.0).reshape(2, 3)[1]}, {"kind": "example"})
        ...     read_tensors(path)
        ({'row': tensor([3., 4., 5.])}, {'kind': 'example'})
    """
    from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]

    if path.is_dir():
        raise CheckpointError(f"{path} is a folder, so no tensors can be written to it. Give the path of a file.")
    without = [name for name, tensor in tensors.items() if tensor.is_meta]
    if without:
        raise CheckpointError(
            f"{path} was not written: {without[0]} and {len(without) - 1} other tensors are on the meta device, where "
            "they have a shape and no values. Load or compute them first."
        )
    contents = {name: _plain(tensor) for name, tensor in without_sharing(tensors).items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".saving-", dir=path.absolute().parent) as folder:
        beside = Path(folder, path.name)
        try:
            save_file(contents, beside, metadata=dict(metadata))
        except KeyError as error:
            kinds = sorted({str(tensor.dtype) for tensor in contents.values()})
            raise CheckpointError(
                f"{path} was not written: safetensors has no type {error}. The tensors are of {', '.join(kinds)}."
            ) from error
        _allow_as_any_new_file(beside)
        flush(beside)
        beside.replace(path)
    flush(path.absolute().parent)


def _allow_as_any_new_file(path: Path) -> None:
    """Gives a file the permissions of any that is made in its folder: safetensors lets nobody else read its files."""
    new = path.with_name("permissions")
    new.touch()
    path.chmod(new.stat().st_mode)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors of a safetensors file, on the CPU, and what the file says about itself.

    Raises:
        MissingFileError: There is no such file.
        CheckpointError: It was cut short or is no safetensors file.
    """
    with open_tensors(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118


class Slice(Protocol):
    """A tensor in an open file, whose values have not been read."""

    def get_shape(self) -> list[int]: ...

    def get_dtype(self) -> str: ...


class TensorFile(Protocol):
    """What safetensors opens; it declares no types itself."""

    def keys(self) -> list[str]: ...

    def metadata(self) -> dict[str, str] | None: ...

    def get_slice(self, name: str, /) -> Slice: ...

    def get_tensor(self, name: str, /) -> Tensor: ...


@contextmanager
def open_tensors(path: Path) -> Generator[TensorFile]:
    """Opens a safetensors file for a block, in which its tensors are read one by one.

    Raises:
        MissingFileError: There is no such file.
        CheckpointError: It was cut short or is no safetensors file.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise MissingFileError(f"There is no file {path}" + (", but a folder." if path.is_dir() else "."))
    try:
        with cast("Any", safe_open(path, framework="pt")) as file:
            yield file
    except (SafetensorError, OSError) as error:
        with path.open("rb") as opened:
            start = opened.read(16)
        raise CheckpointError(
            f"{path} ({path.stat().st_size:,} bytes, starting with {start!r}) cannot be read as safetensors: {error}. "
            "It was cut short or is not what its name says; download or save it again."
        ) from error


def without_sharing(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, each with memory of its own size that no other of them has."""
    seen: set[int] = set()
    own: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        whole = storage.nbytes() == tensor.numel() * tensor.element_size()
        own[name] = tensor if whole and storage.data_ptr() not in seen else tensor.detach().clone()
        seen.add(storage.data_ptr())
    return own


def flush(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    is_folder = path.is_dir()
    if is_folder and os.name == "nt":
        return  # Windows does not open folders, and keeps their names in order itself.
    descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _plain(tensor: Tensor) -> Tensor:
    """Values in memory as they are read: in order, on the CPU, nothing left to be conjugated or negated."""
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
