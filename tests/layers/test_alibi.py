from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from torch import Tensor, nn
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from suture import layers as sl
from suture.layers.alibi import alibi_slopes
from suture.models.backbone import Backbone, TokenEmbedding

VOCABULARY, WIDTH = 30, 24


def decoder(num_heads: int, causal: bool = True) -> Backbone:
    """Two blocks of attention whose scores know positions by ALiBi alone."""
    torch.manual_seed(0)

    def attention() -> sl.SelfAttention:
        heads = sl.SelfAttention(WIDTH, num_heads=num_heads, num_key_value_heads=1, head_dim=8, causal=causal)
        heads.insert_before(heads["attend"], sl.ALiBi(num_heads))
        return heads

    blocks = (sl.Residual(norm=sl.RMSNorm(WIDTH), heads=attention()) for _ in range(2))
    backbone = Backbone(embedding=TokenEmbedding(VOCABULARY, WIDTH), blocks=sl.Stack(*blocks))
    for parameter in backbone.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.4)
    return backbone


def ids(*shape: int) -> Tensor:
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(1))


def close(result: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)


def pieces(tokens: Tensor, sizes: list[int]) -> list[Tensor]:
    return [tokens[:, end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]


@pytest.mark.parametrize("num_heads", [1, 2, 3, 4, 6, 8, 12, 16, 20, 71])
def test_the_slopes_are_those_of_transformers(num_heads: int) -> None:
    # BLOOM's bias grows by the slope with each key; the softmax does not see what is added to a whole row.
    of_bloom = build_alibi_tensor(torch.ones(1, 2), num_heads, torch.float32).view(num_heads, 2)
    torch.testing.assert_close(alibi_slopes(num_heads), of_bloom[:, 1] - of_bloom[:, 0])


def test_the_scores_fall_with_the_distance() -> None:
    query = key = value = torch.randn(2, 3, 5, 8)
    result = sl.Chain(sl.ALiBi(3), sl.ScaledDotProductAttention(causal=True))(query, key, value)
    expected = torch.zeros_like(result)
    for head, slope in enumerate([2**-4, 2**-8, 2**-2]):
        for at in range(5):
            scores = query[:, head, at, None] @ key[:, head, : at + 1].transpose(-1, -2) * 8**-0.5
            scores -= slope * torch.tensor([at - other for other in range(at + 1)])
            expected[:, head, at] = (scores.softmax(-1) @ value[:, head, : at + 1])[:, 0]
    torch.testing.assert_close(result, expected)


def test_without_causality_the_distance_counts_in_both_directions() -> None:
    query = key = value = torch.zeros(1, 1, 3, 8)
    *_, bias = sl.ALiBi(1)(query, key, value)
    assert bias.tolist() == [[[-abs(one - other) / 256 for other in range(3)] for one in range(3)]]
    backbone = decoder(3, causal=False)
    tokens = ids(1, 6)
    close(backbone(tokens.flip(1)).flip(1), backbone(tokens))


def test_fewer_queries_are_at_the_places_of_the_last_keys() -> None:
    *_, bias = sl.ALiBi(1)(torch.zeros(1, 1, 2, 8), torch.zeros(1, 1, 4, 8), torch.zeros(1, 1, 4, 8))
    assert (bias * -256).tolist() == [[[2, 1, 0, 1], [3, 2, 1, 0]]]


@pytest.mark.parametrize("sizes", [[9], [1] * 9, [2, 2, 2, 2, 1], [5, 1, 3]])
@pytest.mark.parametrize("num_heads", [2, 3])
def test_pieces_equal_the_whole(num_heads: int, sizes: list[int]) -> None:
    backbone, tokens = decoder(num_heads), ids(2, 9)
    cache = backbone.init_cache(batch=2, length=9)
    with torch.no_grad():
        results = [backbone(piece, cache=cache) for piece in pieces(tokens, sizes)]
        close(torch.cat(results, 1), backbone(tokens))


@pytest.mark.parametrize("sizes", [[1] * 5, [2, 2, 1], [5]])
def test_pieces_after_padding_equal_each_row_alone(sizes: list[int]) -> None:
    backbone, tokens, following = decoder(3), ids(3, 8), ids(3, 5)
    mask = torch.arange(8) >= torch.tensor([[5], [3], [0]])
    cache = backbone.init_cache(batch=3, length=13)
    with torch.no_grad():
        first = backbone(tokens, padding_mask=mask, cache=cache)
        close(first, backbone(tokens, padding_mask=mask))
        rest = torch.cat([backbone(piece, cache=cache) for piece in pieces(following, sizes)], 1)
        for row in range(3):
            alone = backbone(torch.cat((tokens[row, mask[row]], following[row]))[None])[0]
            close(first[row, mask[row]], alone[:-5])
            close(rest[row], alone[-5:])


def test_padding_in_the_middle_does_not_count() -> None:
    backbone, tokens = decoder(3), ids(1, 5)
    gap = torch.cat((tokens[:, :2], torch.zeros(1, 2, dtype=torch.long), tokens[:, 2:]), 1)
    mask = torch.tensor([[True, True, False, False, True, True, True]])
    close(backbone(gap, padding_mask=mask)[mask], backbone(tokens)[0])


def test_given_positions_are_used_and_kept_in_the_cache() -> None:
    backbone, tokens = decoder(3), ids(2, 6)
    positions = torch.tensor([[0, 1, 2, 7, 8, 9], [3, 4, 5, 6, 7, 8]])
    cache = backbone.init_cache(batch=2, length=6)
    with torch.no_grad():
        whole = backbone(tokens, positions=positions)
        pairs = zip(pieces(tokens, [4, 2]), pieces(positions, [4, 2]), strict=True)
        close(torch.cat([backbone(piece, positions=at, cache=cache) for piece, at in pairs], 1), whole)
        close(whole[1], backbone(tokens)[1])
        assert not torch.allclose(whole[0, 3:], backbone(tokens)[0, 3:], atol=1e-3)


def test_one_sequence_needs_no_batch() -> None:
    backbone, tokens = decoder(3), ids(6)
    close(backbone(tokens), backbone(tokens[None])[0])


def test_the_bias_is_made_once_and_for_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    forward = sl.ScaledDotProductAttention.forward

    def noted(layer: sl.ScaledDotProductAttention, *args: Tensor, mask: Tensor | None = None) -> Tensor:
        seen.append(args[3])
        return forward(layer, *args, mask=mask)

    monkeypatch.setattr(sl.ScaledDotProductAttention, "forward", noted)
    backbone = decoder(3)
    backbone(ids(4, 6))
    assert [bias.shape for bias in seen] == [(3, 6, 6)] * 2
    assert seen[0] is seen[1]


def test_inserted_and_taken_out_again_nothing_is_left() -> None:
    heads, x = sl.SelfAttention(WIDTH, num_heads=3, causal=True), torch.randn(2, 5, WIDTH)
    bare = heads(x)
    edit = heads.insert_before(heads["attend"], sl.ALiBi(3))
    assert not torch.allclose(heads(x), bare)
    edit.undo()
    assert torch.equal(heads(x), bare)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_far_keys_and_padding_are_finite_in_half_precision(dtype: torch.dtype) -> None:
    backbone = decoder(3).to(dtype)
    mask = torch.arange(40) >= torch.tensor([[40], [20]])
    result = backbone(ids(2, 40), padding_mask=mask, positions=torch.arange(40).expand(2, 40) * 1000)
    result.sum().backward()
    assert bool(result.isfinite().all())
    assert all(not parameter.grad.isnan().any() for parameter in backbone.parameters() if parameter.grad is not None)


def test_wrong_use_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one; received num_heads=0"):
        sl.ALiBi(0)
    x = torch.zeros(2, 5, 8)
    with pytest.raises(ValueError, match=r"ALiBi\(num_heads=4\) received a query of shape \(2, 5, 8\)\. Split"):
        sl.ALiBi(4)(x, x, x)


def test_it_prints_its_heads() -> None:
    assert repr(sl.ALiBi(4)) == "ALiBi(num_heads=4)"


def test_compiled_with_a_cache() -> None:
    backbone, tokens = decoder(3), ids(2, 8)
    compiled = torch.compile(backbone, fullgraph=True, backend="eager")
    cache = backbone.init_cache(batch=2, length=8)
    with torch.no_grad():
        results = [compiled(piece, cache=cache) for piece in pieces(tokens, [5, 3])]
        close(torch.cat(results, 1), backbone(tokens))


def test_exported_with_a_dynamic_length() -> None:
    backbone, length = decoder(3), torch.export.Dim("length", min=2, max=40)
    exported = torch.export.export(backbone, (ids(2, 6),), dynamic_shapes={"args": ({1: length},)})
    close(exported.module()(ids(2, 9)), backbone(ids(2, 9)))
