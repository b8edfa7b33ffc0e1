"""Attention as trees of layers, from sequences to a sequence.

All of them have the same names: `projections` with `query`, `key` and `value`, `split`, `attend`, `merge` and `output`.

Shapes: any leading dimensions (...), B rows, T queries, S keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from suture.layers.attend import ScaledDotProductAttention
from suture.layers.basic import Identity, UseContext
from suture.layers.cache import KVCache
from suture.layers.chain import Chain, Distribute, Parallel
from suture.layers.heads import MergeHeads, SplitHeads
from suture.layers.torch_layers import Linear


@dataclass(frozen=True)
class _Projections:
    """The linear layers of an attention. Raises `ValueError` where the numbers do not divide."""

    embedding_dim: int
    num_heads: int
    num_key_value_heads: int | None
    head_dim: int | None
    bias: bool

    def __post_init__(self) -> None:
        if self.head_dim is None and self.embedding_dim % self.num_heads:
            raise ValueError(
                f"{self.num_heads} heads do not divide an embedding_dim of {self.embedding_dim}: give head_dim as well."
            )
        if self.num_heads % self.key_value_heads:
            raise ValueError(
                f"Each key head serves equally many query heads; received num_heads={self.num_heads}, "
                f"num_key_value_heads={self.key_value_heads}."
            )

    @property
    def key_value_heads(self) -> int:
        return self.num_heads if self.num_key_value_heads is None else self.num_key_value_heads

    @property
    def width(self) -> int:
        """Of a head."""
        return self.embedding_dim // self.num_heads if self.head_dim is None else self.head_dim

    def inward(self, key_dim: int, value_dim: int) -> dict[str, torch.nn.Module]:
        return {
            "query": Linear(self.embedding_dim, self.num_heads * self.width, bias=self.bias),
            "key": Linear(key_dim, self.key_value_heads * self.width, bias=self.bias),
            "value": Linear(value_dim, self.key_value_heads * self.width, bias=self.bias),
        }

    def output(self) -> Linear:
        return Linear(self.num_heads * self.width, self.embedding_dim, bias=self.bias)


class Attention(Chain):
    """Attention of one sequence to another, called with what each projection gets.

    (..., T, embedding_dim), (..., S, key_dim) and (..., S, value_dim) give (..., T, embedding_dim). Its layers are
    `projections` (`query`, `key`, `value`), `split`, `attend`, `merge` and `output`.

    Args:
        embedding_dim: Width of the queries' sequence.
        num_heads: Of queries.
        key_dim: Width of what the keys are made of; by default `embedding_dim`.
        value_dim: Width of what the values are made of; by default `embedding_dim`.
        num_key_value_heads: Of keys and values; by default as many as of queries. Must divide `num_heads`.
        head_dim: Width of a head; by default `embedding_dim / num_heads`.
        bias: Whether the four linear layers have one.
        causal: Whether a query attends only to keys up to its own place. The last query is at the place of the last
            key.
        keys: The context scope that describes the keys, as of `ScaledDotProductAttention`; by default none.

    Raises:
        ValueError: the numbers do not divide.
        TypeError: it is not called with three arguments.

    Source: https://arxiv.org/abs/1706.03762.

    >>> tokens, image = torch.zeros(1, 5, 32), torch.zeros(1, 9, 12)
    >>> Attention(32, num_heads=4, key_dim=12, value_dim=12)(tokens, image, image).shape
    torch.Size([1, 5, 32])
    """

    def __init__(
        self,
        embedding_dim: int,
        num_heads: int = 1,
        key_dim: int | None = None,
        value_dim: int | None = None,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = True,
        causal: bool = False,
        keys: str | None = None,
    ) -> None:
        projections = _Projections(embedding_dim, num_heads, num_key_value_heads, head_dim, bias)
        key_dim = embedding_dim if key_dim is None else key_dim
        value_dim = embedding_dim if value_dim is None else value_dim
        super().__init__(
            projections=Distribute(projections.inward(key_dim, value_dim)),
            split=SplitHeads(projections.width),
            attend=ScaledDotProductAttention(causal=causal, keys=keys),
            merge=MergeHeads(),
            output=projections.output(),
        )


class SelfAttention(Chain):
    """Attention of a sequence to itself: (..., T, embedding_dim) to the same.

    Its layers are `projections` (`query`, `key`, `value`), `split`, `norms` and `rotary` where they are given, `cache`
    where it is causal, `attend`, `merge` and `output`.

    Args:
        embedding_dim: Width of the sequence.
        num_heads: Of queries.
        num_key_value_heads: Of keys and values; by default as many. Must divide `num_heads`.
        head_dim: Width of a head; by default `embedding_dim / num_heads`.
        bias: Whether the four linear layers have one.
        causal: Whether a token attends only to tokens up to itself; then it can be called piece by piece with a cache.
        rotary: What turns queries and keys by their positions.
        norms: What normalises heads, called with those of query, key and value, and returning as many.
        attend: What attends, where it is not `ScaledDotProductAttention(causal)`: with another scale or a window.

    Raises:
        ValueError: the numbers do not divide, or it is to be causal and what attends is not.

    Source: https://arxiv.org/abs/1706.03762; several queries to a key, https://arxiv.org/abs/2305.13245.

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
        rotary: torch.nn.Module | None = None,
        norms: torch.nn.Module | None = None,
        attend: ScaledDotProductAttention | None = None,
    ) -> None:
        projections = _Projections(embedding_dim, num_heads, num_key_value_heads, head_dim, bias)
        attend = ScaledDotProductAttention(causal=causal) if attend is None else attend
        if attend.causal != causal:
            raise ValueError(f"An attention with causal={causal} is not one that attends by {attend!r}.")
        layers: dict[str, torch.nn.Module] = {
            "projections": Parallel(projections.inward(embedding_dim, embedding_dim)),
            "split": SplitHeads(projections.width),
        }
        if norms is not None:
            layers["norms"] = norms
        if rotary is not None:
            layers["rotary"] = rotary
        if causal:
            layers["cache"] = KVCache(window=attend.window)
        layers["attend"] = attend
        layers["merge"] = MergeHeads()
        layers["output"] = projections.output()
        super().__init__(layers)


