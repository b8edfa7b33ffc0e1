from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from suture import layers as sl
from suture.layers.cache import Cache
from suture.models.backbone import Backbone, TokenEmbedding
from tests.models.decoders import POSITIONS, VOCABULARY, WIDTH, TransformersDecoder, decoder


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    """Shared by the tests that do not change it."""
    return decoder()


def ids(*shape: int) -> Tensor:
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(1))


def split(tokens: Tensor, sizes: list[int]) -> list[Tensor]:
    return [tokens[:, end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]


def left_padded(lengths: list[int]) -> tuple[Tensor, Tensor]:
    width = max(lengths)
    mask = torch.stack([torch.arange(width) >= width - length for length in lengths])
    return ids(len(lengths), width) * mask, mask


def close(result: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)


def in_pieces(backbone: Backbone, tokens: Tensor, sizes: list[int], cache: Cache | None = None) -> Tensor:
    cache = backbone.init_cache(batch=tokens.shape[0], length=tokens.shape[1]) if cache is None else cache
    results = [backbone(piece, cache=cache) for piece in split(tokens, sizes)]
    return torch.cat(results, dim=1)


# Numbers


def test_it_equals_transformers(backbone: Backbone) -> None:
    tokens = ids(2, 12)
    close(backbone(tokens), TransformersDecoder(backbone)(tokens))


def test_left_padding_equals_transformers_and_each_row_alone(backbone: Backbone) -> None:
    tokens, mask = left_padded([3, 5, 8])
    result = backbone(tokens, padding_mask=mask)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    expected = TransformersDecoder(backbone)(tokens, attention_mask=mask.long(), position_ids=positions)
    for row in range(3):
        close(result[row, mask[row]], expected[row, mask[row]])
        close(result[row, mask[row]], backbone(tokens[row : row + 1, mask[row]])[0])


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("sizes", [[9], [1] * 9, [2, 2, 2, 2, 1], [3, 3, 3], [5, 1, 3]])
def test_pieces_equal_the_whole(backbone: Backbone, sizes: list[int], grad: bool) -> None:
    tokens = ids(2, 9)
    with torch.set_grad_enabled(grad):
        close(in_pieces(backbone, tokens, sizes), backbone(tokens))


@pytest.mark.parametrize("sizes", [[1] * 5, [2, 2, 1], [5]])
def test_pieces_after_left_padding_equal_each_row_alone(backbone: Backbone, sizes: list[int]) -> None:
    tokens, mask = left_padded([3, 5, 8])
    following = ids(3, 5)
    cache = backbone.init_cache(batch=3, length=13)
    with torch.no_grad():
        backbone(tokens, padding_mask=mask, cache=cache)
        results = torch.cat([backbone(piece, cache=cache) for piece in split(following, sizes)], dim=1)
        for row in range(3):
            alone = torch.cat((tokens[row, mask[row]], following[row]))[None]
            close(results[row], backbone(alone)[0, -5:])


def test_padding_in_a_later_piece_is_left_out(backbone: Backbone) -> None:
    tokens = ids(1, 7)
    cache = backbone.init_cache(batch=1, length=9)
    with torch.no_grad():
        backbone(tokens[:, :3], cache=cache)
        gap = torch.cat((torch.zeros(1, 2, dtype=torch.long), tokens[:, 3:5]), 1)
        backbone(gap, padding_mask=torch.tensor([[False, False, True, True]]), cache=cache)
        close(backbone(tokens[:, 5:], cache=cache), backbone(tokens)[:, 5:])


def test_given_positions_are_used(backbone: Backbone) -> None:
    tokens = ids(2, 6)
    positions = torch.tensor([[0, 1, 2, 7, 8, 9], [3, 4, 5, 6, 7, 8]])
    result = backbone(tokens, positions=positions)
    expected = TransformersDecoder(backbone)(tokens, position_ids=positions, attention_mask=torch.ones(2, 6))
    close(result, expected)
    close(result[1], backbone(tokens)[1])  # rotary sees distances only
    assert not torch.allclose(result[0], backbone(tokens)[0], atol=1e-3)


def test_an_attention_mask_hides_tokens(backbone: Backbone) -> None:
    tokens = ids(2, 6)
    allowed = torch.ones(2, 6, 6, dtype=torch.bool)
    allowed[:, :, 2] = False
    without = torch.cat((tokens[:, :2], tokens[:, 3:]), 1)
    positions = torch.tensor([[0, 1, 3, 4, 5]] * 2)
    expected = backbone(without, positions=positions)
    close(backbone(tokens, attention_mask=allowed)[:, 3:], expected[:, 2:])
    by_head = allowed[:, None].expand(2, 4, 6, 6)
    close(backbone(tokens, attention_mask=by_head)[:, 3:], expected[:, 2:])


def test_embeddings_stand_in_for_ids(backbone: Backbone) -> None:
    tokens = ids(2, 6)
    embeddings = backbone.layer("embedding")(tokens)
    cache = backbone.init_cache(batch=2, length=6)
    assert torch.equal(backbone(embeddings=embeddings, cache=cache), backbone(tokens))
    assert cache.length == 6


def test_one_sequence_needs_no_batch(backbone: Backbone) -> None:
    tokens = ids(6)
    mask = torch.tensor([False, False, True, True, True, True])
    close(backbone(tokens), backbone(tokens[None])[0])
    close(backbone(tokens, padding_mask=mask), backbone(tokens[None], padding_mask=mask[None])[0])


def test_a_prefix_is_continued_three_times(backbone: Backbone) -> None:
    prefix, endings = ids(1, 6), ids(3, 4)
    cache = backbone.init_cache(batch=1, length=6)
    with torch.no_grad():
        backbone(prefix, cache=cache)
        for ending in (endings[:1], endings[1:2], endings[2:]):
            fresh = backbone(torch.cat((prefix, ending), 1))
            close(in_pieces(backbone, ending, [3, 1], cache.copy(length=10)), fresh[:, 6:])
        together = cache.copy(length=10)
        together.select_rows(torch.zeros(3, dtype=torch.long))
        fresh = backbone(torch.cat((prefix.expand(3, 6), endings), 1))
        close(in_pieces(backbone, endings, [1, 1, 2], together), fresh[:, 6:])
    assert cache.length == 6


def test_going_back_and_on(backbone: Backbone) -> None:
    tokens, other = ids(2, 8), ids(2, 3)
    cache = backbone.init_cache(batch=2, length=8)
    with torch.no_grad():
        backbone(tokens, cache=cache)
        cache.rewind(5)
        close(backbone(other, cache=cache), backbone(torch.cat((tokens[:, :5], other), 1))[:, 5:])


@pytest.mark.parametrize("autocast", [True, False])
def test_bfloat16(autocast: bool) -> None:
    backbone, tokens = decoder(), ids(2, 9)
    exact = backbone(tokens)
    if not autocast:
        backbone.to(torch.bfloat16)
    cache = backbone.init_cache(batch=2, length=9)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        cached = torch.cat([backbone(piece, cache=cache) for piece in split(tokens, [6, 1, 2])], dim=1)
        whole = backbone(tokens)
    torch.testing.assert_close(cached, whole, rtol=0, atol=0.1)
    torch.testing.assert_close(whole.float(), exact, rtol=0, atol=0.3)


def test_gradients_through_a_cache_are_those_of_the_whole() -> None:
    backbone, tokens = decoder(), ids(2, 6)
    results = (backbone(tokens), in_pieces(backbone, tokens, [3, 1, 2]))
    gradients = [torch.autograd.grad(result.square().sum(), tuple(backbone.parameters())) for result in results]
    for whole, pieces in zip(*gradients, strict=True):
        torch.testing.assert_close(pieces, whole, rtol=1e-3, atol=1e-4)


# What layers inside see


class AddFromPosition(nn.Module):
    """Adds a vector to every token at a position of at least `start`."""

    def __init__(self, start: int) -> None:
        super().__init__()
        self.start = start
        self.vector = torch.linspace(-3, 3, WIDTH)
        self.reads = {"positions": ("inputs", "positions")}

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.vector * (positions >= self.start)[..., None]


def test_positions_are_there_for_any_layer() -> None:
    backbone, tokens = decoder(), ids(2, 8)
    bare = backbone(tokens)
    backbone.layer("blocks", sl.Stack).insert(1, AddFromPosition(4))
    with torch.no_grad():
        whole = backbone(tokens)
        close(whole[:, :4], bare[:, :4])
        assert not torch.allclose(whole[:, 4:], bare[:, 4:], atol=0.1)
        close(in_pieces(backbone, tokens, [3, 1, 1, 1, 2]), whole)


def repeat(backbone: Backbone) -> None:
    blocks = backbone.layer("blocks", sl.Stack)
    blocks.insert(2, blocks.layer("1", sl.Chain).structural_copy())


EDITS: dict[str, Callable[[Backbone], Any]] = {
    "a block repeated": repeat,
    "the first block dropped": lambda backbone: backbone.layer("blocks", sl.Stack).pop(0),
    "a middle block dropped": lambda backbone: backbone.layer("blocks", sl.Stack).pop(1),
    "the last block dropped": lambda backbone: backbone.layer("blocks", sl.Stack).pop(-1),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
def test_an_edited_model_has_a_slot_for_each_call_site(edit: Callable[[Backbone], Any]) -> None:
    backbone, tokens = decoder(), ids(2, 8)
    bare = backbone(tokens)
    edit(backbone)
    with torch.no_grad():
        whole = backbone(tokens)
        assert not torch.allclose(whole, bare, atol=0.01)
        close(in_pieces(backbone, tokens, [5, 1, 2]), whole)


def test_an_edit_makes_a_cache_useless() -> None:
    backbone = decoder()
    cache = backbone.init_cache(batch=1, length=8)
    backbone(ids(1, 3), cache=cache)
    backbone.layer("blocks", sl.Stack).pop(0)
    with pytest.raises(ValueError, match="edited since this cache was filled with 3 tokens"):
        backbone(ids(1, 1), cache=cache)


def test_what_it_reads_is_listed(backbone: Backbone) -> None:
    reads = [(read.scope, read.key, read.required) for read in backbone.context_inputs]
    expected = ["padding_mask", "attention_mask", "positions", "embeddings", "cache"]
    assert reads == [("inputs", key, False) for key in expected]


class FailOnce(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.failing = True

    def forward(self, x: Tensor) -> Tensor:
        if self.failing:
            self.failing = False
            raise FloatingPointError
        return x


def test_a_call_that_raises_leaves_the_cache_as_it_was() -> None:
    backbone, tokens = decoder(), ids(1, 6)
    failing = FailOnce()
    failing.failing = False
    backbone.layer("blocks", sl.Stack).insert(2, failing)
    cache = backbone.init_cache(batch=1, length=6)
    with torch.no_grad():
        backbone(tokens[:, :3], cache=cache)
        failing.failing = True
        with pytest.raises(FloatingPointError):
            backbone(tokens[:, :2], cache=cache)
        assert (cache.length, cache.new_tokens) == (3, 0)
        close(backbone(tokens[:, 3:], cache=cache), backbone(tokens)[:, 3:])


def test_a_call_with_a_cache_that_raises_keeps_nothing_alive() -> None:
    backbone, kept = decoder(), list[weakref.ref[Tensor]]()

    def fail(x: Tensor) -> Tensor:
        kept.append(weakref.ref(x))
        raise FloatingPointError

    backbone.layer("blocks", sl.Stack).append(sl.Lambda(fail))
    cache = backbone.init_cache(batch=1, length=6)
    with pytest.raises(FloatingPointError):
        backbone(ids(1, 3), cache=cache)
    gc.collect()
    assert kept[0]() is None, "the keys of the failed call, and with them its graph, are still in the cache"


def test_rows_that_are_not_there_leave_the_cache_as_it_was(backbone: Backbone) -> None:
    cache, tokens = backbone.init_cache(batch=2, length=6), ids(2, 6)
    backbone(tokens[:, :3], cache=cache)
    with pytest.raises(IndexError):
        cache.select_rows(torch.tensor([5]))
    close(backbone(tokens[:, 3:], cache=cache), backbone(tokens)[:, 3:])


# Errors


@pytest.mark.parametrize("name", ["padding_mask", "positions"])
def test_entries_are_tensors(backbone: Backbone, name: str) -> None:
    with pytest.raises(TypeError, match=rf"{name} is a tensor \(B, T\); received \[\[1, 1\]\] \(list\)"):
        backbone(ids(1, 2), context={"inputs": {name: [[1, 1]]}})


@pytest.mark.parametrize(
    ("arguments", "entries", "error", "message"),
    [
        ((torch.zeros(1, 3),), {}, TypeError, r"whole numbers.*received torch\.float32 of shape \(1, 3\)"),
        (([[1, 2]],), {}, TypeError, r"tensor \(B, T\); received \[\[1, 2\]\] \(list\)"),
        ((ids(1, 3), ids(1, 3)), {}, TypeError, "received 2 arguments"),
        ((), {}, ValueError, "either token ids or embeddings=...; received neither"),
        ((ids(1, 3),), {"embeddings": torch.zeros(1, 3, WIDTH)}, ValueError, "received both"),
        ((), {"embeddings": torch.zeros(WIDTH)}, ValueError, rf"\(B, T, D\); received \({WIDTH},\)"),
        ((ids(1, 0),), {}, ValueError, r"T at least 1; received \(1, 0\)"),
        ((ids(1, 1, 3),), {}, ValueError, r"shape \(B, T\).*received \(1, 1, 3\)"),
        ((torch.tensor([[3, VOCABULARY]]),), {}, IndexError, f"Token id {VOCABULARY} is not in the vocabulary of 50"),
        ((torch.tensor([[3, -1]]),), {}, IndexError, "Token id -1 is not in the vocabulary"),
        ((ids(1, POSITIONS + 1),), {}, ValueError, "has 40 positions; received 41 tokens"),
        ((ids(1, 3),), {"padding_mask": torch.ones(1, 4) > 0}, ValueError, r"padding_mask .*\(1, 3\).*\(1, 4\)"),
        ((ids(1, 3),), {"padding_mask": torch.ones(1, 3)}, TypeError, r"padding_mask is boolean.*torch\.float32"),
        ((ids(1, 3),), {"positions": torch.arange(3)}, ValueError, r"positions .*\(1, 3\).*\(3,\)"),
        ((ids(1, 3),), {"attention_mask": torch.ones(1, 3, 3)}, TypeError, "attention_mask is boolean"),
        ((ids(1, 3),), {"cache": Cache(2, 8)}, ValueError, r"A cache of 2 rows.*received \(1, 3\)"),
        ((ids(3),), {"cache": Cache(1, 8)}, ValueError, r"A cache of 1 rows.*received \(3,\)"),
        ((ids(1, 9),), {"cache": Cache(1, 8)}, ValueError, "room for 8 tokens and holds 0: 9 more do not fit"),
    ],
)
def test_bad_input(
    backbone: Backbone, arguments: tuple[Any, ...], entries: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        backbone(*arguments, **entries)


def test_cached_tokens_count_as_positions(backbone: Backbone) -> None:
    cache = backbone.init_cache(batch=1, length=POSITIONS + 1)
    with torch.no_grad():
        backbone(ids(1, POSITIONS), cache=cache)
        with pytest.raises(ValueError, match="has 40 positions; received 41 tokens, cached ones included"):
            backbone(ids(1, 1), cache=cache)


def test_without_a_limit_any_length_is_taken() -> None:
    assert decoder(max_positions=None)(ids(1, POSITIONS + 1)).shape == (1, POSITIONS + 1, WIDTH)


def test_an_embedding_alone_says_what_it_lacks() -> None:
    with pytest.raises(ValueError, match="nothing to embed"):
        TokenEmbedding(4, 2)(None)


# Compiled and exported


def test_compiled_as_one_graph() -> None:
    torch.compiler.reset()
    backbone, tokens = decoder(blocks=1), ids(2, 6)
    mask = torch.tensor([[False, True, True, True, True, True], [True] * 6])
    compiled = torch.compile(backbone, fullgraph=True, backend="eager")
    with torch.no_grad():
        close(compiled(tokens), backbone(tokens))
        context = {"inputs": {"padding_mask": mask}}
        close(compiled(tokens, context=context), backbone(tokens, padding_mask=mask))


@pytest.mark.long
def test_decoding_compiled_as_one_graph() -> None:
    torch.compiler.reset()
    backbone, tokens = decoder(blocks=1), ids(2, 8)
    compiled = torch.compile(backbone, fullgraph=True, backend="eager")
    cache = backbone.init_cache(batch=2, length=8)
    with torch.no_grad():
        pieces = [compiled(piece, cache=cache) for piece in split(tokens, [3, 1, 1, 1, 1, 1])]
        close(torch.cat(pieces, 1), backbone(tokens))


def test_exported_with_a_dynamic_length() -> None:
    backbone = decoder()
    length = torch.export.Dim("length", min=2, max=POSITIONS)
    exported = torch.export.export(backbone, (ids(1, 6),), dynamic_shapes={"args": ({1: length},)})
    tokens = ids(1, 9)
    close(exported.module()(tokens), backbone(tokens))
