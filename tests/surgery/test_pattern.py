from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suture.surgery.pattern import Pattern

NAMES = st.sampled_from(["blocks", "query", "query+Sum", "norm", "0", "1", "7", "12", "30", "x-1", "a"])
PATHS = st.lists(NAMES, min_size=1, max_size=5)
RANGES = st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda pair: f"{min(pair)}-{max(pair)}")
PLAIN = st.one_of(NAMES, RANGES, st.sampled_from(["*", "#"]))
BRACES = st.lists(PLAIN, min_size=1, max_size=3).map(lambda names: "{" + ",".join(names) + "}")
PATTERNS = st.tuples(st.booleans(), st.lists(st.one_of(PLAIN, BRACES, st.just("**")), min_size=1, max_size=5))


def one_name(pattern: str, name: str) -> bool:
    """Whether one part of a pattern describes one name: the slow, plain reading of the documentation."""
    if pattern.startswith("{"):
        return any(one_name(alternative, name) for alternative in pattern[1:-1].split(","))
    if pattern == "*":
        return True
    if pattern == "#":
        return name.isdigit()
    if found := re.fullmatch(r"(\d+)-(\d+)", pattern):
        return name.isdigit() and int(name) in range(int(found[1]), int(found[2]) + 1)
    return pattern == name


def whole(patterns: list[str], names: list[str]) -> bool:
    if not patterns:
        return not names
    if patterns[0] == "**":
        return any(whole(patterns[1:], names[skipped:]) for skipped in range(len(names) + 1))
    return bool(names) and one_name(patterns[0], names[0]) and whole(patterns[1:], names[1:])


@given(PATTERNS, PATHS)
def test_agrees_with_the_plain_reading(pattern: tuple[bool, list[str]], names: list[str]) -> None:
    anchored, parts = pattern
    text = "." * anchored + ".".join(parts)
    expected = whole(parts if anchored else ["**", *parts], names)
    assert Pattern(text).matches(".".join(names)) == expected


@given(PATHS, st.integers(1, 5))
def test_the_end_of_a_path_is_a_pattern_for_it(names: list[str], length: int) -> None:
    assert Pattern(".".join(names[-length:])).matches(".".join(names))


@given(st.integers(0, 3000), st.integers(0, 3000), st.integers(0, 3000))
def test_ranges_hold_their_ends(low: int, width: int, number: int) -> None:
    assert Pattern(f"{low}-{low + width}").matches(str(number)) == (low <= number <= low + width)


def test_every_number_near_the_ends_of_a_range() -> None:
    for low, high in [(0, 0), (0, 9), (0, 10), (0, 99), (0, 100), (7, 103), (99, 1001), (10, 19), (95, 105)]:
        pattern = Pattern(f"{low}-{high}")
        assert [n for n in range(1200) if pattern.matches(str(n))] == list(range(low, high + 1))


def test_names_are_whole() -> None:
    assert not Pattern("query").matches("blocks.subquery")
    assert not Pattern("query").matches("blocks.query+Sum")
    assert not Pattern("query").matches("query.blocks")


def test_star_inside_a_name_stays_in_the_name() -> None:
    assert Pattern("query+*").matches("blocks.0.query+Sum")
    assert not Pattern("b*m").matches("blocks.norm")


def test_alternatives_may_be_a_part_of_a_name() -> None:
    assert Pattern("{query,value}_proj").matches("attention.value_proj")
    assert Pattern("Linear_{2-4}").matches("Linear_3")


def test_any_depth_is_also_none() -> None:
    for path in ["blocks", "blocks.0", "blocks.0.norm"]:
        assert Pattern("blocks.**").matches(path)
    assert Pattern("blocks.**.norm").matches("blocks.norm")


def test_patterns_of_one_text_are_equal() -> None:
    assert Pattern("blocks.*") == Pattern("blocks.*")
    assert hash(Pattern("a")) == hash(Pattern("a"))


@pytest.mark.parametrize(
    ("text", "position", "problem"),
    [
        ("", 0, "names no layer"),
        (".", 0, "names no layer"),
        ("..norm", 1, "a name is missing"),
        ("blocks..norm", 7, "a name is missing"),
        ("blocks.", 7, "a name is missing"),
        ("blocks.7-3", 7, "7 is above 3"),
        ("blocks.{1,7-3}", 10, "7 is above 3"),
        ("blocks.{2,5", 7, "not closed"),
        ("{a.b}", 0, "not closed"),
        ("blocks.2}", 8, "not opened"),
        ("{a,}", 3, "empty"),
        ("{}", 1, "empty"),
        ("{a,{b}}", 3, "braces inside braces"),
        ("query,value", 5, "stand in braces"),
        ("blocks.a**", 8, "whole names"),
        ("blocks.***", 7, "whole names"),
        ("{**,a}", 1, "whole names"),
        ("!", 0, "stands before the name"),
        ("a.!!b", 2, "stands before the name"),
        ("a!b", 1, "at the beginning of a name"),
        ("{a,!b}", 3, "before the braces"),
    ],
)
def test_a_malformed_pattern_shows_where(text: str, position: int, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)) as caught:
        Pattern(text)
    line, pointer = str(caught.value).splitlines()[-2:]
    assert line.strip() == text or not text
    assert pointer == "    " + " " * position + "^"


def test_ten_thousand_paths_are_fast() -> None:
    paths = [f"backbone.blocks.{n}.attention.heads.projections.query" for n in range(10_000)]
    pattern = Pattern("blocks.17-9031.**.{query,value}")
    started = time.process_time()
    matched = sum(pattern.matches(path) for path in paths)
    assert matched == 9031 - 17 + 1
    assert time.process_time() - started < 0.5
