"""Reading a GGUF file through the `gguf` package, a few rows at a time.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from suture.weights.checkpoint import Checkpoint, CheckpointError, MissingFileError, StoredTensor

if TYPE_CHECKING:
    from gguf.gguf_reader import ReaderField

MAGIC = b"GGUF"
CHUNK = 1 << 20  # elements converted at once: 4 MB in fp32
PLAIN = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file: its metadata is read now, its tensors when they are copied.

    Args:
        path: The file.

    Raises:
        MissingFileError: There is no such file.
        CheckpointError: The file is not GGUF, was cut short, or holds an element type that cannot be read.

    Example:
        >>> from suture.weights.sources import resolve
        >>> checkpoint = open_gguf(resolve("smollm2"))
        >>> checkpoint.architecture, len(checkpoint.tensors), checkpoint.tensors["blk.0.attn_q.weight"].shape
        ('llama', 272, (576, 576))
    """
    if not path.is_file():
        raise MissingFileError(f"There is no file {path}. Check the path.")
    with path.open("rb") as file:
        start = file.read(len(MAGIC))
    if start != MAGIC:
        raise CheckpointError(
            f"{path} is not a GGUF file: it starts with the bytes {start!r} instead of {MAGIC!r}. "
            "Check that the download gave the model itself and not a page or a pointer to it."
        )
    metadata, tensors = _read_header(path)
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise CheckpointError(
            f"{path} does not say which architecture it holds (no general.architecture in its metadata). "
            "Convert the model again with a current converter."
        )
    parts = metadata.get("split.count")
    if isinstance(parts, int) and parts > 1:
        raise CheckpointError(
            f"{path} is one of {parts} parts of a model. Put them together first: "
            f"`llama-gguf-split --merge {path} whole.gguf`."
        )
    return Checkpoint(path, "gguf", architecture, metadata, {tensor.name: tensor for tensor in tensors})


def _read_header(path: Path) -> tuple[dict[str, object], list[GGUFTensor]]:
    from gguf import GGML_QUANT_SIZES, GGUFEndian, GGUFReader

    try:
        # The reader keeps several arrays for each entry of the vocabulary, so it is dropped as soon as the values are
        # plain Python, and the tensors are read from the file itself.
        reader = GGUFReader(path)
        metadata = {name: _value(field) for name, field in reader.fields.items()}
        little = reader.endianess == GGUFEndian.LITTLE
        tensors = [
            GGUFTensor(
                name=tensor.name,
                shape=tuple(int(size) for size in reversed(tensor.shape.tolist())),
                kind=tensor.tensor_type.name,
                path=path,
                offset=tensor.data_offset,
                block=GGML_QUANT_SIZES[tensor.tensor_type][0],
                block_bytes=GGML_QUANT_SIZES[tensor.tensor_type][1],
            )
            for tensor in reader.tensors
        ]
    except Exception as error:  # whatever the reader stumbles over, the file is what is wrong
        raise CheckpointError(
            f"{path} ({path.stat().st_size:,} bytes) starts like a GGUF file but cannot be read to its end: "
            f"{type(error).__name__}: {error}. It was probably cut short; download it again."
        ) from error
    if not little:
        raise CheckpointError(
            f"{path} is a big-endian GGUF file, which is not supported. "
            f"Convert it with `gguf-convert-endian {path} little`."
        )
    for kind in {tensor.kind: tensor for tensor in tensors}.values():
        kind.refuse_unreadable()
    ordered = sorted(tensors, key=lambda tensor: tensor.offset)
    for before, after in pairwise(ordered):
        if before.offset + before.size > after.offset:
            raise CheckpointError(
                f"{path} is damaged: its tensors {before.name} and {after.name} overlap. Download it again."
            )
    return metadata, tensors


def _value(field: ReaderField) -> object:
    from gguf import GGUFValueType

    if field.types == [GGUFValueType.FLOAT32]:
        return float(str(field.parts[-1][0]))  # 1e-05 as it was written, not the double nearest to its float32
    return field.contents()


@dataclass(frozen=True)
class GGUFTensor(StoredTensor):
    """A tensor of a GGUF file, dequantised by the `gguf` package while it is copied.

    Attributes:
        offset: Where its bytes start in the file.
        block: How many elements are stored together.
        block_bytes: How many bytes such a block takes.
    """

    offset: int
    block: int
    block_bytes: int

    @property
    def size(self) -> int:
        """How many bytes it takes in the file."""
        return math.prod(self.shape) // self.block * self.block_bytes

    def copy_to(self, destination: torch.Tensor) -> None:
        view = destination.reshape(1) if destination.dim() == 0 else destination
        rows = view.shape[0]
        step = max(CHUNK // max(view.numel() // max(rows, 1), 1), 1)
        with self.path.open("rb") as file:
            file.seek(self.offset)
            for start in range(0, rows, step):
                part = view[start : start + step]
                size = part.numel() // self.block * self.block_bytes
                content = bytearray(size)
                found = file.readinto(content)
                if found != size:
                    raise CheckpointError(
                        f"{self.path} ends in the middle of the tensor {self.name}: "
                        f"{size:,} bytes were expected and {found:,} found. Download it again."
                    )
                part.copy_(self._values(content).view(part.shape))

    def refuse_unreadable(self) -> None:
        """Raise where values of this element type cannot be read, before any is.

        Raises:
            CheckpointError: Neither torch nor the `gguf` package reads the element type.
        """
        try:
            self._values(bytearray(self.block_bytes))
        except NotImplementedError as error:
            raise CheckpointError(
                f"{self.path} holds the tensor {self.name} as {self.kind}, which the installed gguf package cannot "
                "dequantise. Take a file of another quantisation, such as Q8_0 or Q4_K_M, or a newer gguf package."
            ) from error

    def _values(self, content: bytearray) -> torch.Tensor:
        if self.kind in PLAIN:
            return torch.frombuffer(content, dtype=PLAIN[self.kind])
        import numpy as np
        from gguf import GGMLQuantizationType, quants

        blocks = np.frombuffer(content, dtype=np.uint8).reshape(1, -1)
        return torch.from_numpy(quants.dequantize(blocks, GGMLQuantizationType[self.kind]))
