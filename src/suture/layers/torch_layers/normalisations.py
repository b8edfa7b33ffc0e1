"""Normalisations: values are brought to one scale, then given the learned `weight` and `bias`. The shape stays.

Shapes: any leading dimensions (...), B rows, C channels, L length, H height, W width, D depth.

Raises torch's `RuntimeError` or `ValueError` for other channels, other dimensions, and, of a batch normalisation in
training, for a single value in a channel.
"""

from __future__ import annotations

import torch

from suture.layers.torch_layers.call import OfOneTensor

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "LocalResponseNorm",
    "RMSNorm",
]


class LayerNorm(torch.nn.LayerNorm, OfOneTensor):
    """Zero mean and unit variance over the last dimensions: (..., normalized_shape).

    Source: https://arxiv.org/abs/1607.06450.

    >>> LayerNorm(2)(torch.tensor([1.0, 3.0])).detach()
    tensor([-1.0000,  1.0000])
    """


class RMSNorm(torch.nn.RMSNorm, OfOneTensor):
    """Unit root mean square over the last dimensions: (..., normalized_shape).

    Source: https://arxiv.org/abs/1910.07467.

    >>> RMSNorm(2)(torch.tensor([1.0, 7.0])).detach()
    tensor([0.2000, 1.4000])
    """


class GroupNorm(torch.nn.GroupNorm, OfOneTensor):
    """Zero mean and unit variance over each of `num_groups` groups of channels, row by row: (B, C, ...).

    Source: https://arxiv.org/abs/1803.08494.

    >>> GroupNorm(1, 2)(torch.tensor([[1.0, 3.0]])).detach()
    tensor([[-1.0000,  1.0000]])
    """


class BatchNorm1d(torch.nn.BatchNorm1d, OfOneTensor):
    """Zero mean and unit variance of each channel over the batch: (B, C) or (B, C, L).

    While training by the batch at hand, afterwards by the running mean and variance, which are buffers.

    Source: https://arxiv.org/abs/1502.03167.

    >>> BatchNorm1d(1)(torch.tensor([[1.0], [3.0]])).detach()
    tensor([[-1.0000],
            [ 1.0000]])
    """


class BatchNorm2d(torch.nn.BatchNorm2d, OfOneTensor):
    """Zero mean and unit variance of each channel over batch and places: (B, C, H, W). See `BatchNorm1d`.

    >>> BatchNorm2d(1)(torch.tensor([1.0, 3.0]).view(1, 1, 1, 2)).detach()
    tensor([[[[-1.0000,  1.0000]]]])
    """


class BatchNorm3d(torch.nn.BatchNorm3d, OfOneTensor):
    """Zero mean and unit variance of each channel over batch and places: (B, C, D, H, W). See `BatchNorm1d`.

    >>> BatchNorm3d(1)(torch.tensor([1.0, 3.0]).view(1, 1, 1, 1, 2)).detach()
    tensor([[[[[-1.0000,  1.0000]]]]])
    """


class InstanceNorm1d(torch.nn.InstanceNorm1d, OfOneTensor):
    """Zero mean and unit variance of each channel of each row: (B, C, L). Without `affine=True` nothing is learned.

    Source: https://arxiv.org/abs/1607.08022.

    >>> InstanceNorm1d(1)(torch.tensor([[[1.0, 3.0]]]))
    tensor([[[-1.0000,  1.0000]]])
    """


class InstanceNorm2d(torch.nn.InstanceNorm2d, OfOneTensor):
    """Zero mean and unit variance of each channel of each row: (B, C, H, W). See `InstanceNorm1d`.

    >>> InstanceNorm2d(1)(torch.tensor([[[[1.0], [3.0]]]])).flatten()
    tensor([-1.0000,  1.0000])
    """


class InstanceNorm3d(torch.nn.InstanceNorm3d, OfOneTensor):
    """Zero mean and unit variance of each channel of each row: (B, C, D, H, W). See `InstanceNorm1d`.

    >>> InstanceNorm3d(1)(torch.tensor([1.0, 3.0]).view(1, 1, 2, 1, 1)).flatten()
    tensor([-1.0000,  1.0000])
    """


class LocalResponseNorm(torch.nn.LocalResponseNorm, OfOneTensor):
    """Each value divided by a power of the squares in `size` channels around it: (B, C, ...). Nothing is learned.

    Source: section 3.3 of AlexNet, https://papers.nips.cc/paper/4824.

    >>> LocalResponseNorm(1, alpha=1.0, beta=0.5)(torch.tensor([[[0.0, 1.0]]]))
    tensor([[[0.0000, 0.7071]]])
    """
