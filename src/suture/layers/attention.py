"""Softmax attention, as layers from the heads of a projection to the heads of a result.

Shapes: any leading dimensions (...), H heads, T queries, S keys, D width of a head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suture.layers.cache import KVCache
from suture.layers.chain import Chain, Parallel
from suture.layers.context import Declaration
from suture.layers.masks import mask_of
from suture.layers.torch_layers import Linear


class SplitHeads(nn.Module):
    """Splits the last dimension of each argument into heads: (..., T, H * D) to (..., H, T, D).

    One argument gives one result, several give a tuple. Each may have its own number of heads.

    Raises:
        ValueError: a last dimension is not a multiple of `head_dim`.

    >>> SplitHeads(head_dim=8)(torch.zeros(2, 5, 32)).shape
    torch.Size([2, 4, 5, 8])
    """

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim

    def forward(self, *projections: Tensor) -> Tensor | tuple[Tensor, ...]:
        split = tuple(self._split(projection) for projection in projections)
        return split[0] if len(split) == 1 else split

    def _split(self, projection: Tensor) -> Tensor:
        *leading, width = projection.shape
        if width % self.head_dim:
            raise ValueError(
                f"SplitHeads(head_dim={self.head_dim}) splits a last dimension that is a multiple of {self.head_dim}; "
                f"received a tensor of shape {tuple(projection.shape)}."
            )
        return projection.view(*leading, width // self.head_dim, self.head_dim).transpose(-2, -3)

    def extra_repr(self) -> str:
        return f"head_dim={self.head_dim}"


class MergeHeads(nn.Module):
    """Puts the heads side by side again: (..., H, T, D) to (..., T, H * D).

    >>> MergeHeads()(torch.zeros(2, 4, 5, 8)).shape
    torch.Size([2, 5, 32])
    """

    if TYPE_CHECKING:

        def __call__(self, heads: Tensor, /) -> Tensor: ...

    def forward(self, heads: Tensor) -> Tensor:
        return heads.transpose(-2, -3).flatten(-2)


class ScaledDotProductAttention(nn.Module):
    """`softmax(query @ key.T * scale) @ value`, of (..., T, D), (..., S, D) and (..., S, D).

    With heads split, (..., H, T, D), keys and values may have fewer heads than queries: each serves a group of them
    (https://arxiv.org/abs/2305.13245).

    What a query may attend to comes from the context, where it is given: `padding_mask`, `attention_mask`, `positions`
    and `cache` of the scope `keys`, all of them optional. By default that is `"inputs"`, the tokens of the backbone, so
    padding is left out of every attention of a token to other tokens. Attention to another sequence (an image, an
    encoded text) says which scope describes it, or `keys=None` for nothing to be left out.

    Args:
        causal: Whether a query attends only to keys up to its own place. The last query is at the place of the last
            key, so queries may be fewer than keys.
        scale: By default `D ** -0.5`.
        keys: The context scope that describes the keys.

    Raises:
        ValueError: the mask is not of as many keys as arrive.

    Source: https://arxiv.org/abs/1706.03762.

    >>> query = key = value = torch.eye(2)
    >>> ScaledDotProductAttention(causal=True)(query, key, value)
    tensor([[1.0000, 0.0000],
            [0.3302, 0.6698]])
    """

    if TYPE_CHECKING:

        def __call__(self, query: Tensor, key: Tensor, value: Tensor, /) -> Tensor: ...

    def __init__(self, causal: bool = False, scale: float | None = None, keys: str | None = "inputs") -> None:
        super().__init__()
        self.causal = causal
        self.scale = scale
        self.keys = keys
        self.reads: dict[str, Declaration] = {} if keys is None else {"mask": mask_of(keys, causal)}

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        queries, keys = query.shape[-2], key.shape[-2]
        causal = False
        if mask is not None:
            if mask.shape[-1] != keys:
                raise ValueError(
                    f"The context entries of {self.keys!r} describe {mask.shape[-1]} keys, but {keys} arrived. "
                    f"Where the keys are of another sequence, name its scope or None for no mask: "
                    f"ScaledDotProductAttention(keys=...)."
                )
            if mask.dim() > query.dim():
                mask = mask.squeeze(-3)
        elif self.causal and queries > 1:
            if queries == keys:
                causal = True
            else:
                mask = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)
        grouped = query.dim() > 2 and query.shape[-3] != key.shape[-3]
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=causal, scale=self.scale, enable_gqa=grouped
        )

    def extra_repr(self) -> str:
        parts = ["causal=True"] if self.causal else []
        parts += [f"scale={self.scale:g}"] if self.scale is not None else []
        parts += [f"keys={self.keys!r}"] if self.keys != "inputs" else []
        return ", ".join(parts)


class SelfAttention(Chain):
    """Attention of a sequence (..., T, embedding_dim) to itself.

    Its layers are `projections` (`query`, `key`, `value`), `split`, `rotary` where one is given, `cache` where it is
    causal, `attend`, `merge` and `output`.

    Args:
        embedding_dim: Width of the sequence.
        num_heads: Of queries.
        num_key_value_heads: Of keys and values; by default as many. Must divide `num_heads`.
        head_dim: Width of a head; by default `embedding_dim / num_heads`.
        bias: Whether the four linear layers have one.
        causal: Whether a token attends only to tokens up to itself; then it can be called piece by piece with a cache.
        rotary: What turns queries and keys by their positions.

    Raises:
        ValueError: the numbers do not divide.

    >>> from suture import layers as sl
    >>> attention = sl.SelfAttention(32, num_heads=4, num_key_value_heads=2, causal=True, rotary=sl.Rotary(head_dim=8))
    >>> attention(torch.zeros(1, 5, 32)).shape
    torch.Size([1, 5, 32])
    """

    def __init__(
        self,
        embedding_dim: int,
        num_heads: int = 1,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = True,
        causal: bool = False,
        rotary: nn.Module | None = None,
    ) -> None:
        num_key_value_heads = num_heads if num_key_value_heads is None else num_key_value_heads
        if head_dim is None and embedding_dim % num_heads:
            raise ValueError(
                f"{num_heads} heads do not divide an embedding_dim of {embedding_dim}: give head_dim as well."
            )
        if num_heads % num_key_value_heads:
            raise ValueError(
                f"Each key head serves equally many query heads; received num_heads={num_heads}, "
                f"num_key_value_heads={num_key_value_heads}."
            )
        head_dim = embedding_dim // num_heads if head_dim is None else head_dim
        layers: dict[str, nn.Module] = {
            "projections": Parallel(
                query=Linear(embedding_dim, num_heads * head_dim, bias=bias),
                key=Linear(embedding_dim, num_key_value_heads * head_dim, bias=bias),
                value=Linear(embedding_dim, num_key_value_heads * head_dim, bias=bias),
            ),
            "split": SplitHeads(head_dim),
        }
        if rotary is not None:
            layers["rotary"] = rotary
        if causal:
            layers["cache"] = KVCache()
        layers["attend"] = ScaledDotProductAttention(causal=causal)
        layers["merge"] = MergeHeads()
        layers["output"] = Linear(num_heads * head_dim, embedding_dim, bias=bias)
        super().__init__(layers)
