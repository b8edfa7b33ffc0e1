"""Resampling to any size. Torch has it as a function, and as a layer only `Upsample`, which cannot smooth."""

from __future__ import annotations

import torch
from torch import Tensor

from suture.layers.torch_layers.call import OfOneTensor


class Interpolate(OfOneTensor):
    """Resamples to a smaller or larger size: (B, C, ...) to (B, C, *size), with one to three dimensions of places.

    Args:
        size: Of each dimension after the channels, or one number for all of them.
        scale_factor: Instead: what the present size is multiplied by.
        mode: `"nearest"`, `"linear"`, `"bilinear"`, `"bicubic"`, `"trilinear"`, `"area"` or `"nearest-exact"`.
        antialias: Smooths before it makes smaller, in the modes `"bilinear"` and `"bicubic"`.

    Raises:
        ValueError: Both or neither of `size` and `scale_factor` are given.
        NotImplementedError, ValueError: The mode is not one for as many dimensions; torch's own.

    >>> Interpolate(scale_factor=0.5, mode="area")(torch.tensor([[[1.0, 3.0, 5.0, 5.0]]]))
    tensor([[[2., 5.]]])
    """

    def __init__(
        self,
        size: int | tuple[int, ...] | None = None,
        scale_factor: float | None = None,
        mode: str = "nearest",
        antialias: bool = False,
    ) -> None:
        super().__init__()
        if (size is None) == (scale_factor is None):
            raise ValueError(
                f"Interpolate takes a size or a scale_factor; received size={size}, scale_factor={scale_factor}."
            )
        self.size = size
        self.scale_factor = scale_factor
        self.mode = mode
        self.antialias = antialias

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.interpolate(x, self.size, self.scale_factor, self.mode, antialias=self.antialias)

    def extra_repr(self) -> str:
        to = f"size={self.size}" if self.size is not None else f"scale_factor={self.scale_factor}"
        return f"{to}, mode={self.mode!r}, antialias={self.antialias}"
