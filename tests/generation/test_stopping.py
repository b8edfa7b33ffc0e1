from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suture.generation.stopping import Reply, StopConditions, StopStrings
from suture.generation.text import Detokenizer, Tokenizer


def passed(strings: list[str], pieces: list[str]) -> str:
    stops = StopStrings(strings)
    text = ""
    for piece in pieces:
        text += stops.push(piece)
        if stops.found:
            return text
    return text + stops.flush()


def test_text_without_stop_strings_passes_at_once() -> None:
    assert StopStrings([]).push("anything") == "anything"


def test_a_stop_string_across_pieces_ends_the_text_before_it() -> None:
    stops = StopStrings(["\n\nQ:"])
    assert [stops.push(piece) for piece in ("A: yes\n", "\n", "Q", ": no")] == ["A: yes", "", "", ""]
    assert stops.found


def test_what_only_began_like_a_stop_string_comes_out() -> None:
    stops = StopStrings(["END"])
    assert [stops.push("E"), stops.push("N"), stops.push("E"), stops.flush()] == ["", "", "EN", "E"]


def test_the_stop_string_complete_first_counts() -> None:
    assert passed(["abcd", "bc"], ["xabcd"]) == "xa"
    assert passed(["bc", "abc"], ["xabcd"]) == "x"


@given(
    st.text("ab", max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(0, 12)),
)
def test_the_cutting_makes_no_difference(text: str, strings: list[str], cuts: list[int]) -> None:
    bounds = [0, *sorted(cuts), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(bounds)]
    result = passed(strings, pieces)
    assert result == passed(strings, list(text))
    assert text.startswith(result)
    assert not any(string in result for string in strings)


def reply(tokenizer: Tokenizer, limit: int = 100, stop: tuple[str, ...] = ()) -> Reply:
    return Reply(limit, StopConditions(stop, [2], tokenizer), Detokenizer(tokenizer))


def test_the_id_that_ends_is_part_of_the_ids_and_not_of_the_text(byte_level: Tokenizer) -> None:
    answer = reply(byte_level)
    for token_id in [*byte_level.encode("hi"), 2]:
        assert not answer.ended
        answer.push(token_id)
    assert answer.ended
    assert answer.ids == [*byte_level.encode("hi"), 2]
    assert answer.text == "hi"


def test_a_stop_id_ends_without_any_text() -> None:
    answer = Reply(5, StopConditions(stop_ids=[7]))
    assert [answer.push(token_id) for token_id in (3, 7)] == ["", ""]
    assert answer.ended
    assert answer.ids == [3, 7]


def test_the_limit_ends() -> None:
    answer = Reply(2, StopConditions())
    answer.push(3)
    assert not answer.ended
    answer.push(3)
    assert answer.ended
    assert Reply(0, StopConditions()).ended


def test_a_stop_string_of_several_tokens_and_its_ids(byte_level: Tokenizer) -> None:
    answer = reply(byte_level, stop=("\U0001f600",))
    ids = byte_level.encode("so \U0001f600 on")
    pieces = [answer.push(token_id) for token_id in ids if not answer.ended]
    assert answer.text == "so " == "".join(pieces)
    assert answer.ids == byte_level.encode("so \U0001f600")


def test_a_cut_tail_is_flushed_at_the_limit(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("\U0001f600")
    assert len(ids) == 4
    answer = reply(byte_level, limit=3)
    assert [answer.push(token_id) for token_id in ids[:3]] == ["", "", byte_level.decode(ids[:3])]
    assert answer.text == "\N{REPLACEMENT CHARACTER}"


def test_what_a_stop_string_held_back_comes_out_at_the_end(byte_level: Tokenizer) -> None:
    answer = reply(byte_level, stop=("END",))
    for token_id in [*byte_level.encode("the EN"), 2]:
        answer.push(token_id)
    assert answer.text == "the EN"


def test_a_special_token_as_a_stop_string_is_a_stop_id(byte_level: Tokenizer) -> None:
    conditions = StopConditions(["</s>", "\n"], [], byte_level)
    assert (conditions.ids, conditions.strings) == ({2}, ("\n",))


def test_one_stop_string_needs_no_list(byte_level: Tokenizer) -> None:
    assert StopConditions("END", tokenizer=byte_level).strings == ("END",)


def test_stop_conditions_without_sense_are_refused(byte_level: Tokenizer) -> None:
    with pytest.raises(ValueError, match="A stop string is empty"):
        StopConditions([""], tokenizer=byte_level)
    with pytest.raises(TypeError, match="To stop on an id, use stop_ids"):
        StopConditions([2], tokenizer=byte_level)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="no tokenizer"):
        StopConditions("END")
