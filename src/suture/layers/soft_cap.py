"""Soft caps: numbers are bent so that none is beyond a limit, and small ones stay what they are.

Shapes: any leading dimensions (...), H heads, T queries, S keys, D width of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from suture.layers.attend import ScaledDotProductAttention
from suture.layers.torch_layers.call import OfOneTensor


class SoftCap(OfOneTensor):
    """`cap * tanh(x / cap)` of each element, of any shape, which stays.

    Raises:
        ValueError: `cap` is not above zero.

    Source: https://arxiv.org/abs/2408.00118, section 2.

    >>> SoftCap(30.0)(torch.tensor([0.01, 30.0, 1e4]))
    tensor([1.0000e-02, 2.2848e+01, 3.0000e+01])
    """

    def __init__(self, cap: float) -> None:
        super().__init__()
        if not cap > 0:
            raise ValueError(f"A soft cap is a number above 0; received {cap}.")
        self.cap = cap

    def forward(self, x: Tensor) -> Tensor:
        return soft_capped(x, self.cap)

    def extra_repr(self) -> str:
        return f"{self.cap:g}"


class SoftCappedAttention(ScaledDotProductAttention):
    """Softmax attention whose scaled scores are capped softly before they are masked.

    Called as `ScaledDotProductAttention`, which says what the other arguments are. The softmax is taken in float32. No
    fused kernel does this on every device, so the scores (..., H, T, S) are made as such.

    Raises:
        ValueError: As `ScaledDotProductAttention`, or `cap` is not above zero.

    Source: https://arxiv.org/abs/2408.00118, section 2.

    >>> query = key = value = torch.eye(2)
    >>> SoftCappedAttention(cap=0.1, causal=True)(query, key, value)
    tensor([[1.0000, 0.0000],
            [0.4750, 0.5250]])
    """

    def __init__(
        self,
        cap: float,
        causal: bool = False,
        scale: float | None = None,
        keys: str | None = "inputs",
        window: int | None = None,
    ) -> None:
        super().__init__(causal, scale, keys, window)
        if not cap > 0:
            raise ValueError(f"A soft cap is a number above 0; received {cap}.")
        self.cap = cap

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None, *, mask: Tensor | None = None
    ) -> Tensor:
        mask = self.mask_for(query, key, bias, mask)
        queries, keys = query.shape[-2], key.shape[-2]
        if mask is None and self.causal and queries > 1:
            mask = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)
        if query.dim() > 2 and query.shape[-3] != key.shape[-3]:
            shared_by = query.shape[-3] // key.shape[-3]
            key, value = key.repeat_interleave(shared_by, -3), value.repeat_interleave(shared_by, -3)
        scale = query.shape[-1] ** -0.5 if self.scale is None else self.scale
        scores = soft_capped(query @ key.transpose(-1, -2) * scale, self.cap)
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        return scores.softmax(-1, dtype=torch.float32).to(value.dtype) @ value

    def extra_repr(self) -> str:
        return ", ".join(part for part in (f"cap={self.cap:g}", super().extra_repr()) if part)


def soft_capped(x: Tensor, cap: float) -> Tensor:
    """`cap * tanh(x / cap)`."""
    return (x / cap).tanh() * cap
