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
from suture.models.backbone import Backbone, TokenEmbedding

WIDTH, HEAD_DIM = 32, 8


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


# Attention of one sequence to another


def attended(attention: sl.Chain, x: Tensor, keys: Tensor, values: Tensor, real: Tensor | None = None) -> Tensor:
    """The same from the parts, one head at a time."""
    query, key, value = (attention.layer(f"projections.{name}") for name in ("query", "key", "value"))
    heads: list[Tensor] = []
    for q, k, v in zip(
        *(projected.split(HEAD_DIM, -1) for projected in (query(x), key(keys), value(values))), strict=True
    ):
        scores = q @ k.transpose(-1, -2) * HEAD_DIM**-0.5
        if real is not None:
            scores = scores.masked_fill(~real[:, None], -torch.inf)
        heads.append(scores.softmax(-1) @ v)
    return attention.layer("output")(torch.cat(heads, -1))


def test_attention_takes_what_each_projection_gets() -> None:
    attention = sl.Attention(WIDTH, num_heads=4, key_dim=6, value_dim=10)
    x, keys, values = torch.randn(2, 5, WIDTH), torch.randn(2, 7, 6), torch.randn(2, 7, 10)
    torch.testing.assert_close(attention(x, keys, values), attended(attention, x, keys, values))


def test_attention_of_a_sequence_to_itself_is_self_attention() -> None:
    attention, alone = sl.Attention(WIDTH, num_heads=4, causal=True), sl.SelfAttention(WIDTH, 4, causal=True)
    alone.load_state_dict(attention.state_dict())
    x = torch.randn(2, 5, WIDTH)
    assert torch.equal(attention(x, x, x), alone(x))


def test_attention_leaves_out_the_padding_of_the_scope_that_it_names() -> None:
    attention = sl.Attention(WIDTH, num_heads=4, keys="image")
    x, keys = torch.randn(2, 5, WIDTH), torch.randn(2, 7, WIDTH)
    real = torch.arange(7) < torch.tensor([[4], [7]])
    torch.testing.assert_close(attention(x, keys, keys, padding_mask=real), attended(attention, x, keys, keys, real))


def test_attention_of_one_argument_is_refused() -> None:
    with pytest.raises(TypeError, match=r"gives one argument to each of its 3 children\. Received 1 arguments"):
        sl.Attention(WIDTH)(torch.zeros(1, 5, WIDTH))


@pytest.mark.parametrize(("kind", "before"), [(sl.Attention, []), (sl.CrossAttention, ["inputs"])])
def test_all_have_the_same_names(kind: type[sl.Attention] | type[sl.CrossAttention], before: list[str]) -> None:
    names = [place.path for place in kind(WIDTH, num_heads=4, num_key_value_heads=2).places()]
    inputs = [f"inputs.{name}" for name in ("query_input", "key_input", "value_input")] if before else []
    projections = ["projections", *(f"projections.{name}" for name in ("query", "key", "value"))]
    assert names == [*before, *inputs, *projections, "split", "attend", "merge", "output"]


# CrossAttention


def test_cross_attention_reads_its_sequence_from_the_context() -> None:
    attention = sl.CrossAttention(WIDTH, num_heads=4, sequence_dim=6)
    x, sequence = torch.randn(2, 5, WIDTH), torch.randn(2, 7, 6)
    expected = attended(attention, x, sequence, sequence)
    assert torch.equal(
        attention(x, sequence=sequence), attention(x, context={"cross_attention": {"sequence": sequence}})
    )
    torch.testing.assert_close(attention(x, sequence=sequence), expected)
    reads = [read.identity for read in attention.context_inputs]
    assert reads == [f"cross_attention.{key}" for key in ("sequence", "padding_mask", "attention_mask")]


