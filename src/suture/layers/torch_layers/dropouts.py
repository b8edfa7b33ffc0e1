"""Dropouts: something is left out at random while training; in eval mode the input is returned. The shape stays.

Shapes: B rows, C channels, L length, H height, W width, D depth.

Raises torch's `ValueError` for a probability `p` outside of 0 to 1.
"""

from __future__ import annotations

import torch

from suture.layers.torch_layers.call import OfOneTensor

__all__ = ["AlphaDropout", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "FeatureAlphaDropout"]


class Dropout(torch.nn.Dropout, OfOneTensor):
    """Zeroes each element with probability `p`, and divides the others by `1 - p`: any shape.

    Source: https://arxiv.org/abs/1207.0580.

    >>> sorted(set(Dropout(0.75)(torch.ones(100)).tolist())), Dropout(0.75).eval()(torch.ones(2))
    ([0.0, 4.0], tensor([1., 1.]))
    """


class Dropout1d(torch.nn.Dropout1d, OfOneTensor):
    """Zeroes whole channels of each row with probability `p`, and divides the others by `1 - p`: (B, C, L).

    Source: https://arxiv.org/abs/1411.4280.

    >>> Dropout1d(1.0)(torch.ones(1, 2, 3)).sum(-1)
    tensor([[0., 0.]])
    """


class Dropout2d(torch.nn.Dropout2d, OfOneTensor):
    """Zeroes whole channels of each row, as `Dropout1d` does: (B, C, H, W).

    >>> set(Dropout2d(0.5)(torch.ones(1, 50, 1, 3)).sum(-1).flatten().tolist()) == {0.0, 6.0}
    True
    """


class Dropout3d(torch.nn.Dropout3d, OfOneTensor):
    """Zeroes whole channels of each row, as `Dropout1d` does: (B, C, D, H, W).

    >>> set(Dropout3d(0.5)(torch.ones(1, 50, 1, 1, 3)).sum(-1).flatten().tolist()) == {0.0, 6.0}
    True
    """


class AlphaDropout(torch.nn.AlphaDropout, OfOneTensor):
    """Sets elements to the lower bound of `SELU` and keeps mean and variance, so that `SELU` goes on normalising.

    Source: https://arxiv.org/abs/1706.02515.

    >>> len(set(AlphaDropout(0.5)(torch.ones(100)).tolist()))
    2
    """


class FeatureAlphaDropout(torch.nn.FeatureAlphaDropout, OfOneTensor):
    """`AlphaDropout` of whole channels of each row: (B, C, ...).

    >>> [len(set(channel)) for channel in FeatureAlphaDropout(0.5)(torch.ones(1, 3, 9))[0].tolist()]
    [1, 1, 1]
    """
