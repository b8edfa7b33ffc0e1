from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

from suture import layers as sl

WIDTH, HEAD_DIM = 32, 8


def softmax_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(-1) @ value


def random_heads(*shapes: tuple[int, ...]) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(*shape) for shape in shapes]


# Heads


def test_heads_are_split_and_merged() -> None:
    query, key = torch.randn(2, 5, 32), torch.randn(2, 5, 16)
    split = sl.SplitHeads(head_dim=8)(query, key)
    assert [each.shape for each in split] == [(2, 4, 5, 8), (2, 2, 5, 8)]
    assert torch.equal(split[0][:, 1], query[..., 8:16])
    assert torch.equal(sl.MergeHeads()(split[0]), query)


def test_one_argument_is_split_alone_and_may_have_no_leading_dimension() -> None:
    split = sl.SplitHeads(head_dim=8)(torch.randn(5, 32))
    assert isinstance(split, Tensor)
    assert split.shape == (4, 5, 8)
    assert sl.MergeHeads()(split).shape == (5, 32)


def test_a_width_that_is_no_multiple_is_refused() -> None:
    with pytest.raises(ValueError, match=r"multiple of 8; received a tensor of shape \(2, 5, 30\)"):
        sl.SplitHeads(head_dim=8)(torch.zeros(2, 5, 30))


# ScaledDotProductAttention


@pytest.mark.parametrize("leading", [(), (2,), (2, 3), (2, 3, 4)])
def test_any_leading_dimensions(leading: tuple[int, ...]) -> None:
    query, key, value = random_heads(*[(*leading, 5, 8)] * 3)
    attend = sl.ScaledDotProductAttention()
    torch.testing.assert_close(attend(query, key, value), softmax_attention(query, key, value))


def test_a_sequence_of_one_without_heads() -> None:
    x = torch.randn(1, 1280)
    torch.testing.assert_close(sl.ScaledDotProductAttention()(x, x, x), x)


def test_fewer_key_heads_serve_groups_of_query_heads() -> None:
    query, key, value = random_heads((2, 6, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8))
    expected = softmax_attention(query, key.repeat_interleave(3, 1), value.repeat_interleave(3, 1))
    torch.testing.assert_close(sl.ScaledDotProductAttention()(query, key, value), expected)


@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (2, 5), (1, 5), (1, 1)])
def test_causal_queries_are_at_the_places_of_the_last_keys(queries: int, keys: int) -> None:
    query, key, value = random_heads((1, 2, queries, 8), (1, 2, keys, 8), (1, 2, keys, 8))
    mask = torch.ones(keys, keys, dtype=torch.bool).tril()[-queries:]
    expected = softmax_attention(query, key, value, mask)
    torch.testing.assert_close(sl.ScaledDotProductAttention(causal=True)(query, key, value), expected)


def test_the_scale_can_be_given() -> None:
    query, key, value = random_heads(*[(1, 2, 5, 8)] * 3)
    expected = softmax_attention(query * 3.0 * 8**0.5, key, value)
    torch.testing.assert_close(sl.ScaledDotProductAttention(scale=3.0)(query, key, value), expected)


