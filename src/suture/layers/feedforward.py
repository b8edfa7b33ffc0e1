"""Layers that treat every place of a sequence by itself, through a wider space and back.

Shapes: any leading dimensions (...).
"""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from suture.layers.chain import Chain, Product
from suture.layers.torch_layers import GELU, Linear, ReLU, SiLU


class FeedForward(Chain):
    """`down(activation(up(x)))`, (..., embedding_dim) to the same.

    Its layers are `up`, `activation` and `down`. The activation is a `GELU` where none is given.

    Source: https://arxiv.org/abs/1706.03762.

    >>> [place.path for place in FeedForward(64, 256).places()]
    ['up', 'activation', 'down']
    """

    def __init__(
        self, embedding_dim: int, feedforward_dim: int, bias: bool = True, activation: nn.Module | None = None
    ) -> None:
        super().__init__(
            up=Linear(embedding_dim, feedforward_dim, bias=bias),
            activation=GELU() if activation is None else activation,
            down=Linear(feedforward_dim, embedding_dim, bias=bias),
        )


class GatedFeedForward(Chain):
    """`down(activation(gate(x)) * up(x))`, (..., embedding_dim) to the same.

    The activation is a `SiLU` where none is given; that is SwiGLU, with `GELU` it is GEGLU.

    Source: https://arxiv.org/abs/2002.05202.

    >>> [place.path for place in GatedFeedForward(64, 256).places()]
    ['branches', 'branches.gated', 'branches.gated.gate', 'branches.gated.activation', 'branches.up', 'down']
    """

    def __init__(
        self, embedding_dim: int, feedforward_dim: int, bias: bool = False, activation: nn.Module | None = None
    ) -> None:
        super().__init__(
            branches=Product(
                gated=Chain(
                    gate=Linear(embedding_dim, feedforward_dim, bias=bias),
                    activation=SiLU() if activation is None else activation,
                ),
                up=Linear(embedding_dim, feedforward_dim, bias=bias),
            ),
            down=Linear(feedforward_dim, embedding_dim, bias=bias),
        )


class MultiLinear(Chain):
    """`num_layers` linear layers with a `ReLU` between each two: (..., input_dim) to (..., output_dim).

    All widths between are `inner_dim`; one layer alone goes from `input_dim` to `output_dim`.

    Raises:
        ValueError: `num_layers` is less than one.

    >>> [linear.out_features for linear in MultiLinear(2, 3, inner_dim=8, num_layers=3).layers(Linear)]
    [8, 8, 3]
    """

    def __init__(self, input_dim: int, output_dim: int, inner_dim: int, num_layers: int) -> None:
        if num_layers < 1:
            raise ValueError(f"MultiLinear has at least one linear layer; received num_layers={num_layers}.")
        widths = [input_dim, *[inner_dim] * (num_layers - 1), output_dim]
        layers: list[nn.Module] = []
        for narrow, wide in pairwise(widths):
            layers += [Linear(narrow, wide), ReLU()]
        super().__init__(*layers[:-1])
