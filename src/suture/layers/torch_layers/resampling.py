"""Another resolution, and more border.

To make an image smaller: a pool, a convolution with a stride, or `sl.Interpolate`, which can smooth it first.

Shapes: B rows (or none), C channels, L length, H height, W width, D depth, r a factor. A padding is one number for all
sides, or a number for each side, the last dimension first: (left, right, top, bottom, front, back).

Raises torch's errors, `NotImplementedError` or `RuntimeError`, for other dimensions and for channels that r does not
divide. A padding that is negative cuts off.
"""

from __future__ import annotations

import torch

from suture.layers.torch_layers.call import OfOneTensor

__all__ = [
    "ChannelShuffle",
    "CircularPad1d",
    "CircularPad2d",
    "CircularPad3d",
    "ConstantPad1d",
    "ConstantPad2d",
    "ConstantPad3d",
    "PixelShuffle",
    "PixelUnshuffle",
    "ReflectionPad1d",
    "ReflectionPad2d",
    "ReflectionPad3d",
    "ReplicationPad1d",
    "ReplicationPad2d",
    "ReplicationPad3d",
    "Upsample",
    "ZeroPad1d",
    "ZeroPad2d",
    "ZeroPad3d",
]


class Upsample(torch.nn.Upsample, OfOneTensor):
    """More places, interpolated: (B, C, ...) to (B, C, ...) of `size`, or of the size times `scale_factor`.

    >>> Upsample(scale_factor=2)(torch.tensor([[[1.0, 2.0]]]))
    tensor([[[1., 1., 2., 2.]]])
    """


class PixelShuffle(torch.nn.PixelShuffle, OfOneTensor):
    """Channels become places: (..., C * r * r, H, W) to (..., C, H * r, W * r).

    Source: https://arxiv.org/abs/1609.05158.

    >>> PixelShuffle(2)(torch.zeros(1, 12, 5, 6)).shape
    torch.Size([1, 3, 10, 12])
    """


class PixelUnshuffle(torch.nn.PixelUnshuffle, OfOneTensor):
    """Places become channels, which undoes `PixelShuffle`: (..., C, H * r, W * r) to (..., C * r * r, H, W).

    >>> PixelUnshuffle(2)(torch.zeros(1, 3, 10, 12)).shape
    torch.Size([1, 12, 5, 6])
    """


class ChannelShuffle(torch.nn.ChannelShuffle, OfOneTensor):
    """Takes channels from `groups` groups in turn: (B, C, ...).

    Source: https://arxiv.org/abs/1707.01083.

    >>> ChannelShuffle(2)(torch.tensor([[[[1.0]], [[2.0]], [[3.0]], [[4.0]]]])).flatten()
    tensor([1., 3., 2., 4.])
    """


class ZeroPad1d(torch.nn.ZeroPad1d, OfOneTensor):
    """Zeros around: (B, C, L) to (B, C, left + L + right).

    >>> ZeroPad1d((2, 1))(torch.tensor([[[1.0, 2.0]]]))
    tensor([[[0., 0., 1., 2., 0.]]])
    """


class ZeroPad2d(torch.nn.ZeroPad2d, OfOneTensor):
    """Zeros around: (B, C, H, W) to (B, C, top + H + bottom, left + W + right).

    >>> ZeroPad2d((1, 1, 0, 2))(torch.zeros(1, 3, 4, 4)).shape
    torch.Size([1, 3, 6, 6])
    """


class ZeroPad3d(torch.nn.ZeroPad3d, OfOneTensor):
    """Zeros around: (B, C, D, H, W), made larger on six sides.

    >>> ZeroPad3d(1)(torch.zeros(1, 3, 4, 5, 6)).shape
    torch.Size([1, 3, 6, 7, 8])
    """


class ConstantPad1d(torch.nn.ConstantPad1d, OfOneTensor):
    """A value around: (B, C, L) to (B, C, left + L + right).

    >>> ConstantPad1d((0, 2), value=7.0)(torch.tensor([[[1.0, 2.0]]]))
    tensor([[[1., 2., 7., 7.]]])
    """


