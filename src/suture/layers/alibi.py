"""Attention with linear biases: the further away a key is, the less it counts, head by head.

Shapes: any leading dimensions (...), B rows, H heads, T queries, S keys with the cached ones, D width of a head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from suture.layers.cache import Cache
from suture.layers.context import Derived, Read
from suture.layers.functions import register_function
from suture.layers.symbolic import SymbolicCall


def alibi_slopes(num_heads: int, device: torch.device | None = None) -> Tensor:
    """How fast the scores of each head fall with the distance: (H,).

    For n heads, n a power of two, they are 2^(-8/n), 2^(-16/n), ..., 2^(-8). For another number they are those of the
    power of two below, and then every second one of those of the power of two above.

    >>> alibi_slopes(4), alibi_slopes(3)
    (tensor([0.2500, 0.0625, 0.0156, 0.0039]), tensor([0.0625, 0.0039, 0.2500]))
    """
    even = 1 << (num_heads.bit_length() - 1)
    steps = torch.arange(1, even + 1, dtype=torch.float32, device=device)
    exponents = torch.cat((steps * 8, steps[: num_heads - even] * 8 - 4)) / even
    return torch.exp2(-exponents)


@register_function
def alibi_bias(positions: Tensor | None, cache: Cache | None, num_heads: int) -> Tensor | None:
    """The bias of the tokens at `positions` (B, T): (B, H, T, S), or (H, T, S) where it is that of every row.

    None without positions: then each layer numbers its queries and keys for itself.
    """
    if positions is None:
        return None
    tokens = positions.shape[-1]
    of_keys = positions if cache is None else cache.positions
    if of_keys is None:
        of_keys = torch.arange((0 if cache is None else cache.length) + tokens, device=positions.device)
    elif of_keys.dim() > 1 and of_keys.stride(0) == 0:
        # One row, seen from all rows: the bias would be the same for each.
        of_keys = of_keys[0]
    return _bias(of_keys[..., -tokens:], of_keys, num_heads)


class ALiBi(SymbolicCall):
    """Attention with linear biases: gives attention a bias that falls with the distance of query and key.

    Called with (query, key, value), (..., H, T, D) and the others (..., S, D) with their heads split, it returns these
    and the bias, (B, H, T, S) or (H, T, S), which `ScaledDotProductAttention` adds to its scores. It belongs directly
    before that layer, after the cache. The distance counts in both directions; what is masked stays so.

    Positions are the entry `("inputs", "positions")`, which a backbone fills, and those in the cache; so padding does
    not count. Where nobody gives them, the last query is at the place of the last key.

    Args:
        num_heads: H, of the queries; any number.

    Raises:
        ValueError: `num_heads` is less than one, or a query of other heads arrives.

    Source: https://arxiv.org/abs/2108.12409.

    >>> from suture import layers as sl
    >>> attention = sl.SelfAttention(32, num_heads=4, causal=True)
    >>> edit = attention.insert_before(attention["attend"], ALiBi(num_heads=4))
    >>> attention(torch.zeros(1, 5, 32)).shape
    torch.Size([1, 5, 32])
    >>> query = key = value = torch.zeros(1, 1, 3, 8)
    >>> ALiBi(num_heads=1)(query, key, value)[3]
    tensor([[[-0.0000, -0.0039, -0.0078],
             [-0.0039, -0.0000, -0.0039],
             [-0.0078, -0.0039, -0.0000]]])
    """

    if TYPE_CHECKING:

        def __call__(
            self, query: Tensor, key: Tensor, value: Tensor, /, *, bias: Tensor | None = None
        ) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        if num_heads < 1:
            raise ValueError(f"ALiBi has a slope for each head, and at least one; received num_heads={num_heads}.")
        self.num_heads = num_heads
        reads = {"positions": Read("inputs", "positions", default=None), "cache": Read("inputs", "cache", default=None)}
        self.reads = {"bias": Derived(alibi_bias, reads=reads, num_heads=num_heads)}

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *, bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if query.dim() < 3 or query.shape[-3] != self.num_heads:
            raise ValueError(
                f"ALiBi(num_heads={self.num_heads}) received a query of shape {tuple(query.shape)}. "
                f"Split the heads first: it takes (..., {self.num_heads}, tokens, head_dim)."
            )
        if bias is None:
            places = torch.arange(key.shape[-2], device=query.device)
            bias = _bias(places[key.shape[-2] - query.shape[-2] :], places, self.num_heads)
        return query, key, value, bias

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}"


def _bias(of_queries: Tensor, of_keys: Tensor, num_heads: int) -> Tensor:
    """(..., T) and (..., S) to (..., H, T, S)."""
    distances = (of_queries[..., None, :, None] - of_keys[..., None, None, :]).abs()
    return distances * -alibi_slopes(num_heads, of_keys.device)[:, None, None]
