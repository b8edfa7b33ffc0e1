"""The matrix product of branches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from suture.layers.chain import combine
from suture.layers.composite import Composite
from suture.layers.context import Context


class Matmul(Composite):
    """The matrix product of what its children return, each called with the same arguments.

    (..., N, K) and (..., K, M) give (..., N, M), and leading dimensions broadcast. Of more than two branches the first
    product is taken first.

    Raises:
        TypeError: It has no children, or one of them returned several tensors.
        RuntimeError: The shapes do not fit; torch's own.

    >>> from suture import layers as sl
    >>> products_of_tokens = sl.Matmul(sl.Identity(), sl.Transpose(-1, -2))
    >>> products_of_tokens(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[ 5., 11.],
            [11., 25.]])
    """

    def forward(self, *args: Any, context: Context | None = None) -> Tensor:
        return combine(self, torch.matmul, self.run_branches(args, context))
