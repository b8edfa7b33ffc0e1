"""Convolutions, and the windows they slide over.

Shapes: B rows (or none), C channels, L length, H height, W width, D depth; primed where they differ afterwards. A
kernel of k elements without padding shortens by k - 1; `stride` divides, in a transposed convolution it multiplies.

Raises torch's `RuntimeError` for other channels, for other dimensions, and for an input smaller than the kernel.
"""

from __future__ import annotations

import torch

from suture.layers.torch_layers.call import OfOneTensor

__all__ = [
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Fold",
    "Unfold",
]


class Conv1d(torch.nn.Conv1d, OfOneTensor):
    """Convolution over one dimension: (B, C, L) to (B, C', L').

    >>> Conv1d(3, 8, kernel_size=3)(torch.zeros(2, 3, 10)).shape
    torch.Size([2, 8, 8])
    """


class Conv2d(torch.nn.Conv2d, OfOneTensor):
    """Convolution over two dimensions: (B, C, H, W) to (B, C', H', W').

    >>> Conv2d(3, 8, kernel_size=3, stride=2, padding=1)(torch.zeros(2, 3, 10, 10)).shape
    torch.Size([2, 8, 5, 5])
    """


class Conv3d(torch.nn.Conv3d, OfOneTensor):
    """Convolution over three dimensions: (B, C, D, H, W) to (B, C', D', H', W').

    >>> Conv3d(1, 2, kernel_size=3, padding="same")(torch.zeros(1, 1, 4, 5, 6)).shape
    torch.Size([1, 2, 4, 5, 6])
    """


class ConvTranspose1d(torch.nn.ConvTranspose1d, OfOneTensor):
    """The gradient of `Conv1d` as a layer, which lengthens: (B, C, L) to (B, C', L').

    >>> ConvTranspose1d(8, 3, kernel_size=2, stride=2)(torch.zeros(2, 8, 5)).shape
    torch.Size([2, 3, 10])
    """


class ConvTranspose2d(torch.nn.ConvTranspose2d, OfOneTensor):
    """The gradient of `Conv2d` as a layer, which enlarges: (B, C, H, W) to (B, C', H', W').

    >>> ConvTranspose2d(8, 3, kernel_size=2, stride=2)(torch.zeros(2, 8, 5, 5)).shape
    torch.Size([2, 3, 10, 10])
    """


class ConvTranspose3d(torch.nn.ConvTranspose3d, OfOneTensor):
    """The gradient of `Conv3d` as a layer, which enlarges: (B, C, D, H, W) to (B, C', D', H', W').

    >>> ConvTranspose3d(2, 1, kernel_size=2, stride=2)(torch.zeros(1, 2, 2, 3, 4)).shape
    torch.Size([1, 1, 4, 6, 8])
    """


class Unfold(torch.nn.Unfold, OfOneTensor):
    """The windows of an image as columns, such as its patches: (B, C, H, W) to (B, C * window, windows).

    >>> Unfold(kernel_size=4, stride=4)(torch.zeros(2, 3, 8, 12)).shape
    torch.Size([2, 48, 6])
    """


class Fold(torch.nn.Fold, OfOneTensor):
    """Columns as the windows of an image, added up where they overlap: (B, C * window, windows) to (B, C, H, W).

    >>> Fold(output_size=(8, 12), kernel_size=4, stride=4)(torch.zeros(2, 48, 6)).shape
    torch.Size([2, 3, 8, 12])
    """
