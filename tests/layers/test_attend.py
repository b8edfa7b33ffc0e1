from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from suture import layers as sl


def softmax_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(-1) @ value


def random_heads(*shapes: tuple[int, ...]) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(*shape) for shape in shapes]


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


# A bias


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_a_bias_is_added_to_the_scores(causal: bool, padded: bool) -> None:
    query, key, value = random_heads(*[(2, 3, 5, 8)] * 3)
    bias = torch.randn(3, 5, 5)
    padding_mask = torch.tensor([[False] * padded + [True] * (5 - padded), [True] * 5])
    mask = padding_mask[:, None, None] & (torch.ones(5, 5, dtype=torch.bool).tril() | (not causal))
    scores = query @ key.transpose(-1, -2) * 8**-0.5 + bias
    expected = scores.masked_fill(~mask, -torch.inf).softmax(-1) @ value
    attend = sl.Chain(sl.ScaledDotProductAttention(causal=causal))
    context = {"inputs": {"padding_mask": padding_mask}} if padded else {}
    result = attend(query, key, value, bias, context=context)
    torch.testing.assert_close(result[..., 1:, :], expected[..., 1:, :])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_bias_in_float32_is_added_in_the_dtype_of_the_query(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    masks: list[Tensor] = []
    attention = F.scaled_dot_product_attention

    def noted(*heads: Tensor, attn_mask: Tensor, **settings: Any) -> Tensor:
        masks.append(attn_mask)
        return attention(*heads, attn_mask=attn_mask, **settings)

    # Kernels differ in whether they take a mask of another dtype.
    monkeypatch.setattr(F, "scaled_dot_product_attention", noted)
    query, key, value = (x.to(dtype).requires_grad_() for x in random_heads(*[(1, 2, 5, 8)] * 3))
    bias = torch.full((2, 5, 5), -1000.0)
    result = sl.ScaledDotProductAttention(causal=True)(query, key, value, bias)
    assert [mask.dtype for mask in masks] == [dtype]
    result.sum().backward()
    assert query.grad is not None
    assert bool(result.isfinite().all() and query.grad.isfinite().all())


def test_a_bias_for_other_keys_is_refused() -> None:
    query, key, value = random_heads((1, 2, 1, 8), (1, 2, 5, 8), (1, 2, 5, 8))
    with pytest.raises(ValueError, match=r"is of 3 keys, shape \(2, 1, 3\), but 5 keys arrived"):
        sl.ScaledDotProductAttention()(query, key, value, torch.zeros(2, 1, 3))


# Masks of another sequence


def test_a_mask_over_another_sequence_may_differ_between_queries() -> None:
    query, key, value = random_heads((2, 3, 5, 8), (2, 3, 4, 8), (2, 3, 4, 8))
    attend = sl.Chain(sl.ScaledDotProductAttention(keys="image"))
    real = torch.tensor([[True, True, True, False]] * 2)
    for allowed in (torch.rand(2, 5, 4) > 0.3, torch.rand(2, 3, 5, 4) > 0.3):
        allowed[..., 0] = True
        mask = (allowed[:, None] if allowed.dim() == 3 else allowed) & real[:, None, None]
        result = attend(query, key, value, context={"image": {"padding_mask": real, "attention_mask": allowed}})
        torch.testing.assert_close(result, softmax_attention(query, key, value, mask))


def test_a_mask_between_two_sequences_needs_no_padding_mask() -> None:
    query, key, value = random_heads((2, 3, 5, 8), (2, 3, 4, 8), (2, 3, 4, 8))
    allowed = torch.ones(2, 5, 4, dtype=torch.bool)
    allowed[0, 2, :3] = False
    attend = sl.Chain(sl.ScaledDotProductAttention(keys="image"))
    expected = softmax_attention(query, key, value, allowed[:, None])
    torch.testing.assert_close(attend(query, key, value, attention_mask=allowed), expected)