class CrossAttention(Chain):
    """Attention of a sequence to one from outside, which the context holds: (B, T, embedding_dim) to the same.

    It reads the entry `key` of the scope `context`, the sequence (B, S, sequence_dim), and, where it is given, the
    `padding_mask` (B, S) of the same scope, True = real; a row of nothing but padding attends to all of it. Its layers
    are `inputs` (the call's argument, and twice the entry), `projections` (`query`, `key`, `value`), `split`, `attend`,
    `merge` and `output`.

    Args:
        embedding_dim: Width of the sequence that it is called with.
        num_heads: Of queries.
        sequence_dim: Width of the sequence from outside; by default `embedding_dim`.
        num_key_value_heads: Of keys and values; by default as many as of queries. Must divide `num_heads`.
        head_dim: Width of a head; by default `embedding_dim / num_heads`.
        bias: Whether the four linear layers have one.
        context: The scope of the sequence from outside.
        key: Its key there.

    Raises:
        ValueError: the numbers do not divide, or the padding mask is not of as many keys as the sequence.
        MissingContextError: the sequence was not given.

    Source: https://arxiv.org/abs/1706.03762.

    >>> attention = CrossAttention(32, num_heads=4, sequence_dim=12, context="image", key="patches")
    >>> tokens, patches = torch.zeros(1, 5, 32), torch.zeros(1, 9, 12)
    >>> attention(tokens, patches=patches).shape
    torch.Size([1, 5, 32])
    >>> mask = torch.arange(9)[None] < 6
    >>> attention(tokens, context={"image": {"patches": patches, "padding_mask": mask}}).shape
    torch.Size([1, 5, 32])
    """

    def __init__(
        self,
        embedding_dim: int,
        num_heads: int = 1,
        sequence_dim: int | None = None,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = True,
        context: str = "cross_attention",
        key: str = "sequence",
    ) -> None:
        projections = _Projections(embedding_dim, num_heads, num_key_value_heads, head_dim, bias)
        sequence_dim = embedding_dim if sequence_dim is None else sequence_dim
        super().__init__(
            inputs=Parallel(
                query_input=Identity(), key_input=UseContext(context, key), value_input=UseContext(context, key)
            ),
            projections=Distribute(projections.inward(sequence_dim, sequence_dim)),
            split=SplitHeads(projections.width),
            attend=ScaledDotProductAttention(keys=context),
            merge=MergeHeads(),
            output=projections.output(),
        )
