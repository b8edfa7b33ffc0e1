"""Attention to the last tokens only: at the border, in pieces, with padding, under other masks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from suture import layers as sl
from suture.layers.cache import Cache
from suture.models.backbone import Backbone, TokenEmbedding

VOCABULARY, WIDTH, HEADS, KEY_VALUE_HEADS, HEAD_DIM = 40, 16, 4, 2, 4


def decoder(window: int | None, blocks: int = 2) -> Backbone:
    torch.manual_seed(0)

    def block() -> sl.Residual:
        heads = sl.SelfAttention(
            WIDTH,
            HEADS,
            KEY_VALUE_HEADS,
            causal=True,
            rotary=sl.Rotary(HEAD_DIM),
            attend=sl.ScaledDotProductAttention(causal=True, window=window),
        )
        return sl.Residual(norm=sl.RMSNorm(WIDTH), heads=heads)

    backbone = Backbone(embedding=TokenEmbedding(VOCABULARY, WIDTH), blocks=sl.Stack(*(block() for _ in range(blocks))))
    with torch.no_grad():
        for parameter in backbone.parameters():
            parameter.mul_(2)
    return backbone


def ids(*shape: int) -> Tensor:
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(1))


def banded(length: int, window: int) -> Tensor:
    """Which tokens a token sees: those from max(0, i - window + 1) to i."""
    return torch.tensor([[max(0, i - window + 1) <= j <= i for j in range(length)] for i in range(length)])


def in_pieces(
    backbone: Backbone, tokens: Tensor, sizes: Sequence[int], real: Tensor | None = None, cache: Cache | None = None
) -> Tensor:
    cache = cache or backbone.init_cache(batch=tokens.shape[0], length=tokens.shape[1])
    ends = list(itertools.accumulate(sizes))
    spans = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    masks = [None if real is None else real[:, at] for at in spans]
    return torch.cat(
        [backbone(tokens[:, at], padding_mask=mask, cache=cache) for at, mask in zip(spans, masks, strict=True)], dim=1
    )


def close(result: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window", [1, 2, 3, 4, 5, 8, 21, 50])
@pytest.mark.parametrize("grad", [True, False])
def test_a_token_sees_itself_and_the_tokens_before_it_as_far_as_the_window_goes(window: int, grad: bool) -> None:
    tokens = ids(2, 21)

    with torch.set_grad_enabled(grad):
        result = decoder(window)(tokens)
        expected = decoder(None)(tokens, attention_mask=banded(21, window).expand(2, -1, -1))

    close(result, expected)


@pytest.mark.parametrize("sizes", [[5, *[1] * 16], [1] * 21, [2] * 10 + [1], [3] * 7, [21], [7, 1, 1, 12], [16, 5]])
@pytest.mark.parametrize("window", [1, 3, 4, 5, 8, 30])
@pytest.mark.parametrize("grad", [True, False])
def test_pieces_equal_the_whole(window: int, sizes: list[int], grad: bool) -> None:
    backbone, tokens = decoder(window), ids(2, 21)

    with torch.set_grad_enabled(grad):
        close(in_pieces(backbone, tokens, sizes), backbone(tokens))


PADDING = torch.tensor(
    [
        [False] * 6 + [True] * 15,  # on the left
        [True] * 4 + [False] * 5 + [True] * 12,  # of a prompt that was padded on the right, and went on
        [False] * 3 + [True, False] * 9,  # anywhere
        [True] * 21,
    ]
)


@pytest.mark.parametrize("sizes", [[21], [9, *[1] * 12], [1] * 21, [6, 3, 7, 5]])
@pytest.mark.parametrize("window", [1, 3, 5, 8])
@pytest.mark.parametrize("grad", [True, False])
def test_padding_takes_no_place_in_a_window(window: int, sizes: list[int], grad: bool) -> None:
    backbone, tokens = decoder(window), ids(4, 21)

    with torch.set_grad_enabled(grad):
        result = in_pieces(backbone, tokens, sizes, PADDING)
        uncached = backbone(tokens, padding_mask=PADDING)

    for row, real in enumerate(PADDING):
        alone = backbone(tokens[row : row + 1, real])[0]
        close(result[row, real], alone)
        close(uncached[row, real], alone)


def test_the_cache_holds_little_more_than_the_window() -> None:
    layer, window = sl.KVCache(window=8), 8
    cache = Cache(batch=1, length=1000)
    longest = 0
    with torch.no_grad():
        for number in range(300):
            new = torch.full((1, 1, 1, 2), float(number))
            cache.start((1, 1))
            _, keys, _ = layer(new, new, new, cache=cache)
            cache.finish()
            longest = max(longest, keys.untyped_storage().nbytes() // keys[..., :1, :].nbytes)
            assert keys[0, 0, :, 0].tolist() == list(range(max(0, number - window + 1), number + 1))

    assert longest <= 40


def test_a_cache_goes_back_as_far_as_it_still_holds_what_the_window_needs() -> None:
    backbone, tokens = decoder(4), ids(1, 40)
    cache = backbone.init_cache(batch=1, length=60)
    with torch.no_grad():
        in_pieces(backbone, tokens, [10, 10, 1, 1, 1], cache=cache)
        expected = backbone(tokens[:, :24])[:, 22:]
        cache.rewind(22)
        close(backbone(tokens[:, 22:24], cache=cache), expected)

        in_pieces(backbone, tokens[:, 24:], [1] * 16, cache=cache)
        with pytest.raises(ValueError, match="KVCache does not keep the state"):
            cache.rewind(5)
        cache.rewind(0)
        close(backbone(tokens, cache=cache), backbone(tokens))


@pytest.mark.parametrize("grad", [True, False])
def test_copies_and_chosen_rows_of_a_cache_go_on_by_themselves(grad: bool) -> None:
    backbone, tokens = decoder(4), ids(2, 40)
    cache = backbone.init_cache(batch=2, length=40)
    with torch.set_grad_enabled(grad):
        in_pieces(backbone, tokens[:, :25], [10, *[1] * 15], cache=cache)
        copy = cache.copy(length=60)
        cache.select_rows(torch.tensor([1, 1, 0]))
        other = ids(2, 20)

        copied = in_pieces(backbone, other, [1] * 20, cache=copy)
        chosen = in_pieces(backbone, tokens[[1, 1, 0], 25:], [1] * 15, cache=cache)

        close(copied, backbone(torch.cat((tokens[:, :25], other), 1))[:, 25:])
        close(chosen, backbone(tokens)[[1, 1, 0], 25:])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("sizes", [[12], [5, 1, 1, 5], [12 // 3] * 3])
def test_window_padding_and_masks_together_leave_every_number_finite(dtype: torch.dtype, sizes: list[int]) -> None:
    backbone, tokens = decoder(3).to(dtype), ids(2, 12)
    real = torch.tensor([[False] * 4 + [True] * 8, [False] * 12])
    allowed = torch.rand(2, HEADS, 12, 12, generator=torch.Generator().manual_seed(2)) > 0.5
    # A token may always attend to itself, so that there is something to compare.
    allowed |= torch.eye(12, dtype=torch.bool)

    result = backbone(tokens, padding_mask=real, attention_mask=allowed)
    result.float().square().sum().backward()

    cache, pieces, end = backbone.init_cache(batch=2, length=12), list[Tensor](), 0
    for size in sizes:
        start, end = end, end + size
        pieces.append(
            backbone(
                tokens[:, start:end],
                padding_mask=real[:, start:end],
                attention_mask=allowed[:, :, start:end, :end],
                cache=cache,
            )
        )
    banded_mask = banded(12, 3) & allowed
    expected = decoder(None).to(dtype)(tokens, padding_mask=real, attention_mask=banded_mask)

    assert result.isfinite().all()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in backbone.parameters())
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(torch.cat(pieces, 1)[real], result[real], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(expected[real], result[real], rtol=tolerance, atol=tolerance)


def test_one_mask_is_made_for_all_layers_of_one_window() -> None:
    first, second = sl.ScaledDotProductAttention(causal=True, window=4), sl.ScaledDotProductAttention(True, window=4)
    other = sl.ScaledDotProductAttention(causal=True, window=5)

    def token(layer: sl.ScaledDotProductAttention) -> str:
        read = layer.reads["mask"]
        assert isinstance(read, sl.Derived)
        return read.token

    assert token(first) == token(second) != token(other)


def test_a_window_without_a_backbone() -> None:
    query = torch.randn(1, 2, 9, 4)

    result = sl.ScaledDotProductAttention(causal=True, window=3)(query, query, query)

    mask = banded(9, 3)
    expected = torch.nn.functional.scaled_dot_product_attention(query, query, query, attn_mask=mask)
    close(result, expected)
    close(sl.ScaledDotProductAttention(causal=True, window=3)(query[:, :, -1:], query, query), expected[:, :, -1:])


@pytest.mark.parametrize(("window", "causal"), [(0, True), (-1, True), (3, False)])
def test_a_window_that_makes_no_sense_is_refused(window: int, causal: bool) -> None:
    with pytest.raises(ValueError, match=f"received window={window}, causal={causal}"):
        sl.ScaledDotProductAttention(causal=causal, window=window)


def test_a_cache_without_a_window_is_refused() -> None:
    with pytest.raises(ValueError, match="received 0"):
        sl.KVCache(window=0)
