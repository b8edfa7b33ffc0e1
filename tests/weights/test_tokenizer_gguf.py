from __future__ import annotations

from pathlib import Path

import pytest

from suture.weights.checkpoint import Checkpoint, CheckpointError
from suture.weights.tokenizer_gguf import read_gguf_vocabulary

PIECES = ["<s>", "</s>", "<|eot|>", "a", "b", "c", "ab", "abc", "1", "2", "12", "Ġ", "ĠĠ", "Ġa"]
MERGES = ["a b", "1 2", "Ġ Ġ", "Ġ a"]
KINDS = [3, 3, 3] + [1] * 11


def checkpoint(**metadata: object) -> Checkpoint:
    made: dict[str, object] = {"model": "gpt2", "pre": "gpt-2", "tokens": PIECES, "merges": MERGES, "token_type": KINDS}
    fields = {f"tokenizer.ggml.{key}": value for key, value in (made | metadata).items() if value is not None}
    return Checkpoint(Path("some.gguf"), "gguf", "llama", fields, {})


def tokens(text: str, **metadata: object) -> list[str]:
    return read_gguf_vocabulary(checkpoint(**metadata)).tokenizer.encode(text).tokens


def test_special_ids_and_tokens_are_those_of_the_file() -> None:
    named = {"bos_token_id": 0, "eos_token_id": 1, "eot_token_id": 2, "padding_token_id": 1}

    vocabulary = read_gguf_vocabulary(checkpoint(**named))

    assert (vocabulary.bos_id, vocabulary.eos_ids, vocabulary.pad_id) == (0, (1, 2), 1)
    assert vocabulary.special_tokens == {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}


def test_an_id_outside_the_vocabulary_is_no_id() -> None:
    assert read_gguf_vocabulary(checkpoint(bos_token_id=99)).bos_id is None


def test_the_chat_template_is_that_of_the_file() -> None:
    found = checkpoint()
    template = Checkpoint(found.path, "gguf", "llama", {**found.metadata, "tokenizer.chat_template": "{{ x }}"}, {})

    assert read_gguf_vocabulary(found).chat_template is None
    assert read_gguf_vocabulary(template).chat_template == "{{ x }}"


@pytest.mark.parametrize(("flag", "expected"), [(None, ["a"]), (False, ["a"]), (True, ["<s>", "a"])])
def test_the_start_token_is_added_where_the_file_says_so(flag: bool | None, expected: list[str]) -> None:
    assert tokens("a", bos_token_id=0, add_bos_token=flag) == expected
    assert read_gguf_vocabulary(checkpoint(bos_token_id=0, add_bos_token=flag)).add_bos is bool(flag)


def test_llama_3_adds_the_start_token_unless_told_not_to() -> None:
    assert tokens("a", pre="llama-bpe", bos_token_id=0) == ["<s>", "a"]
    assert tokens("a", pre="llama-bpe", bos_token_id=0, add_bos_token=False) == ["a"]


def test_the_end_token_is_added_where_the_file_says_so() -> None:
    assert tokens("a", bos_token_id=0, eos_token_id=1, add_bos_token=True, add_eos_token=True) == ["<s>", "a", "</s>"]


def test_control_pieces_are_found_whole_in_a_text() -> None:
    assert tokens("a</s>b") == ["a", "</s>", "b"]


def test_user_defined_pieces_are_found_whole_and_are_text() -> None:
    vocabulary = read_gguf_vocabulary(checkpoint(token_type=[3, 3, 4] + [1] * 11))

    assert vocabulary.tokenizer.encode("a<|eot|>b").tokens == ["a", "<|eot|>", "b"]
    assert vocabulary.tokenizer.decode([3, 1, 2, 4]) == "a<|eot|>b"


def test_digits_stand_alone_by_the_rule_of_smollm() -> None:
    assert tokens("a12  12", pre="smollm") == ["a", "1", "2", "ĠĠ", "1", "2"]
    assert tokens("a12  12", pre="gpt-2") == ["a", "12", "Ġ", "Ġ", "12"]


def test_a_word_that_is_a_piece_is_not_merged_by_the_rule_of_llama_3() -> None:
    assert tokens("abc", pre="llama-bpe") == ["abc"]
    assert tokens("abc", pre="gpt-2") == ["ab", "c"]


@pytest.mark.parametrize(
    ("metadata", "complaint"),
    [
        ({"pre": "unheard-of"}, r"cuts text by 'unheard-of' \(tokenizer.ggml.pre\). Known are: gpt-2, smollm"),
        ({"pre": None}, r"does not say how its tokenizer cuts text"),
        ({"model": "bert"}, r"a tokenizer of the kind 'bert' .* Known are: gpt2, llama"),
        ({"model": None}, r"of the kind None"),
        ({"tokens": None}, r"some.gguf has no tokenizer.ggml.tokens"),
        ({"merges": None}, r"some.gguf has no tokenizer.ggml.merges"),
        ({"merges": ["a b", "a c", "b z"]}, r"some.gguf: .* merges pieces that it has not: 'a' \+ 'c' and 1 more"),
        ({"model": "llama"}, r"some.gguf has no tokenizer.ggml.scores"),
    ],
)
def test_a_tokenizer_that_is_not_known_is_refused(metadata: dict[str, object], complaint: str) -> None:
    with pytest.raises(CheckpointError, match=complaint):
        read_gguf_vocabulary(checkpoint(**metadata))


SENTENCE_PIECES = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "ab"]


def sentence_piece(**metadata: object) -> Checkpoint:
    scores = [0.0] * 258 + [-10.0, -11.0, -12.0, -3.0, -1.0]
    kinds = [2, 3] + [6] * 256 + [1] * 5
    return checkpoint(model="llama", tokens=SENTENCE_PIECES, scores=scores, token_type=kinds, pre=None, **metadata)


def test_the_piece_of_the_highest_score_is_merged_first() -> None:
    tokenizer = read_gguf_vocabulary(sentence_piece()).tokenizer

    assert tokenizer.encode("ab").tokens == ["▁", "ab"]
    assert tokenizer.encode("aab").tokens == ["▁a", "ab"]


def test_what_no_piece_covers_becomes_bytes_and_comes_back() -> None:
    tokenizer = read_gguf_vocabulary(sentence_piece()).tokenizer

    encoded = tokenizer.encode("a é")

    assert encoded.tokens == ["▁a", "▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(encoded.ids) == "a é"


@pytest.mark.parametrize(("prefix", "expected"), [(None, ["▁a"]), (True, ["▁a"]), (False, ["a"])])
def test_a_space_goes_before_the_text_unless_the_file_says_no(prefix: bool | None, expected: list[str]) -> None:
    tokenizer = read_gguf_vocabulary(sentence_piece(add_space_prefix=prefix)).tokenizer

    assert tokenizer.encode("a").tokens == expected
    assert tokenizer.decode(tokenizer.encode("a").ids) == "a"


def test_sentence_piece_adds_the_start_token_unless_told_not_to() -> None:
    assert read_gguf_vocabulary(sentence_piece(bos_token_id=1)).add_bos
    assert not read_gguf_vocabulary(sentence_piece(bos_token_id=1, add_bos_token=False)).add_bos
