"""torch's own layers, under torch's names.

Each is a subclass that adds nothing but a typed call: `sl.Linear` and `torch.nn.Linear` take the same arguments, hold
the same parameters and give the same numbers, and selecting by `nn.Linear` finds both. Arguments are documented by
torch; what is written here is the idea, and the shape of what goes in.

>>> import torch
>>> linear = Linear(4, 2, bias=False)
>>> isinstance(linear, nn.Linear), tuple(linear(torch.zeros(3, 4)).shape)
(True, (3, 2))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

__all__ = [
    "GELU",
    "AdaptiveAvgPool2d",
    "AvgPool1d",
    "AvgPool2d",
    "BatchNorm1d",
    "BatchNorm2d",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "Dropout",
    "Embedding",
    "GroupNorm",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "MaxPool1d",
    "MaxPool2d",
    "RMSNorm",
    "ReLU",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Tanh",
    "Upsample",
]


class _OfOneTensor(nn.Module):
    """How the layers of this page are called: with one tensor, giving one tensor."""

    if TYPE_CHECKING:

        def __call__(self, x: Tensor, /) -> Tensor: ...


# Projections and embeddings


class Linear(nn.Linear, _OfOneTensor):
    """`x @ weight.T + bias`: (..., in_features) to (..., out_features)."""


class Embedding(nn.Embedding, _OfOneTensor):
    """The rows of a table: whole numbers (...) to (..., embedding_dim)."""


# Normalisation


class LayerNorm(nn.LayerNorm, _OfOneTensor):
    """Zero mean and unit variance over the last dimensions (https://arxiv.org/abs/1607.06450)."""


class RMSNorm(nn.RMSNorm, _OfOneTensor):
    """Unit root mean square over the last dimensions (https://arxiv.org/abs/1910.07467)."""


class GroupNorm(nn.GroupNorm, _OfOneTensor):
    """Zero mean and unit variance over groups of channels: (B, C, ...) (https://arxiv.org/abs/1803.08494)."""


class BatchNorm1d(nn.BatchNorm1d, _OfOneTensor):
    """Zero mean and unit variance over the batch: (B, C) or (B, C, L) (https://arxiv.org/abs/1502.03167)."""


class BatchNorm2d(nn.BatchNorm2d, _OfOneTensor):
    """Zero mean and unit variance over the batch: (B, C, H, W) (https://arxiv.org/abs/1502.03167)."""


# Activations, of any shape


class ReLU(nn.ReLU, _OfOneTensor):
    """`max(x, 0)`."""


class LeakyReLU(nn.LeakyReLU, _OfOneTensor):
    """`x` where positive, `negative_slope * x` elsewhere."""


class SiLU(nn.SiLU, _OfOneTensor):
    """`x * sigmoid(x)`, also called swish (https://arxiv.org/abs/1702.03118)."""


class GELU(nn.GELU, _OfOneTensor):
    """`x` times the normal distribution function, or its tanh approximation (https://arxiv.org/abs/1606.08415)."""


class Tanh(nn.Tanh, _OfOneTensor):
    """The hyperbolic tangent."""


class Sigmoid(nn.Sigmoid, _OfOneTensor):
    """`1 / (1 + exp(-x))`."""


class Softplus(nn.Softplus, _OfOneTensor):
    """`log(1 + exp(beta * x)) / beta`, a smooth ReLU."""


class Softmax(nn.Softmax, _OfOneTensor):
    """Exponentials that add up to one along `dim`."""


class Dropout(nn.Dropout, _OfOneTensor):
    """Zeroes each element with probability `p` while training, and scales up the others."""


# Convolutions and resampling: (B, C, ...)


class Conv1d(nn.Conv1d, _OfOneTensor):
    """Convolution over one dimension: (B, C, L)."""


class Conv2d(nn.Conv2d, _OfOneTensor):
    """Convolution over two dimensions: (B, C, H, W)."""


class Conv3d(nn.Conv3d, _OfOneTensor):
    """Convolution over three dimensions: (B, C, D, H, W)."""


class ConvTranspose1d(nn.ConvTranspose1d, _OfOneTensor):
    """The gradient of `Conv1d` as a layer, which lengthens."""


class ConvTranspose2d(nn.ConvTranspose2d, _OfOneTensor):
    """The gradient of `Conv2d` as a layer, which enlarges."""


class MaxPool1d(nn.MaxPool1d, _OfOneTensor):
    """The largest element of each window: (B, C, L)."""


class MaxPool2d(nn.MaxPool2d, _OfOneTensor):
    """The largest element of each window: (B, C, H, W)."""


class AvgPool1d(nn.AvgPool1d, _OfOneTensor):
    """The mean of each window: (B, C, L)."""


class AvgPool2d(nn.AvgPool2d, _OfOneTensor):
    """The mean of each window: (B, C, H, W)."""


class AdaptiveAvgPool2d(nn.AdaptiveAvgPool2d, _OfOneTensor):
    """Means over as many windows as give `output_size`: (B, C, H, W)."""


class Upsample(nn.Upsample, _OfOneTensor):
    """Resampling to a larger size: (B, C, ...)."""
