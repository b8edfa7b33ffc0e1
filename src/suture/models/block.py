"""The block that decoders are stacks of."""

from __future__ import annotations

from torch import nn

from suture import layers as sl
from suture.layers.description import register


@register("models.TransformerBlock")
class TransformerBlock(sl.Chain):
    """A pre-norm block, (B, T, D) to the same: `attention` and then `feedforward`, each a residual branch.

    Source: https://arxiv.org/abs/2002.04745, figure 1b.

    >>> block = TransformerBlock(attention=sl.Residual(norm=sl.RMSNorm(8)), feedforward=sl.Residual(sl.RMSNorm(8)))
    >>> [place.path for place in block.places()][:2]
    ['attention', 'attention.norm']
    """

    def __init__(self, attention: nn.Module, feedforward: nn.Module) -> None:
        super().__init__(attention=attention, feedforward=feedforward)
