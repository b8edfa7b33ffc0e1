"""Patterns of paths.

A pattern matches the end of a path, name by name:

    query                 every layer named query
    attention.query       ... that is owned by a layer named attention
    blocks.*.norm         `*` stands for one name, or inside a name for any characters: query+*
    blocks.#              `#` stands for one number
    blocks.3-7            the numbers 3 to 7, both included
    {query,value}         alternatives; a range may be one of them: blocks.{0,4-6}
    blocks.**.query       `**` stands for any names, also for none
    blocks.!{0,11}.norm   `!` before a name stands for one name that is not like it
    .backbone.norm        a leading dot anchors the pattern at the root
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

RANGE = re.compile(r"([0-9]+)-([0-9]+)")
NUMBER = r"(?:0|[1-9][0-9]*)"
ANY_NAMES = r"(?:[^.]+\.)*"


@dataclass(frozen=True)
class Pattern:
    """A compiled pattern of paths.

    Raises:
        ValueError: the text is not a pattern; the message points at the place.

    Example:
        >>> Pattern("blocks.3-7.{query,value}").matches("backbone.blocks.5.query")
        True
        >>> Pattern(".blocks.#").matches("backbone.blocks.5")
        False
    """

    text: str
    _expression: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_expression", _Compiler(self.text).expression())

    def matches(self, path: str) -> bool:
        """Whether the end of `path` (all of it, for an anchored pattern) is what the pattern describes."""
        return self._expression.fullmatch(path + ".") is not None


class _Compiler:
    """Turns a pattern into one regular expression over paths in which a dot ends every name."""

    def __init__(self, text: str) -> None:
        self.text = text

    def expression(self) -> re.Pattern[str]:
        start = 1 if self.text.startswith(".") else 0
        if start == len(self.text):
            raise self.error(0, "it names no layer (`**` stands for every layer; the root itself is never selected)")
        pieces = [] if start else [ANY_NAMES]
        for name in self.text[start:].split("."):
            piece = ANY_NAMES if name == "**" else self.name(name, start) + r"\."
            if not (piece == ANY_NAMES and pieces[-1:] == [ANY_NAMES]):
                pieces.append(piece)
            start += len(name) + 1
        return re.compile("".join(pieces))

    def name(self, name: str, start: int) -> str:
        if not name:
            raise self.error(start, "a name is missing at this dot")
        if name.startswith("!"):
            if name[1:2] in ("", "!"):
                raise self.error(start, "`!` stands before the name that is left out")
            return rf"(?!{self.name(name[1:], start + 1)}\.)[^.]+"
        if numbers := RANGE.fullmatch(name):
            return self.range(numbers, start)
        pieces: list[str] = []
        position = 0
        while position < len(name):
            if name[position] == "{":
                end = name.find("}", position)
                if end < 0:
                    raise self.error(start + position, "this brace is not closed within the name")
                pieces.append(self.alternatives(name[position + 1 : end], start + position + 1))
                position = end + 1
            else:
                pieces.append(self.character(name, position, start))
                position += 1
        return "".join(pieces)

    def alternatives(self, inside: str, start: int) -> str:
        pieces: list[str] = []
        for alternative in inside.split(","):
            if not alternative:
                raise self.error(start, "an alternative is empty")
            if alternative.startswith("!"):
                raise self.error(start, "`!` stands before the braces: !{a,b}")
            if "{" in alternative:
                raise self.error(start + alternative.index("{"), "braces inside braces are not understood")
            pieces.append(self.name(alternative, start))
            start += len(alternative) + 1
        return f"(?:{'|'.join(pieces)})"

    def character(self, name: str, position: int, start: int) -> str:
        match name[position]:
            case "*":
                if name[position : position + 2] == "**":
                    raise self.error(start + position, "`**` stands for whole names: write it between dots")
                return "[^.]*"
            case "#":
                return NUMBER
            case "}":
                raise self.error(start + position, "this brace was not opened within the name")
            case "!":
                raise self.error(start + position, "`!` stands at the beginning of a name, outside of braces")
            case ",":
                raise self.error(start + position, "alternatives stand in braces: {a,b}")
            case other:
                return re.escape(other)

    def range(self, numbers: re.Match[str], start: int) -> str:
        low, high = int(numbers[1]), int(numbers[2])
        if low > high:
            raise self.error(start, f"the range is empty: {low} is above {high}")
        return f"(?:{'|'.join(_decades(low, high))})"

    def error(self, position: int, problem: str) -> ValueError:
        pointer = " " * position + "^"
        return ValueError(f"The pattern {self.text!r} is malformed: {problem}.\n    {self.text}\n    {pointer}")


def _decades(low: int, high: int) -> list[str]:
    """Expressions that together match the numbers low to high; each fixes the first digits and leaves the rest open."""
    pieces: list[str] = []
    while low <= high:
        open_digits = 0
        while _decade_fits(low, high, open_digits + 1):
            open_digits += 1
        leading = low // 10**open_digits
        pieces.append((str(leading) if leading or not open_digits else "") + "[0-9]" * open_digits)
        low += 10**open_digits
    return pieces


def _decade_fits(low: int, high: int, open_digits: int) -> bool:
    size = 10**open_digits
    aligned = low % size == 0 and low + size - 1 <= high
    # Numbers are written without leading zeros, so below ten only one digit can be open.
    return aligned and (low > 0 or open_digits == 1)
