"""The shapes that the docstrings of the layers give, as types that are checked when the layers are called.

Shapes: B rows, T queries, S keys, H heads, G key heads, D width of a head, E width of a sequence.
"""
# ruff: noqa: F722 (the shapes are not Python)

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from beartype import beartype
from jaxtyping import Bool, Float, Int, TypeCheckError, jaxtyped  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor

from suture import layers as sl

checked = jaxtyped(typechecker=beartype)
Layer = Callable[..., Tensor]
SIZES = [(1, 1, 1), (2, 5, 3), (3, 4, 7)]


@checked
def keeps_its_shape(layer: Layer, x: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    return layer(x)


@checked
def attends(
    attention: Layer,
    x: Float[Tensor, "*rows T E"],
    keys: Float[Tensor, "*rows S K"],
    values: Float[Tensor, "*rows S V"],
) -> Float[Tensor, "*rows T E"]:
    return attention(x, keys, values)


@checked
def attends_to_the_context(
    attention: sl.CrossAttention,
    x: Float[Tensor, "B T E"],
    sequence: Float[Tensor, "B S K"],
    padding_mask: Bool[Tensor, "B S"],
) -> Float[Tensor, "B T E"]:
    return attention(x, sequence=sequence, padding_mask=padding_mask)


@checked
def attends_by_heads(
    query: Float[Tensor, "B H T D"],
    key: Float[Tensor, "B G S D"],
    value: Float[Tensor, "B G S D"],
    bias: Float[Tensor, "H T S"],
) -> Float[Tensor, "B H T D"]:
    return sl.ScaledDotProductAttention()(query, key, value, bias)


@checked
def biased(
    query: Float[Tensor, "B H T D"], key: Float[Tensor, "B G S D"]
) -> tuple[Float[Tensor, "B H T D"], Float[Tensor, "B G S D"], Float[Tensor, "B G S D"], Float[Tensor, "H T S"]]:
    return sl.ALiBi(query.shape[1])(query, key, key)


@checked
def turned(
    query: Float[Tensor, "B H T D"], key: Float[Tensor, "B G T D"]
) -> tuple[Float[Tensor, "B H T D"], Float[Tensor, "B G T D"]]:
    query, key = sl.Rotary(query.shape[-1])(query, key)
    return query, key


@checked
def looked_up(layer: Layer, ids: Int[Tensor, "*any"], weight: Float[Tensor, "rows E"]) -> Float[Tensor, "*any E"]:
    return layer(ids)


@pytest.mark.parametrize(("batch", "queries", "keys"), SIZES)
def test_attention(batch: int, queries: int, keys: int) -> None:
    x, key, value = torch.randn(batch, queries, 8), torch.randn(batch, keys, 6), torch.randn(batch, keys, 10)
    attends(sl.Attention(8, num_heads=2, key_dim=6, value_dim=10), x, key, value)
    attends(sl.Attention(8, key_dim=6, value_dim=10), x[0], key[0], value[0])
    mask = torch.ones(batch, keys, dtype=torch.bool)
    attends_to_the_context(sl.CrossAttention(8, num_heads=2, sequence_dim=6), x, key, mask)
    keeps_its_shape(sl.SelfAttention(8, num_heads=2, causal=True), x)
    query, key = torch.randn(batch, 6, queries, 4), torch.randn(batch, 2, max(keys, queries), 4)
    *_, bias = biased(query, key)
    attends_by_heads(query, key, key, bias)
    turned(query, key[:, :, :queries])


@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 8), (2, 1, 5, 8)])
def test_what_keeps_its_shape(shape: tuple[int, ...]) -> None:
    layers = [sl.FeedForward(8, 20), sl.GatedFeedForward(8, 20), sl.Residual(sl.Linear(8, 8)), sl.RMSNorm(8)]
    layers += [sl.LearnedPositions(9, 8), sl.SinusoidalPositions(8), sl.ToDtype(torch.float64), sl.Dropout(), sl.Mish()]
    for layer in layers:
        keeps_its_shape(layer, torch.randn(shape))
    embedding = sl.Embedding(10, 8)
    looked_up(embedding, torch.zeros(shape, dtype=torch.long), embedding.weight)


def test_a_signature_that_is_wrong_is_noticed() -> None:
    with pytest.raises(TypeCheckError, match="keeps_its_shape"):
        keeps_its_shape(sl.Linear(8, 4), torch.zeros(2, 8))
