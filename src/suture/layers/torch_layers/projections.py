"""Linear maps, tables of vectors, and what compares two tensors.

Shapes: any leading dimensions (...), B rows, N whole numbers in a row, D width of a vector.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from suture.layers.torch_layers.call import OfOneTensor, OfTwoTensors

__all__ = ["Bilinear", "CosineSimilarity", "Embedding", "EmbeddingBag", "Linear", "PairwiseDistance"]


class Linear(torch.nn.Linear, OfOneTensor):
    """`x @ weight.T + bias`: (..., in_features) to (..., out_features).

    >>> Linear(4, 2)(torch.zeros(3, 5, 4)).shape
    torch.Size([3, 5, 2])
    """


class Bilinear(torch.nn.Bilinear, OfTwoTensors):
    """`x @ weight[k] @ y + bias[k]` for each output k, of two vectors.

    (..., in1_features) and (..., in2_features) to (..., out_features).

    >>> Bilinear(4, 3, 2)(torch.zeros(5, 4), torch.zeros(5, 3)).shape
    torch.Size([5, 2])
    """


class Embedding(torch.nn.Embedding, OfOneTensor):
    """The rows of a table: whole numbers (...) to (..., embedding_dim).

    Raises `IndexError` for a number that is no row; on a GPU torch fails later, and less clearly.

    >>> Embedding(10, 4)(torch.tensor([[3, 1, 4]])).shape
    torch.Size([1, 3, 4])
    """


class EmbeddingBag(torch.nn.EmbeddingBag):
    """The mean (`mode="sum"`, `"max"`) of rows of a table, one for each bag: whole numbers (B, N) to (B, D).

    Bags of different sizes come joined, (N,), with the offsets (B,) at which each of them begins.

    >>> EmbeddingBag(10, 4)(torch.tensor([[3, 1, 4], [1, 5, 9]])).shape
    torch.Size([2, 4])
    >>> EmbeddingBag(10, 4)(torch.tensor([3, 1, 4, 1, 5]), torch.tensor([0, 2])).shape
    torch.Size([2, 4])
    """

    if TYPE_CHECKING:

        def __call__(
            self, bags: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None, /
        ) -> Tensor: ...


class CosineSimilarity(torch.nn.CosineSimilarity, OfTwoTensors):
    """The cosine of the angle between two vectors, along `dim`: twice (..., D, ...) to (..., ...).

    >>> CosineSimilarity(dim=-1)(torch.tensor([[2.0, 0.0]]), torch.tensor([[3.0, 0.0]]))
    tensor([1.])
    """


class PairwiseDistance(torch.nn.PairwiseDistance, OfTwoTensors):
    """The p-norm of the difference of two vectors, plus `eps` in each element: twice (..., D) to (...).

    >>> PairwiseDistance(eps=0.0)(torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 4.0]]))
    tensor([5.])
    """
