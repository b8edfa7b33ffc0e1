from __future__ import annotations

import pytest
import torch

from suture import layers as sl


def test_a_large_cap_changes_nothing() -> None:
    query, key, value = torch.randn(3, 2, 4, 6, 8).unbind()

    capped = sl.SoftCappedAttention(1e6, causal=True)(query, key[:, :2], value[:, :2])

    expected = sl.ScaledDotProductAttention(causal=True)(query, key[:, :2], value[:, :2])
    torch.testing.assert_close(capped, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("window", [None, 3])
def test_scores_are_capped_after_they_are_scaled_and_before_they_are_masked(window: int | None) -> None:
    query, key, value = (5 * torch.randn(3, 1, 2, 6, 8)).unbind()

    capped = sl.SoftCappedAttention(2.0, causal=True, scale=0.3, window=window)(query, key, value)

    scores = 2.0 * torch.tanh(query @ key.mT * 0.3 / 2.0)
    visible = torch.tensor([[i - (window or 6) < j <= i for j in range(6)] for i in range(6)])
    torch.testing.assert_close(capped, scores.masked_fill(~visible, -torch.inf).softmax(-1) @ value)


def test_a_bias_is_added_to_what_was_capped() -> None:
    query, key, value = (5 * torch.randn(3, 1, 2, 4, 8)).unbind()
    bias = torch.randn(2, 4, 4)

    capped = sl.SoftCappedAttention(2.0)(query, key, value, bias)

    scores = 2.0 * torch.tanh(query @ key.mT * 8**-0.5 / 2.0) + bias
    torch.testing.assert_close(capped, scores.softmax(-1) @ value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_row_of_padding_is_finite_in_half_precision(dtype: torch.dtype) -> None:
    attention = sl.SelfAttention(8, 2, causal=True, attend=sl.SoftCappedAttention(5.0, causal=True)).to(dtype)
    x = torch.randn(2, 3, 8, dtype=dtype, requires_grad=True)

    result = attention(x, context={"inputs": {"padding_mask": torch.tensor([[True] * 3, [False] * 3])}})
    result.sum().backward()

    assert result.dtype == dtype
    assert x.grad is not None
    assert torch.cat((result, x.grad)).isfinite().all()


def test_what_attends_in_a_causal_attention_is_causal() -> None:
    with pytest.raises(ValueError, match=r"causal=True is not one that attends by SoftCappedAttention\(cap=5\)"):
        sl.SelfAttention(8, causal=True, attend=sl.SoftCappedAttention(5.0))


@pytest.mark.parametrize("cap", [0.0, -1.0, float("nan")])
def test_a_cap_that_is_not_above_zero_is_refused(cap: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        sl.SoftCap(cap)
    with pytest.raises(ValueError, match="above 0"):
        sl.SoftCappedAttention(cap)
