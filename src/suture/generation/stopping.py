"""When a reply ends: at an id, at a string, or at its length. Each row of a batch has a reply of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from suture.generation.checks import ensure_integer
from suture.generation.text import Detokenizer, Tokenizer


class StopStrings:
    """Passes text on up to the first stop string, and holds back what may be the beginning of one.

    The stop string that is complete first ends the text, and of two that are complete with the same character the
    longer one. How the text is cut into pieces makes no difference.

    >>> stops = StopStrings(["END"])
    >>> stops.push("The E"), stops.push("N"), stops.push("D."), stops.found
    ('The ', '', '', True)
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self.strings = tuple(strings)
        self.found = False
        self._held = ""

    def push(self, piece: str) -> str:
        """The text that is now known to stand before any stop string."""
        if not self.strings:
            return piece
        text = self._held + piece
        ends = [(start + len(string), start) for string in self.strings if (start := text.find(string)) >= 0]
        if ends:
            self.found = True
            self._held = ""
            return text[: min(ends)[1]]
        held = max(overlap(text, string) for string in self.strings)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def flush(self) -> str:
        """What was held back: no stop string came of it."""
        held, self._held = self._held, ""
        return held


def overlap(text: str, string: str) -> int:
    """The length of the longest end of `text` that `string` begins with, the whole of `string` aside."""
    for length in range(min(len(text), len(string) - 1), 0, -1):
        if text.endswith(string[:length]):
            return length
    return 0


class StopConditions:
    """What ends a reply: strings and ids. A string that is a special token counts as its id, for it has no text.

    Raises:
        TypeError: a stop string is no string, or a stop id no whole number.
        ValueError: a stop string is empty, a stop id is negative, or there is no tokenizer to find one with.

    >>> conditions = StopConditions(stop_ids=[2])
    >>> conditions.ids, conditions.strings
    (frozenset({2}), ())
    """

    def __init__(
        self, stop: str | Sequence[str] = (), stop_ids: Sequence[int] = (), tokenizer: Tokenizer | None = None
    ) -> None:
        strings = (stop,) if isinstance(stop, str) else tuple(each_of("stop", stop, "strings"))
        for string in strings:
            ensure_stop_string(string)
        if strings and tokenizer is None:
            raise ValueError("This model has no tokenizer, so no string can be found in its reply. Stop on stop_ids.")
        special = {string: tokenizer.special_id(string) for string in strings} if tokenizer is not None else {}
        self.strings = tuple(string for string in strings if special[string] is None)
        self.ids = frozenset(
            [ensure_integer("A stop id", token_id, least=0) for token_id in each_of("stop_ids", stop_ids, "ids")]
            + [token_id for token_id in special.values() if token_id is not None]
        )


def each_of(name: str, given: object, what: str) -> Iterable[Any]:
    """The values of a list. Raises `TypeError` where it is none."""
    if not isinstance(given, Iterable) or isinstance(given, str | bytes):
        raise TypeError(f"{name} takes a list of {what}, [] for none, but received {given!r}.")
    return cast("Iterable[Any]", given)


def ensure_stop_string(string: object) -> None:
    """Refuses what cannot end a text."""
    if not isinstance(string, str):
        raise TypeError(f"stop takes strings, but received {string!r}. To stop on an id, use stop_ids.")
    if not string:
        raise ValueError("A stop string is empty: it would end every reply before it began.")


class Reply:
    """What one row of a batch answers: its ids, its text where that is wanted, and whether it has ended.

    The id that ends a reply is one of its ids and not of its text, and a stop string and what follows it are not of
    its text either. Nothing is added after the end.
    """

    def __init__(
        self,
        limit: int,
        conditions: StopConditions,
        detokenizer: Detokenizer | None = None,
    ) -> None:
        self.ids: list[int] = []
        self.text = ""
        self.ended = limit == 0
        self._limit = limit
        self._stop_ids = conditions.ids
        self._stop_strings = StopStrings(conditions.strings)
        self._detokenizer = detokenizer

    def push(self, token_id: int) -> str:
        """Takes the next id and returns the text that it made certain."""
        self.ids.append(token_id)
        self.ended = token_id in self._stop_ids
        if self._detokenizer is None:
            self.ended = self.ended or len(self.ids) == self._limit
            return ""
        piece = "" if self.ended else self._stop_strings.push(self._detokenizer.push(token_id))
        self.ended = self.ended or self._stop_strings.found or len(self.ids) == self._limit
        if self.ended and not self._stop_strings.found:
            piece += self._stop_strings.push(self._detokenizer.flush())
            piece += self._stop_strings.flush()
        self.text += piece
        return piece
