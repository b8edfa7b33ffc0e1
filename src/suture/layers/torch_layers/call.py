"""How torch's layers are called, for readers and type checkers: torch itself says nothing of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from suture.layers.symbolic import SymbolicCall


class OfOneTensor(SymbolicCall):
    """A layer that is called with one tensor and gives one tensor."""

    if TYPE_CHECKING:

        def __call__(self, x: Tensor, /) -> Tensor: ...


class OfTwoTensors(SymbolicCall):
    """A layer that is called with two tensors and gives one tensor."""

    if TYPE_CHECKING:

        def __call__(self, x: Tensor, y: Tensor, /) -> Tensor: ...
