"""Layers that bring what passes through to another dtype or another device.

What a cast brings to is its own: neither `model.to(...)` nor the place that it is put in changes it. Layers put in
together with casts do take the dtype of their place; one that is to stay in another is converted afterwards:

>>> from suture import layers as sl
>>> model = sl.Chain(sl.Linear(4, 4), norm=sl.LayerNorm(4)).to(torch.bfloat16)
>>> edit = model.replace(model["norm"], sl.Chain(sl.ToDtype(torch.float32), model["norm"], sl.ToDtype(torch.bfloat16)))
>>> norm = model["norm"].float()
>>> model(torch.zeros(2, 4, dtype=torch.bfloat16)).dtype, model[0].weight.dtype, norm.weight.dtype
(torch.bfloat16, torch.bfloat16, torch.float32)
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from suture.layers.symbolic import SymbolicCall


class _OfEachTensor(SymbolicCall):
    """A function of every argument alone; one argument gives one result, several give a tuple."""

    def forward(self, *args: Any) -> Any:
        for number, arg in enumerate(args, 1):
            if not isinstance(arg, Tensor):
                raise TypeError(
                    f"{type(self).__name__}({self.extra_repr()}) takes tensors. "
                    f"Received as argument {number} of {len(args)}: {arg!r:.60} ({type(arg).__name__})."
                )
        results = tuple(self.convert(arg) for arg in args)
        return results[0] if len(results) == 1 else results

    @abstractmethod
    def convert(self, x: Tensor) -> Tensor:
        """What becomes of one argument."""


class ToDtype(_OfEachTensor):
    """Gives every argument another dtype, of any shape; one that has it already is returned as it is.

    Several arguments give a tuple. Gradients come back in the dtype that went in.

    Raises `TypeError` for an argument that is not a tensor.

    >>> ToDtype(torch.float16)(torch.zeros(2)).dtype
    torch.float16
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def convert(self, x: Tensor) -> Tensor:
        return x.to(self.dtype)

    def extra_repr(self) -> str:
        return str(self.dtype).removeprefix("torch.")


class ToDevice(_OfEachTensor):
    """Brings every argument to a device, of any shape; one that is there already is returned as it is.

    Several arguments give a tuple. With one between two blocks, the blocks may be on two devices.

    Raises `TypeError` for an argument that is not a tensor.

    >>> ToDevice("meta")(torch.zeros(2)).device
    device(type='meta')
    """

    def __init__(self, device: torch.device | str) -> None:
        super().__init__()
        self.device = torch.device(device)

    def convert(self, x: Tensor) -> Tensor:
        return x.to(self.device)

    def extra_repr(self) -> str:
        return str(self.device)
