"""The heads of an attention: parts of a projection's width, which attend each by itself.

Shapes: any leading dimensions (...), H heads, T tokens, D width of a head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from suture.layers.symbolic import SymbolicCall


class SplitHeads(SymbolicCall):
    """Splits the last dimension of each argument into heads: (..., T, H * D) to (..., H, T, D).

    One argument gives one result, several give a tuple. Each may have its own number of heads.

    Raises:
        ValueError: a last dimension is not a multiple of `head_dim`.

    >>> import torch
    >>> SplitHeads(head_dim=8)(torch.zeros(2, 5, 32)).shape
    torch.Size([2, 4, 5, 8])
    """

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim

    def forward(self, *projections: Tensor) -> Tensor | tuple[Tensor, ...]:
        split = tuple(self._split(projection) for projection in projections)
        return split[0] if len(split) == 1 else split

    def _split(self, projection: Tensor) -> Tensor:
        *leading, width = projection.shape
        if width % self.head_dim:
            raise ValueError(
                f"SplitHeads(head_dim={self.head_dim}) splits a last dimension that is a multiple of {self.head_dim}; "
                f"received a tensor of shape {tuple(projection.shape)}."
            )
        return projection.view(*leading, width // self.head_dim, self.head_dim).transpose(-2, -3)

    def extra_repr(self) -> str:
        return f"head_dim={self.head_dim}"


class MergeHeads(SymbolicCall):
    """Puts the heads side by side again, which undoes `SplitHeads`: (..., H, T, D) to (..., T, H * D).

    Raises torch's `IndexError` for fewer than three dimensions.

    >>> import torch
    >>> MergeHeads()(torch.zeros(2, 4, 5, 8)).shape
    torch.Size([2, 5, 32])
    """

    if TYPE_CHECKING:

        def __call__(self, heads: Tensor, /) -> Tensor: ...

    def forward(self, heads: Tensor) -> Tensor:
        return heads.transpose(-2, -3).flatten(-2)
