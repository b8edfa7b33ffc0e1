"""Positions as vectors that are added to the tokens.

Positions are the entry `("inputs", "positions")` (B, T), which a backbone fills. Where nobody gives it, the tokens are
numbered from 0, or from `cache.length` on where there is a cache.

Shapes: B rows, T tokens, D width of a token. One sequence may come without B.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from suture.layers.cache import Cache
from suture.layers.context import Derived, Read
from suture.layers.functions import register_function
from suture.layers.symbolic import SymbolicCall
from suture.layers.torch_layers import Embedding

_POSITIONS = Read("inputs", "positions", default=None)
_CACHE = Read("inputs", "cache", default=None)


class LearnedPositions(Embedding):
    """Adds to each token the learned vector of its position: (..., T, D) to the same.

    Its `weight` is (max_length, embedding_dim).

    Args:
        max_length: Positions are 0 to `max_length - 1`.
        embedding_dim: D.

    Raises:
        ValueError: Tokens of another width arrive.
        IndexError: A position that has no vector. (On a GPU it is torch that fails, and less clearly.)

    Source: https://arxiv.org/abs/1705.03122.

    >>> from suture import layers as sl
    >>> layer = LearnedPositions(max_length=16, embedding_dim=4)
    >>> model, tokens = sl.Chain(layer), torch.zeros(1, 3, 4)
    >>> torch.equal(model(tokens)[0], layer.weight[:3])
    True
    >>> torch.equal(model(tokens, positions=torch.tensor([[0, 0, 1]]))[0], layer.weight[[0, 0, 1]])
    True
    """

    if TYPE_CHECKING:

        def __call__(self, x: Tensor, /, *, positions: Tensor | None = None, cache: Cache | None = None) -> Tensor: ...

    def __init__(self, max_length: int, embedding_dim: int) -> None:
        super().__init__(max_length, embedding_dim)
        self.reads = {"positions": _POSITIONS, "cache": _CACHE}

    # Takes the tokens, where torch's own takes the numbers that are looked up.
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x: Tensor, *, positions: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        _check_width(self, x, self.embedding_dim)
        if positions is None:
            positions = _counted(x, cache)
        try:
            return x + super().forward(positions)
        except IndexError:
            beyond = positions[(positions < 0) | (positions >= self.num_embeddings)]
            raise IndexError(
                f"LearnedPositions has vectors for the positions 0 to {self.num_embeddings - 1}; "
                f"received position {int(beyond[0])}, for tokens of shape {tuple(x.shape)}. Shorten the sequence."
            ) from None


def sinusoids(positions: Tensor, embedding_dim: int, base: float) -> Tensor:
    """Sine and cosine in turn, of waves from short to long, at `positions` (..., T): (..., T, D), in float32.

    >>> sinusoids(torch.tensor([0, 1]), embedding_dim=4, base=10_000.0)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    exponents = torch.arange(0, embedding_dim, 2, dtype=torch.float32, device=positions.device) / embedding_dim
    angles = positions[..., None].float() / base**exponents
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


class SinusoidalPositions(SymbolicCall):
    """Adds to each token sines and cosines of its position: (..., T, D) to the same. Nothing is learned.

    Element 2i is the sine and element 2i + 1 the cosine of position / base^(2i / D), as in the paper. Some models
    have all sines before all cosines. To a model trained from the start the order makes no difference.

    Args:
        embedding_dim: D, an even number.
        base: The longest wave repeats after `2 * pi * base` positions.

    Raises:
        ValueError: `embedding_dim` is odd, or tokens of another width arrive.

    Source: https://arxiv.org/abs/1706.03762, section 3.5.

    >>> SinusoidalPositions(embedding_dim=4)(torch.zeros(2, 4))
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """

    if TYPE_CHECKING:

        def __call__(self, x: Tensor, /, *, table: Tensor | None = None, cache: Cache | None = None) -> Tensor: ...

    def __init__(self, embedding_dim: int, base: float = 10_000.0) -> None:
        super().__init__()
        if embedding_dim % 2:
            raise ValueError(f"Sines and cosines come in pairs: embedding_dim must be even; received {embedding_dim}.")
        self.embedding_dim = embedding_dim
        self.base = base
        table = Derived(_table, reads={"positions": _POSITIONS}, embedding_dim=embedding_dim, base=base)
        self.reads = {"table": table, "cache": _CACHE}

    def forward(self, x: Tensor, *, table: Tensor | None = None, cache: Cache | None = None) -> Tensor:
        _check_width(self, x, self.embedding_dim)
        if table is None:
            table = sinusoids(_counted(x, cache), self.embedding_dim, self.base)
        return x + table.to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.embedding_dim}, base={self.base:g}"


@register_function("sinusoidal_table")
def _table(positions: Tensor | None, embedding_dim: int, base: float) -> Tensor | None:
    """None without positions: then each layer numbers the tokens for itself."""
    return None if positions is None else sinusoids(positions, embedding_dim, base)


def _counted(x: Tensor, cache: Cache | None) -> Tensor:
    start = 0 if cache is None else cache.length
    return torch.arange(start, start + x.shape[-2], device=x.device)


def _check_width(layer: nn.Module, x: Tensor, embedding_dim: int) -> None:
    if x.dim() < 2 or x.shape[-1] != embedding_dim:
        raise ValueError(
            f"{type(layer).__name__}({layer.extra_repr()}) takes tokens as vectors, (..., T, {embedding_dim}); "
            f"received a tensor of shape {tuple(x.shape)}. It comes after the embedding."
        )
