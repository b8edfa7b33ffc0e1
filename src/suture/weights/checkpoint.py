"""A checkpoint as a mapping of names to tensors that are read only when they are copied to their place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch


class CheckpointError(ValueError):
    """A checkpoint cannot be found, read, understood or written; the message says which file and what to do."""


class MissingFileError(CheckpointError, FileNotFoundError):
    """A checkpoint, or a file that belongs to it, is not there."""

    def __str__(self) -> str:
        return ValueError.__str__(self)  # OSError would format an errno that there is not


@dataclass(frozen=True)
class StoredTensor(ABC):
    """A tensor in a file: its shape and element type are known, its values are still on the disk.

    Attributes:
        name: The name the file gives it.
        shape: Its shape in torch's order, the slowest moving dimension first.
        kind: The element type in the file's own words (`F32`, `BF16`, `Q4_1`), for messages.
        path: The file that holds it.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    path: Path

    @abstractmethod
    def copy_to(self, destination: torch.Tensor) -> None:
        """Read the values into `destination`, converted to its dtype and device.

        `destination` may be any view with as many elements as the tensor: its elements in row-major order are the
        file's. No copy of the whole tensor is made in another dtype on the way.

        Raises:
            CheckpointError: The values cannot be read, because the file is damaged or was cut short.
        """


@dataclass(frozen=True)
class Checkpoint:
    """What a model was saved as.

    Attributes:
        path: The folder or file, for messages.
        format: How tensors are named and laid out: `transformers` or `gguf`.
        architecture: The family in the format's own words, such as `llama`.
        metadata: The content of `config.json`, or the key and value pairs of a GGUF file.
        tensors: Every stored tensor by name, in the file's order.
    """

    path: Path
    format: Literal["transformers", "gguf"]
    architecture: str
    metadata: Mapping[str, object]
    tensors: Mapping[str, StoredTensor]
