from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import processors

from suture.generation.text import Detokenizer, Tokenizer
from suture.weights.vocabulary import Vocabulary

EMOJI = "\U0001f600"
FRAGMENT = "\N{REPLACEMENT CHARACTER}"


def streamed(tokenizer: Tokenizer, ids: list[int], context: tuple[int, ...] = ()) -> list[str]:
    decoder = Detokenizer(tokenizer, context)
    return [*(decoder.push(token_id) for token_id in ids), decoder.flush()]


def with_start(tokenizer: Tokenizer) -> Tokenizer:
    backend = tokenizers.Tokenizer.from_str(tokenizer.vocabulary.tokenizer.to_str())
    backend.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    return Tokenizer(replace(tokenizer.vocabulary, tokenizer=backend, add_bos=True))


def test_an_emoji_over_four_tokens_comes_whole(byte_level: Tokenizer) -> None:
    ids = byte_level.encode(EMOJI)
    assert len(ids) == 4
    assert streamed(byte_level, ids) == ["", "", "", EMOJI, ""]


def test_a_cut_tail_is_flushed(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("a" + EMOJI)[:-1]
    assert streamed(byte_level, ids) == ["a", "", "", "", FRAGMENT]


@given(st.text())
def test_the_joined_stream_is_the_decoded_whole(byte_level: Tokenizer, text: str) -> None:
    ids = byte_level.encode(text)
    assert "".join(streamed(byte_level, ids)) == byte_level.decode(ids) == text


@given(st.lists(st.integers(3, 319), max_size=20))
def test_the_joined_stream_of_any_bytes_is_the_decoded_whole(byte_level: Tokenizer, ids: list[int]) -> None:
    assert "".join(streamed(byte_level, ids)) == byte_level.decode(ids)


def test_a_stray_byte_leaves_what_is_out_alone(byte_fallback: Tokenizer) -> None:
    emoji = byte_fallback.encode(EMOJI)[-4:]
    cat = byte_fallback.special_id("cat") or 6
    assert "".join(streamed(byte_fallback, [*emoji, emoji[0], cat, *emoji])) == f"{EMOJI}{FRAGMENT}cat{EMOJI}"


def test_the_first_token_of_a_reply_keeps_its_space(byte_fallback: Tokenizer) -> None:
    assert streamed(byte_fallback, [5], context=(4,)) == [" cat", ""]
    assert streamed(byte_fallback, [4, 5]) == ["big", " cat", ""]


def test_special_tokens_have_no_text(byte_level: Tokenizer) -> None:
    assert byte_level.decode([1, *byte_level.encode("hi"), 2]) == "hi"


def test_a_text_gets_one_start_token(byte_level: Tokenizer) -> None:
    tokenizer = with_start(byte_level)
    ids = byte_level.encode("hi")
    assert tokenizer.encode("hi") == [1, *ids]
    assert tokenizer.encode("<s>hi") == [1, *ids]
    assert tokenizer.encode("") == [1]


def test_a_template_that_writes_the_start_token_gives_one(byte_level: Tokenizer) -> None:
    vocabulary = replace(
        with_start(byte_level).vocabulary,
        chat_template="{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}",
        special_tokens={"bos_token": "<s>"},
    )
    tokenizer = Tokenizer(vocabulary)
    messages = [{"role": "user", "content": "hi"}]
    assert tokenizer.encode_chat(messages) == [1, *byte_level.encode("hi")]
    assert tokenizer.encode(tokenizer.render_chat(messages)) == [1, *byte_level.encode("hi")]


def test_without_a_template_a_chat_is_refused(byte_level: Tokenizer) -> None:
    with pytest.raises(ValueError, match="has no chat template"):
        byte_level.encode_chat([{"role": "user", "content": "hi"}])


def test_only_special_tokens_have_a_special_id(byte_level: Tokenizer) -> None:
    assert byte_level.special_id("</s>") == 2
    assert byte_level.special_id("a") is None
    assert byte_level.special_id("no token at all") is None


def test_limits_in_a_tokenizer_file_do_not_cut_prompts(byte_level: Tokenizer) -> None:
    backend = tokenizers.Tokenizer.from_str(byte_level.vocabulary.tokenizer.to_str())
    backend.enable_truncation(max_length=2)
    backend.enable_padding(length=50)
    limited = Tokenizer(Vocabulary(backend))
    assert limited.encode("a longer text") == byte_level.encode("a longer text")
    assert backend.truncation is not None


def test_copies_of_a_model_share_the_tokenizer(byte_level: Tokenizer) -> None:
    assert copy.deepcopy(byte_level) is byte_level


def test_half_of_a_surrogate_pair_is_refused_by_its_place(byte_level: Tokenizer) -> None:
    with pytest.raises(ValueError, match=r"'.ud83d' at character 2: half of a surrogate pair"):
        byte_level.encode("ab\ud83d")
