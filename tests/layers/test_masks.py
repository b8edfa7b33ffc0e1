from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from suture import layers as sl
from suture.layers.cache import Cache
from suture.layers.masks import causal_mask, visible_mask

PADDING = torch.tensor([[False, False, True, True], [True, True, True, True], [True, True, False, False]])


def expected_mask(real: Tensor, seen: int, allowed: Tensor | None, causal: bool) -> Tensor:
    """(B, 1, T, S) by the rule, one place at a time."""
    batch, length = real.shape
    mask = torch.zeros(batch, 1, length - seen, length, dtype=torch.bool)
    for row, query, key in product(range(batch), range(length - seen), range(length)):
        may = (key <= seen + query or not causal) and bool(real[row, key])
        mask[row, 0, query, key] = may and (allowed is None or bool(allowed[row, query, key]))
    return mask


def started(pieces: list[Tensor | None]) -> Cache:
    """A cache in the call of the last piece, each piece a padding mask."""
    cache = Cache(batch=3, length=16)
    for number, piece in enumerate(pieces):
        cache.start((3, 2 if piece is None else piece.shape[1]), padding_mask=piece)
        if number < len(pieces) - 1:
            cache.finish()
    return cache


def assert_same_but_for_empty_rows(mask: Tensor | None, expected: Tensor) -> None:
    assert mask is not None
    mask = mask.expand(expected.shape)
    empty = ~expected.any(-1, keepdim=True)
    assert torch.equal(mask & ~empty, expected)
    assert bool(mask.any(-1).all())


def test_plain_causality_needs_no_mask() -> None:
    positions = torch.arange(4).expand(3, 4)
    assert causal_mask(positions, None, None, None) is None
    assert causal_mask(None, None, None, None) is None
    assert visible_mask(positions, None, None, None) is None
    assert causal_mask(positions[:, :2], None, None, started([None])) is None


def test_one_token_after_others_needs_no_mask() -> None:
    cache = started([None])
    cache.finish()
    cache.start((3, 1))
    assert causal_mask(torch.full((3, 1), 2), None, None, cache) is None


def test_a_piece_after_others_sees_them_and_what_is_before_in_the_piece() -> None:
    mask = causal_mask(torch.arange(2, 4).expand(3, 2), None, None, started([None, None]))
    assert mask is not None
    assert mask.int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]


def test_padding_is_left_out() -> None:
    mask = causal_mask(None, PADDING, None, None)
    assert_same_but_for_empty_rows(mask, expected_mask(PADDING, 0, None, causal=True))


def test_padding_in_the_cache_is_left_out() -> None:
    new = torch.tensor([[True, True], [True, False], [False, True]])
    mask = causal_mask(None, new, None, started([PADDING, new]))
    assert_same_but_for_empty_rows(mask, expected_mask(torch.cat((PADDING, new), 1), 4, None, causal=True))


def test_padding_in_the_cache_is_left_out_for_new_tokens_without_padding() -> None:
    cache = started([PADDING, None])
    mask = causal_mask(torch.zeros(3, 2), None, None, cache)
    real = torch.cat((PADDING, torch.ones(3, 2, dtype=torch.bool)), 1)
    assert_same_but_for_empty_rows(mask, expected_mask(real, 4, None, causal=True))


def test_one_token_after_padding() -> None:
    cache = started([PADDING, None])
    cache.rewind(4)
    cache.start((3, 1))
    mask = causal_mask(torch.zeros(3, 1), None, None, cache)
    real = torch.cat((PADDING, torch.ones(3, 1, dtype=torch.bool)), 1)
    assert_same_but_for_empty_rows(mask, expected_mask(real, 4, None, causal=True))


def test_one_token_of_padding_attends_to_something() -> None:
    nothing = torch.zeros(3, 1, dtype=torch.bool)
    cache = started([nothing, nothing])
    mask = causal_mask(torch.zeros(3, 1), nothing, None, cache)
    assert mask is not None
    assert mask.expand(3, 1, 1, 2).int().tolist() == [[[[0, 1]]]] * 3


@pytest.mark.parametrize("causal", [True, False])
def test_the_callers_mask_is_added_to_padding_and_causality(causal: bool) -> None:
    torch.manual_seed(0)
    allowed = torch.rand(3, 4, 4) > 0.4
    mask = (causal_mask if causal else visible_mask)(None, PADDING, allowed, None)
    assert_same_but_for_empty_rows(mask, expected_mask(PADDING, 0, allowed, causal))


def test_the_callers_mask_of_a_piece_covers_the_cached_tokens() -> None:
    torch.manual_seed(0)
    allowed = torch.rand(3, 2, 6) > 0.4
    mask = causal_mask(torch.zeros(3, 2), None, allowed, started([PADDING, None]))
    real = torch.cat((PADDING, torch.ones(3, 2, dtype=torch.bool)), 1)
    assert_same_but_for_empty_rows(mask, expected_mask(real, 4, allowed, causal=True))


def test_the_callers_mask_may_differ_between_heads() -> None:
    torch.manual_seed(0)
    allowed = torch.rand(3, 2, 4, 4) > 0.4
    mask = causal_mask(None, PADDING, allowed, None)
    assert mask is not None
    for head in range(2):
        expected = expected_mask(PADDING, 0, allowed[:, head], causal=True)
        assert_same_but_for_empty_rows(mask[:, head : head + 1], expected)


def test_without_causality_only_padding_is_left_out() -> None:
    mask = visible_mask(None, PADDING, None, None)
    assert_same_but_for_empty_rows(mask, expected_mask(PADDING, 0, None, causal=False))


def test_a_single_sequence_has_masks_without_batch() -> None:
    allowed = torch.ones(4, 4, dtype=torch.bool)
    alone = causal_mask(torch.arange(4), PADDING[0], allowed, None)
    batched = causal_mask(torch.arange(4)[None], PADDING[:1], allowed[None], None)
    assert alone is not None
    assert batched is not None
    assert torch.equal(alone, batched[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.long])
def test_a_mask_that_is_not_boolean_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=f"attention_mask is boolean, True = may attend; received {dtype}"):
        causal_mask(None, PADDING, torch.ones(3, 4, 4, dtype=dtype), None)


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 5), (2, 4, 4), (2, 2, 4, 4), (3, 2, 4, 3), (1, 3, 2, 4, 4)])
def test_a_mask_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"has the shape \(3, 4, 4\), or \(3, 'heads', 4, 4\).* Received"):
        causal_mask(None, PADDING, torch.ones(shape, dtype=torch.bool), None)


# Case 42: a row that is all padding.


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_row_of_padding_is_finite_and_harms_no_other(dtype: torch.dtype, causal: bool) -> None:
    torch.manual_seed(0)
    attend = sl.Chain(sl.ScaledDotProductAttention(causal=causal))
    inputs = [torch.randn(3, 2, 4, 8, dtype=dtype).requires_grad_() for _ in range(3)]
    results: list[Tensor] = []
    for row in (PADDING[1], torch.zeros(4, dtype=torch.bool)):
        padding_mask = torch.stack((PADDING[0], row, PADDING[2]))
        result = attend(*inputs, padding_mask=padding_mask)
        gradients = torch.autograd.grad(result.float().square().sum(), inputs)
        results += [result.detach(), *gradients]
    full, padded = results[:4], results[4:]
    for one, other in zip(full, padded, strict=True):
        assert bool(other.isfinite().all())
        assert torch.equal(one[[0, 2]], other[[0, 2]])
