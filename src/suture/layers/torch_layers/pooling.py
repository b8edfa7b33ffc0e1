"""Pools: one value for each window of places.

A window of k places steps by k where `stride` does not say otherwise; an adaptive pool takes as many windows as give
`output_size`.

Shapes: B rows (or none), C channels, L length, H height, W width, D depth; primed where they differ afterwards.

Raises torch's `RuntimeError` for other dimensions, and for an input smaller than a window. A maximum with
`return_indices=True` returns two tensors, the second with the places of the first.
"""

from __future__ import annotations

import torch

from suture.layers.torch_layers.call import OfOneTensor

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "LPPool1d",
    "LPPool2d",
    "LPPool3d",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
]


class MaxPool1d(torch.nn.MaxPool1d, OfOneTensor):
    """The largest element of each window: (B, C, L) to (B, C, L').

    >>> MaxPool1d(2)(torch.tensor([[[1.0, 3.0, 2.0, 0.0]]]))
    tensor([[[3., 2.]]])
    """


class MaxPool2d(torch.nn.MaxPool2d, OfOneTensor):
    """The largest element of each window: (B, C, H, W) to (B, C, H', W').

    >>> MaxPool2d(2)(torch.zeros(1, 3, 8, 6)).shape
    torch.Size([1, 3, 4, 3])
    """


class MaxPool3d(torch.nn.MaxPool3d, OfOneTensor):
    """The largest element of each window: (B, C, D, H, W) to (B, C, D', H', W').

    >>> MaxPool3d(2)(torch.zeros(1, 3, 4, 8, 6)).shape
    torch.Size([1, 3, 2, 4, 3])
    """


class AvgPool1d(torch.nn.AvgPool1d, OfOneTensor):
    """The mean of each window: (B, C, L) to (B, C, L').

    >>> AvgPool1d(2)(torch.tensor([[[1.0, 3.0, 2.0, 0.0]]]))
    tensor([[[2., 1.]]])
    """


class AvgPool2d(torch.nn.AvgPool2d, OfOneTensor):
    """The mean of each window: (B, C, H, W) to (B, C, H', W').

    >>> AvgPool2d(2)(torch.zeros(1, 3, 8, 6)).shape
    torch.Size([1, 3, 4, 3])
    """


class AvgPool3d(torch.nn.AvgPool3d, OfOneTensor):
    """The mean of each window: (B, C, D, H, W) to (B, C, D', H', W').

    >>> AvgPool3d(2)(torch.zeros(1, 3, 4, 8, 6)).shape
    torch.Size([1, 3, 2, 4, 3])
    """


class LPPool1d(torch.nn.LPPool1d, OfOneTensor):
    """The p-norm of each window: (B, C, L) to (B, C, L').

    >>> LPPool1d(2, kernel_size=2)(torch.tensor([[[3.0, 4.0]]]))
    tensor([[[5.]]])
    """


class LPPool2d(torch.nn.LPPool2d, OfOneTensor):
    """The p-norm of each window: (B, C, H, W) to (B, C, H', W').

    >>> LPPool2d(2, kernel_size=2)(torch.zeros(1, 3, 8, 6)).shape
    torch.Size([1, 3, 4, 3])
    """


class LPPool3d(torch.nn.LPPool3d, OfOneTensor):
    """The p-norm of each window: (B, C, D, H, W) to (B, C, D', H', W').

    >>> LPPool3d(2, kernel_size=2)(torch.zeros(1, 3, 4, 8, 6)).shape
    torch.Size([1, 3, 2, 4, 3])
    """


class AdaptiveMaxPool1d(torch.nn.AdaptiveMaxPool1d, OfOneTensor):
    """The largest element of each of `output_size` windows: (B, C, L) to (B, C, output_size).

    >>> AdaptiveMaxPool1d(1)(torch.tensor([[[1.0, 3.0, 2.0]]]))
    tensor([[[3.]]])
    """


class AdaptiveMaxPool2d(torch.nn.AdaptiveMaxPool2d, OfOneTensor):
    """The largest element of each window: (B, C, H, W) to (B, C, *output_size).

    >>> AdaptiveMaxPool2d((2, 3))(torch.zeros(1, 3, 7, 5)).shape
    torch.Size([1, 3, 2, 3])
    """


class AdaptiveMaxPool3d(torch.nn.AdaptiveMaxPool3d, OfOneTensor):
    """The largest element of each window: (B, C, D, H, W) to (B, C, *output_size).

    >>> AdaptiveMaxPool3d(1)(torch.zeros(1, 3, 4, 7, 5)).shape
    torch.Size([1, 3, 1, 1, 1])
    """


class AdaptiveAvgPool1d(torch.nn.AdaptiveAvgPool1d, OfOneTensor):
    """The mean of each of `output_size` windows: (B, C, L) to (B, C, output_size).

    >>> AdaptiveAvgPool1d(1)(torch.tensor([[[1.0, 3.0, 2.0]]]))
    tensor([[[2.]]])
    """


class AdaptiveAvgPool2d(torch.nn.AdaptiveAvgPool2d, OfOneTensor):
    """The mean of each window: (B, C, H, W) to (B, C, *output_size).

    >>> AdaptiveAvgPool2d((2, 3))(torch.zeros(1, 3, 7, 5)).shape
    torch.Size([1, 3, 2, 3])
    """


class AdaptiveAvgPool3d(torch.nn.AdaptiveAvgPool3d, OfOneTensor):
    """The mean of each window: (B, C, D, H, W) to (B, C, *output_size).

    >>> AdaptiveAvgPool3d(1)(torch.zeros(1, 3, 4, 7, 5)).shape
    torch.Size([1, 3, 1, 1, 1])
    """
