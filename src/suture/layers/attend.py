"""Softmax attention itself, from heads to heads, without any weights.

Shapes: any leading dimensions (...), B rows, H heads, T queries, S keys, D width of a head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from suture.layers.context import Declaration
from suture.layers.masks import mask_of
from suture.layers.symbolic import SymbolicCall


class ScaledDotProductAttention(SymbolicCall):
    """`softmax(query @ key.T * scale) @ value`, of (..., T, D), (..., S, D) and (..., S, D).

    With heads split, (..., H, T, D), keys and values may have fewer heads than queries: each serves a group of them
    (https://arxiv.org/abs/2305.13245).

    A fourth argument, where there is one, is added to the scores before the softmax: a bias that broadcasts to
    (..., H, T, S), as `ALiBi` makes it.

    What a query may attend to comes from the context, where it is given. By default from the scope `"inputs"`, the
    tokens of the backbone: `padding_mask`, `attention_mask`, `positions` and `cache`, all of them optional; so padding
    is left out of every attention of a token to other tokens. Attention to another sequence (an image, an encoded
    text) says which scope describes it, with `padding_mask` (B, S) and `attention_mask` (B, T, S) or (B, H, T, S), True
    = may attend; or `keys=None` for nothing to be left out.

    Args:
        causal: Whether a query attends only to keys up to its own place. The last query is at the place of the last
            key, so queries may be fewer than keys.
        scale: By default `D ** -0.5`.
        keys: The context scope that describes the keys.
        window: With `causal`, to how many tokens at most a token attends, itself included; padding does not count.
            None: to all. Keys that are in no window may have been dropped, as `KVCache(window)` does.

    Raises:
        ValueError: the mask, or the bias, is not of as many keys as arrive, or a window is given without `causal`.
        TypeError: a mask is not boolean.

    Source: https://arxiv.org/abs/1706.03762.

    >>> query = key = value = torch.eye(2)
    >>> ScaledDotProductAttention(causal=True)(query, key, value)
    tensor([[1.0000, 0.0000],
            [0.3302, 0.6698]])
    """

    if TYPE_CHECKING:

        def __call__(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None, /) -> Tensor: ...

    def __init__(
        self, causal: bool = False, scale: float | None = None, keys: str | None = "inputs", window: int | None = None
    ) -> None:
        super().__init__()
        if window is not None and (window < 1 or not causal):
            raise ValueError(
                f"A window is how many tokens back a causal attention sees, itself included, so it is 1 or more and "
                f"causal=True; received window={window}, causal={causal}."
            )
        self.causal = causal
        self.scale = scale
        self.keys = keys
        self.window = window
        self.reads: dict[str, Declaration] = {} if keys is None else {"mask": mask_of(keys, causal, window)}

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None, *, mask: Tensor | None = None
    ) -> Tensor:
        mask = self.mask_for(query, key, bias, mask)
        causal = mask is None and self.causal
        if query.shape[-2] == 1:
            # Asked here, not computed: where lengths are dynamic the answer would be a symbol.
            causal = False
        grouped = query.dim() > 2 and query.shape[-3] != key.shape[-3]
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=causal, scale=self.scale, enable_gqa=grouped
        )

    def mask_for(self, query: Tensor, key: Tensor, bias: Tensor | None, mask: Tensor | None) -> Tensor | None:
        """The mask of a call, boolean, or what is added to the scores. None: nothing beyond plain causality."""
        queries, keys = query.shape[-2], key.shape[-2]
        dropped = self.window is not None and queries <= keys
        if mask is not None:
            if dropped and mask.shape[-1] > keys:
                mask = mask[..., -keys:]
            if mask.shape[-1] != keys:
                raise ValueError(
                    f"The context entries of {self.keys!r} describe {mask.shape[-1]} keys, but {keys} arrived. "
                    f"Where the keys are of another sequence, name its scope or None for no mask: "
                    f"ScaledDotProductAttention(keys=...)."
                )
            if mask.dim() > query.dim():
                mask = mask.squeeze(-3)
        elif self.causal and (queries > 1 or (self.window is not None and keys > self.window)):
            beyond = self.window is not None and keys > self.window
            if queries != keys or bias is not None or beyond:
                mask = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)
            if mask is not None and self.window is not None:
                mask = mask.triu(keys - queries - self.window + 1)
        if bias is not None:
            bias = bias[..., -keys:] if dropped else bias
            mask = self._biased(bias, mask, query, keys)
        return mask

    def _biased(self, bias: Tensor, mask: Tensor | None, query: Tensor, keys: int) -> Tensor:
        """Bias and mask in one, to be added to the scores."""
        if bias.shape[-1] not in (1, keys):
            raise ValueError(
                f"The bias that ScaledDotProductAttention adds to its scores is of {bias.shape[-1]} keys, shape "
                f"{tuple(bias.shape)}, but {keys} keys arrived. Put what makes it directly before this layer."
            )
        bias = bias.to(query.dtype)
        return bias if mask is None else torch.where(mask, bias, -torch.inf)

    def extra_repr(self) -> str:
        parts = ["causal=True"] if self.causal else []
        parts += [f"scale={self.scale:g}"] if self.scale is not None else []
        parts += [f"keys={self.keys!r}"] if self.keys != "inputs" else []
        parts += [f"window={self.window}"] if self.window is not None else []
        return ", ".join(parts)