@pytest.mark.parametrize("heads", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_padding_of_the_inputs_is_left_out(causal: bool, heads: bool) -> None:
    query, key, value = random_heads(*[(2, 3, 5, 8) if heads else (2, 5, 8)] * 3)
    padding_mask = torch.tensor([[False, True, True, True, True], [True, True, True, True, True]])
    attend = sl.Chain(sl.ScaledDotProductAttention(causal=causal))
    mask = padding_mask[:, None, :] & (torch.ones(5, 5, dtype=torch.bool).tril() if causal else torch.tensor(True))
    expected = softmax_attention(query, key, value, mask[:, None] if heads else mask)
    result = attend(query, key, value, padding_mask=padding_mask)
    torch.testing.assert_close(result[0, ..., 1:, :], expected[0, ..., 1:, :])
    torch.testing.assert_close(result[1], expected[1])


def test_keys_of_another_sequence_are_described_by_another_scope() -> None:
    query, key, value = random_heads((2, 3, 5, 8), (2, 3, 4, 8), (2, 3, 4, 8))
    of_image = torch.tensor([[True, True, True, False], [True, True, True, True]])
    of_inputs = torch.tensor([[False, True, True, True, True]] * 2)
    attend = sl.Chain(sl.ScaledDotProductAttention(keys="image"))
    result = attend(query, key, value, context={"image": {"padding_mask": of_image}})
    torch.testing.assert_close(result, softmax_attention(query, key, value, of_image[:, None, None]))

    unmasked = sl.Chain(sl.Parallel(sl.ScaledDotProductAttention(keys=None), sl.UseContext("inputs", "padding_mask")))
    result, _ = unmasked(query, key, value, padding_mask=of_inputs)
    torch.testing.assert_close(result, softmax_attention(query, key, value))


def test_keys_of_another_sequence_under_the_mask_of_the_inputs_are_refused() -> None:
    query, key, value = random_heads((2, 3, 5, 8), (2, 3, 4, 8), (2, 3, 4, 8))
    attend = sl.Chain(sl.ScaledDotProductAttention())
    with pytest.raises(ValueError, match="entries of 'inputs' describe 5 keys, but 4 arrived"):
        attend(query, key, value, padding_mask=torch.ones(2, 5, dtype=torch.bool))


def test_the_mask_is_made_once_for_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    arange = torch.arange

    def counted(*args: int, **kwargs: torch.device) -> Tensor:
        calls.append("arange")
        return arange(*args, **kwargs)

    monkeypatch.setattr(torch, "arange", counted)
    model = sl.Chain(*(sl.SelfAttention(8, causal=True) for _ in range(3)))
    model(torch.randn(1, 3, 8), padding_mask=torch.tensor([[False, True, True]]))
    assert len(calls) == 1


# SelfAttention


def transformers_attention(ours: sl.SelfAttention, heads: int, groups: int) -> Callable[[Tensor], Tensor]:
    fields: dict[str, Any] = {"hidden_size": WIDTH, "head_dim": HEAD_DIM, "attention_bias": True}
    fields |= {"num_attention_heads": heads, "num_key_value_heads": groups, "attn_implementation": "eager"}
    config = LlamaConfig(**fields)
    theirs = LlamaAttention(config, layer_idx=0)
    names = {"q_proj": "projections.query", "k_proj": "projections.key", "v_proj": "projections.value"}
    for name, path in {**names, "o_proj": "output"}.items():
        theirs.get_submodule(name).load_state_dict(ours.layer(path, nn.Linear).state_dict())
    rotary = LlamaRotaryEmbedding(config)

    def call(x: Tensor) -> Tensor:
        length = x.shape[1]
        mask = torch.full((length, length), -torch.inf).triu(1)[None, None]
        positions = torch.arange(length)[None]
        return theirs(x, position_embeddings=rotary(x, positions), attention_mask=mask)[0]

    return call


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_self_attention_equals_transformers(groups: int) -> None:
    torch.manual_seed(0)
    ours = sl.SelfAttention(
        WIDTH, num_heads=4, num_key_value_heads=groups, head_dim=HEAD_DIM, causal=True, rotary=sl.Rotary(HEAD_DIM)
    )
    for parameter in ours.parameters():
        nn.init.normal_(parameter, std=0.5)
    x = torch.randn(2, 6, WIDTH)
    torch.testing.assert_close(ours(x), transformers_attention(ours, 4, groups)(x), rtol=0, atol=1e-5)


def test_the_tree_of_self_attention() -> None:
    attention = sl.SelfAttention(WIDTH, num_heads=4, num_key_value_heads=2, causal=True, rotary=sl.Rotary(HEAD_DIM))
    paths = [place.path for place in attention.places()]
    projections = ["projections.query", "projections.key", "projections.value"]
    after = ["split", "rotary", "cache", "attend", "merge", "output"]
    assert paths == ["projections", *projections, *after]
    assert [linear.out_features for linear in attention.layers(sl.Linear)] == [32, 16, 16, 32]


def test_attention_that_is_not_causal_has_no_cache() -> None:
    attention = sl.SelfAttention(WIDTH, num_heads=4)
    assert attention.find(sl.KVCache) is None
    assert attention.find(sl.Rotary) is None


def test_without_bias() -> None:
    attention = sl.SelfAttention(WIDTH, bias=False)
    assert all(linear.bias is None for linear in attention.layers(sl.Linear))


def test_head_width_is_free() -> None:
    attention = sl.SelfAttention(WIDTH, num_heads=3, head_dim=5)
    assert attention(torch.randn(2, WIDTH)).shape == (2, WIDTH)


def test_not_causal_is_symmetric() -> None:
    attention, x = sl.SelfAttention(WIDTH, num_heads=4), torch.randn(1, 5, WIDTH)
    torch.testing.assert_close(attention(x.flip(1)).flip(1), attention(x))


def test_causal_does_not_look_ahead() -> None:
    attention, x = sl.SelfAttention(WIDTH, num_heads=4, causal=True), torch.randn(1, 5, WIDTH)
    longer = F.pad(x, (0, 0, 0, 2), value=1.0)
    torch.testing.assert_close(attention(longer)[:, :5], attention(x))
    assert not torch.allclose(attention(longer)[:, 4:5], attention(longer)[:, 5:6])


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="5 heads do not divide an embedding_dim of 32"):
        sl.SelfAttention(WIDTH, num_heads=5)
    with pytest.raises(ValueError, match="num_heads=4, num_key_value_heads=3"):
        sl.SelfAttention(WIDTH, num_heads=4, num_key_value_heads=3)
