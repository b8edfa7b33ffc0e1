"""Which tokens a model has seen: how many, which of them are real, and at which positions they are.

Shapes: B rows (no B for a single sequence), T new tokens, S tokens with the earlier ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tokens:
    """A record of the tokens of every row. Records and their tensors are never changed, so they can be shared."""

    length: int = 0
    """S, the tokens of one row, padding included."""
    real: Tensor | None = None
    """(B, S), True = a real token. None: all are."""
    positions: Tensor | None = None
    """(B, S), -1 for padding before the first real token. None: each token is at the place where it came."""

    def followed_by(
        self,
        shape: tuple[int, ...],
        device: torch.device | None = None,
        padding_mask: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> tuple[Self, Tensor]:
        """The record with new tokens of `shape` (B, T) at the end, and the positions (B, T) of these.

        Positions go on from the last one and count real tokens only, unless they are given.

        >>> padding = torch.tensor([[False, True, True]])
        >>> tokens, positions = Tokens().followed_by((1, 3), padding_mask=padding)
        >>> positions
        tensor([[0, 0, 1]])
        >>> tokens.followed_by((1, 2))[1]
        tensor([[2, 3]])
        """
        length = self.length + shape[-1]
        if self.real is None and self.positions is None and padding_mask is None and positions is None:
            return type(self)(length), torch.arange(self.length, length, device=device).expand(shape)
        earlier = self._earlier_positions(shape[:-1], device)
        if positions is None:
            new = torch.arange(shape[-1], device=device) if padding_mask is None else padding_mask.cumsum(-1) - 1
            positions = new + (earlier[..., -1:] + 1) if self.length else new.expand(shape)
        real = None
        if self.real is not None or padding_mask is not None:
            real = torch.cat((_or_all(self.real, earlier), _or_all(padding_mask, positions)), -1)
        followed = type(self)(length, real, torch.cat((earlier, positions), -1))
        return followed, positions if padding_mask is None else positions.clamp(min=0)

    def first(self, length: int) -> Self:
        """The record of the first `length` tokens."""
        real = None if self.real is None else self.real[..., :length]
        positions = None if self.positions is None else self.positions[..., :length]
        return type(self)(length, real, positions)

    def select_rows(self, rows: Tensor) -> Self:
        """The record in which row i is row `rows[i]` of this one."""
        real = None if self.real is None else self.real.index_select(0, rows)
        positions = None if self.positions is None else self.positions.index_select(0, rows)
        return type(self)(self.length, real, positions)

    def _earlier_positions(self, rows: tuple[int, ...], device: torch.device | None) -> Tensor:
        if self.positions is not None:
            return self.positions
        return torch.arange(self.length, device=device).expand(*rows, self.length)


def _or_all(mask: Tensor | None, tokens: Tensor) -> Tensor:
    return torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
