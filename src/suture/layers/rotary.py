"""Rotary position embedding: queries and keys are turned by angles that grow with their position.

A head of width D is D/2 planes; plane i is spanned by the elements i and i + D/2 of the head (the halves layout of
transformers). At position p it is turned by the angle p * frequency[i].

Shapes: B rows, T new tokens, H heads, D width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from suture.layers.cache import Cache
from suture.layers.context import Derived, Read
from suture.layers.functions import register_function
from suture.layers.symbolic import SymbolicCall

RotaryScaling = Callable[[Tensor], Tensor]
"""A function of the frequencies (D/2,), giving the frequencies to use."""


@dataclass(frozen=True)
class LinearScaling:
    """Every frequency divided by `factor`: positions are squeezed (https://arxiv.org/abs/2306.15595).

    >>> LinearScaling(factor=4.0)(torch.tensor([1.0, 0.5]))
    tensor([0.2500, 0.1250])
    """

    factor: float

    def __call__(self, frequencies: Tensor) -> Tensor:
        return frequencies / self.factor


@dataclass(frozen=True)
class Llama3Scaling:
    """Only slow planes are squeezed, as in Llama 3.1 (https://arxiv.org/abs/2407.21783).

    A plane that turns fewer than `low_freq_factor` times over the `original_max_position_embeddings` positions of
    pretraining is slowed down by `factor`; one that turns more than `high_freq_factor` times is left alone; between
    the two its frequency goes over from one to the other, linearly in the number of turns.

    >>> Llama3Scaling(8.0, 1.0, 4.0, 8192)(torch.tensor([1.0, 1e-4]))
    tensor([1.0000e+00, 1.2500e-05])
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __call__(self, frequencies: Tensor) -> Tensor:
        wavelengths = 2 * math.pi / frequencies
        turns = self.original_max_position_embeddings / wavelengths
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        blended = (1 - kept) * frequencies / self.factor + kept * frequencies
        return torch.where(
            turns < self.low_freq_factor,
            frequencies / self.factor,
            torch.where(turns > self.high_freq_factor, frequencies, blended),
        )


class RotaryTables:
    """The cosines and the signed sines of one call, each (..., 1, T, D); made in float32, cast once per dtype.

    The sines of the first half of a head are negative, so that turning is `x * cosines + rolled(x) * sines`.
    """

    def __init__(self, positions: Tensor, head_dim: int, base: float, scaling: RotaryScaling | None) -> None:
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions.device) / head_dim
        frequencies = 1.0 / base**exponents
        if scaling is not None:
            frequencies = scaling(frequencies)
        # The cosine does not see the sign and the sine takes it on: one set of angles gives both tables.
        angles = positions[..., None, :, None].float() * torch.cat((-frequencies, frequencies))
        cosines, sines = angles.cos(), angles.sin()
        self._cast = {cosines.dtype: (cosines, sines)}

    def of(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines in `dtype`."""
        if dtype not in self._cast:
            cosines, sines = self._cast[torch.float32]
            self._cast[dtype] = (cosines.to(dtype), sines.to(dtype))
        return self._cast[dtype]


@register_function
def rotary_tables(
    positions: Tensor | None, head_dim: int, base: float, scaling: RotaryScaling | None
) -> RotaryTables | None:
    """The tables at `positions` (..., T). None without positions: then each layer numbers the tokens for itself."""
    return None if positions is None else RotaryTables(positions, head_dim, base, scaling)


class Rotary(SymbolicCall):
    """Turns query and key by their positions, so that their product depends on the distance only.

    Called with (query, key) or (query, key, value, ...), each (..., H, T, D) with the heads split; query and key may
    differ in their number of heads. Returns the same with query and key turned.

    Positions are the entry `("inputs", "positions")`, which a backbone fills. Where nobody gives it, the tokens are
    numbered from 0, or from `cache.length` on where there is a cache.

    Args:
        head_dim: Width D of a head, an even number.
        base: The slowest plane turns about once in `2 * pi * base` positions.
        scaling: None, `LinearScaling`, `Llama3Scaling`, or any function of the frequencies.

    Raises:
        ValueError: `head_dim` is odd, or a query of another width arrives.

    Source: RoFormer, https://arxiv.org/abs/2104.09864.

    >>> query, key = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 3, 8)
    >>> turned_query, turned_key = Rotary(head_dim=8)(query, key)
    >>> torch.equal(turned_query[:, :, 0], query[:, :, 0]), torch.allclose(turned_key.norm(dim=-1), key.norm(dim=-1))
    (True, True)
    """

    if TYPE_CHECKING:

        def __call__(self, query: Tensor, key: Tensor, *others: Tensor) -> tuple[Tensor, ...]: ...

    def __init__(self, head_dim: int, base: float = 10_000.0, scaling: RotaryScaling | None = None) -> None:
        super().__init__()
        if head_dim % 2:
            raise ValueError(f"Rotary turns pairs of elements, so head_dim must be even; received {head_dim}.")
        self.head_dim = head_dim
        self.base = base
        self.scaling = scaling
        positions = Read("inputs", "positions", default=None)
        self.reads = {
            "tables": Derived(
                rotary_tables, reads={"positions": positions}, head_dim=head_dim, base=base, scaling=scaling
            ),
            "cache": Read("inputs", "cache", default=None),
        }

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        *others: Tensor,
        tables: RotaryTables | None = None,
        cache: Cache | None = None,
    ) -> tuple[Tensor, ...]:
        if query.shape[-1] != self.head_dim:
            raise ValueError(
                f"Rotary(head_dim={self.head_dim}) received a query of shape {tuple(query.shape)}. "
                f"Split the heads first: it takes (..., heads, tokens, head_dim)."
            )
        if tables is None:
            start = 0 if cache is None else cache.length
            positions = torch.arange(start, start + query.shape[-2], device=query.device)
            tables = RotaryTables(positions, self.head_dim, self.base, self.scaling)
        cosines, sines = tables.of(query.dtype)
        # Turned together: one kernel to join them, and three instead of six to turn them.
        heads = torch.cat((query, key), dim=-3)
        turned = torch.addcmul(heads * cosines, heads.roll(self.head_dim // 2, -1), sines)
        query_heads = query.shape[-3]
        return turned.narrow(-3, 0, query_heads), turned.narrow(-3, query_heads, key.shape[-3]), *others

    def extra_repr(self) -> str:
        scaling = "" if self.scaling is None else f", scaling={self.scaling}"
        return f"head_dim={self.head_dim}, base={self.base:g}{scaling}"
