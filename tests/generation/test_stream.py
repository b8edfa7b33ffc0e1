from __future__ import annotations

import pytest
import torch

from suture.generation import Tokenizer, TopP
from suture.layers import Chain, Identity, Lambda, Parallel, UseContext
from tests.generation.fakes import CachedRecurrent, Recurrent, reciter, rolled

EMOJI = "\U0001f600"


def test_joined_the_pieces_are_the_reply(byte_level: Tokenizer) -> None:
    ids = byte_level.encode(f"a smile {EMOJI}{EMOJI} and more")
    lm = reciter(ids, byte_level)
    for count in range(len(ids)):
        pieces = list(lm.stream("a", max_new_tokens=count))
        assert "".join(pieces) == lm.generate("a", max_new_tokens=count, strip_prompt=True)
        assert "" not in pieces


def test_an_emoji_comes_in_one_piece_and_a_cut_one_at_the_end(byte_level: Tokenizer) -> None:
    ids = byte_level.encode(f"a{EMOJI}{EMOJI}")
    lm = reciter(ids, byte_level)
    assert list(lm.stream("a", max_new_tokens=7)) == [EMOJI, "\N{REPLACEMENT CHARACTER}"]


def test_no_part_of_a_stop_string_leaks(byte_level: Tokenizer) -> None:
    lm = reciter(byte_level.encode("a, b\n\nQ: c"), byte_level)
    assert "".join(lm.stream("a", stop="\n\nQ:")) == ", b"
    assert "".join(lm.stream("a", stop=["\n\nQ:", EMOJI], max_new_tokens=4)) == lm.generate(
        "a", max_new_tokens=4, strip_prompt=True
    )


def test_sampled_streams_equal_sampled_texts(byte_level: Tokenizer) -> None:
    lm = reciter(byte_level.encode("a reply"), byte_level)
    sampler = TopP(0.9)
    text = lm.generate("a", sampler=sampler, seed=3, max_new_tokens=9, strip_prompt=True)
    assert "".join(lm.stream("a", sampler=sampler, seed=3, max_new_tokens=9)) == text


def test_pieces_come_as_the_tokens_do(byte_level: Tokenizer) -> None:
    backbone = CachedRecurrent()
    stream = backbone.lm(byte_level).stream([3, 4], stop_ids=[], max_new_tokens=9)
    assert not backbone.calls
    next(stream)
    assert len(backbone.calls) < 9


def test_ids_and_tensors_are_streamed_as_text(byte_level: Tokenizer) -> None:
    lm = reciter(byte_level.encode("abc"), byte_level)
    ids = byte_level.encode("a")
    assert "".join(lm.stream(ids, max_new_tokens=2)) == "".join(lm.stream(torch.tensor(ids), max_new_tokens=2)) == "bc"


def test_errors_in_the_arguments_are_raised_at_once(byte_level: Tokenizer) -> None:
    lm = reciter([5], byte_level)
    with pytest.raises(ValueError, match="max_length is 1"):
        lm.stream("a", max_length=1)
    with pytest.raises(ValueError, match="stream takes one prompt, but received 2"):
        lm.stream(["a", "b"])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="no tokenizer"):
        reciter([5]).stream([1])
    with pytest.raises(TypeError, match="temperature"):
        lm.stream("a", temperature=1.0)  # pyright: ignore[reportCallIssue]


def test_a_stream_leaves_the_callers_contexts_and_gradients_alone(byte_level: Tokenizer) -> None:
    lm = Recurrent().lm(byte_level)
    lm.append(Chain(Parallel(Identity(), UseContext("side", "by", default=0)), Lambda(rolled)))
    expected = lm.generate([3, 4], max_new_tokens=6)
    with lm.context(side={"by": 1}):
        shifted = lm.generate([3, 4], max_new_tokens=6)
    assert shifted != expected
    lm.set_context("side", {"by": 1})
    stream = lm.stream([3, 4], stop_ids=[], max_new_tokens=6)
    pieces = [next(stream)]
    assert torch.is_grad_enabled()
    assert lm.generate([3, 4], max_new_tokens=6) == expected
    assert "".join([*pieces, *stream]) == byte_level.decode(shifted[2:])


@pytest.mark.parametrize(("first", "then"), [(True, False), (False, True)])
def test_a_stream_may_cross_inference_mode(first: bool, then: bool, byte_level: Tokenizer) -> None:
    lm = reciter(byte_level.encode("one two three"), byte_level)
    with torch.inference_mode(first):
        stream = lm.stream("a", max_new_tokens=6)
        pieces = [next(stream)]
    with torch.inference_mode(then):
        pieces += stream
    assert "".join(pieces) == lm.generate("a", max_new_tokens=6, strip_prompt=True)