class ConstantPad2d(torch.nn.ConstantPad2d, OfOneTensor):
    """A value around: (B, C, H, W) to (B, C, top + H + bottom, left + W + right).

    >>> ConstantPad2d(1, value=7.0)(torch.zeros(1, 3, 4, 4)).shape
    torch.Size([1, 3, 6, 6])
    """


class ConstantPad3d(torch.nn.ConstantPad3d, OfOneTensor):
    """A value around: (B, C, D, H, W), made larger on six sides.

    >>> ConstantPad3d(1, value=7.0)(torch.zeros(1, 3, 4, 5, 6)).shape
    torch.Size([1, 3, 6, 7, 8])
    """


class ReflectionPad1d(torch.nn.ReflectionPad1d, OfOneTensor):
    """What is inside, mirrored at the outermost places: (B, C, L) to (B, C, left + L + right). Less than L a side.

    >>> ReflectionPad1d((2, 0))(torch.tensor([[[1.0, 2.0, 3.0]]]))
    tensor([[[3., 2., 1., 2., 3.]]])
    """


class ReflectionPad2d(torch.nn.ReflectionPad2d, OfOneTensor):
    """What is inside, mirrored at the outermost places: (B, C, H, W), made larger on four sides.

    >>> ReflectionPad2d(1)(torch.zeros(1, 3, 4, 4)).shape
    torch.Size([1, 3, 6, 6])
    """


class ReflectionPad3d(torch.nn.ReflectionPad3d, OfOneTensor):
    """What is inside, mirrored at the outermost places: (B, C, D, H, W), made larger on six sides.

    >>> ReflectionPad3d(1)(torch.zeros(1, 3, 4, 5, 6)).shape
    torch.Size([1, 3, 6, 7, 8])
    """


class ReplicationPad1d(torch.nn.ReplicationPad1d, OfOneTensor):
    """The outermost places repeated: (B, C, L) to (B, C, left + L + right).

    >>> ReplicationPad1d((2, 0))(torch.tensor([[[1.0, 2.0, 3.0]]]))
    tensor([[[1., 1., 1., 2., 3.]]])
    """


class ReplicationPad2d(torch.nn.ReplicationPad2d, OfOneTensor):
    """The outermost places repeated: (B, C, H, W), made larger on four sides.

    >>> ReplicationPad2d(1)(torch.zeros(1, 3, 4, 4)).shape
    torch.Size([1, 3, 6, 6])
    """


class ReplicationPad3d(torch.nn.ReplicationPad3d, OfOneTensor):
    """The outermost places repeated: (B, C, D, H, W), made larger on six sides.

    >>> ReplicationPad3d(1)(torch.zeros(1, 3, 4, 5, 6)).shape
    torch.Size([1, 3, 6, 7, 8])
    """


class CircularPad1d(torch.nn.CircularPad1d, OfOneTensor):
    """What comes around from the other end: (B, C, L) to (B, C, left + L + right). At most L a side.

    >>> CircularPad1d((2, 0))(torch.tensor([[[1.0, 2.0, 3.0]]]))
    tensor([[[2., 3., 1., 2., 3.]]])
    """


class CircularPad2d(torch.nn.CircularPad2d, OfOneTensor):
    """What comes around from the other end: (B, C, H, W), made larger on four sides.

    >>> CircularPad2d(1)(torch.zeros(1, 3, 4, 4)).shape
    torch.Size([1, 3, 6, 6])
    """


class CircularPad3d(torch.nn.CircularPad3d, OfOneTensor):
    """What comes around from the other end: (B, C, D, H, W), made larger on six sides.

    >>> CircularPad3d(1)(torch.zeros(1, 3, 4, 5, 6)).shape
    torch.Size([1, 3, 6, 7, 8])
    """