def test_the_padding_of_the_sequence_is_left_out() -> None:
    attention = sl.CrossAttention(WIDTH, num_heads=4, context="image", key="patches")
    x, patches = torch.randn(2, 5, WIDTH), torch.randn(2, 7, WIDTH)
    real = torch.arange(7) < torch.tensor([[4], [7]])
    result = attention(x, patches=patches, padding_mask=real)
    torch.testing.assert_close(result, attended(attention, x, patches, patches, real))
    torch.testing.assert_close(result[:1], attention(x[:1], patches=patches[:1, :4]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_sequence_of_padding_alone_is_finite_and_harms_no_other(dtype: torch.dtype) -> None:
    attention = sl.CrossAttention(WIDTH, num_heads=4).to(dtype)
    x, sequence = torch.randn(2, 5, WIDTH, dtype=dtype), torch.randn(2, 7, WIDTH, dtype=dtype)
    real = torch.tensor([[False], [True]]).expand(2, 7)
    result = attention(x, sequence=sequence, padding_mask=real)
    result.sum().backward()
    assert bool(result.isfinite().all())
    assert all(
        parameter.grad is not None and bool(parameter.grad.isfinite().all()) for parameter in attention.parameters()
    )
    whole = attention(x, sequence=sequence, padding_mask=torch.ones_like(real))
    assert torch.equal(result, whole)  # a row of padding alone attends to all of it


def test_groups_of_query_heads_share_a_key_head() -> None:
    attention = sl.CrossAttention(WIDTH, num_heads=4, num_key_value_heads=2, head_dim=5, bias=False)
    assert [linear.out_features for linear in attention.layers(sl.Linear)] == [20, 10, 10, WIDTH]
    assert attention(torch.zeros(1, 3, WIDTH), sequence=torch.zeros(1, 2, WIDTH)).shape == (1, 3, WIDTH)


def test_a_missing_sequence_is_refused_by_name() -> None:
    with pytest.raises(sl.MissingContextError, match="reads the context entry 'patches' of 'image'"):
        sl.CrossAttention(WIDTH, context="image", key="patches")(torch.zeros(1, 3, WIDTH))


def test_a_padding_mask_that_does_not_fit_is_refused() -> None:
    attention, x = sl.CrossAttention(WIDTH), torch.zeros(1, 3, WIDTH)
    with pytest.raises(ValueError, match="entries of 'cross_attention' describe 4 keys, but 3 arrived"):
        attention(x, sequence=x, padding_mask=torch.ones(1, 4, dtype=torch.bool))
    with pytest.raises(TypeError, match=r"padding_mask is boolean, True = may attend; received torch\.int64"):
        attention(x, sequence=x, padding_mask=torch.ones(1, 3, dtype=torch.long))


def test_in_a_backbone_masks_and_cache_by_keyword_are_those_of_its_tokens() -> None:
    backbone = Backbone(
        embedding=TokenEmbedding(20, WIDTH),
        attention=sl.Residual(sl.SelfAttention(WIDTH, num_heads=4, causal=True)),
        cross=sl.Residual(sl.CrossAttention(WIDTH, num_heads=4)),
    )
    tokens, sequence = torch.tensor([[0, 3, 1, 4], [5, 9, 2, 6]]), torch.randn(2, 7, WIDTH)
    padding_mask = torch.tensor([[False, True, True, True], [True] * 4])
    cache = backbone.init_cache(batch=2, length=4)
    with torch.no_grad():
        whole = backbone(tokens, padding_mask=padding_mask, sequence=sequence)
        with backbone.context(cross_attention={"sequence": sequence}):
            pieces = [backbone(tokens[:, :3], padding_mask=padding_mask[:, :3], cache=cache)]
            pieces.append(backbone(tokens[:, 3:], cache=cache))
        alone = backbone(tokens[:1, 1:], sequence=sequence[:1])
    torch.testing.assert_close(torch.cat(pieces, 1)[padding_mask], whole[padding_mask])
    torch.testing.assert_close(whole[:1, 1:], alone)
