"""What layers are selected by: patterns of paths, types, predicates; and what to say when one selects nothing."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from suture.surgery.pattern import Pattern
from suture.surgery.survey import Match, SelectionError

_NUMERIC = re.compile(r"[0-9]+|[0-9]+-[0-9]+|#|\*\*?")
_NAMES_SHOWN = 12
_ELSEWHERE = {
    "q_proj": "query",
    "k_proj": "key",
    "v_proj": "value",
    "o_proj": "output",
    "gate_proj": "gate",
    "up_proj": "up",
    "down_proj": "down",
    "self_attn": "attention",
    "attn": "attention",
    "mlp": "feedforward",
    "lm_head": "head",
}
"""Names of layers in other libraries, for whoever comes from there."""


Criterion = str | Pattern | type[Any] | Callable[[Match], object]
Criteria = Criterion | Iterable[Criterion]


@dataclass(frozen=True)
class Condition:
    """One criterion, ready to be asked about a match and the path by which patterns know it."""

    name: str
    given: object
    selects: Callable[[Match, str], bool]


def find(given: Iterable[Criteria], candidates: Sequence[tuple[Match, str]], where: str) -> list[Match]:
    """The candidates that meet any of the criteria, in their order.

    Args:
        given: the criteria. An iterable among them is read once, here.
        candidates: matches, each with the path by which patterns know it.
        where: what the candidates are in, for the error.

    Raises:
        SelectionError: a criterion selects nothing.
        TypeError: something is no criterion.
        ValueError: a pattern is malformed, or there is no criterion at all.
    """
    conditions = list(_conditions(given))
    if not conditions:
        raise ValueError("No criterion was given. Give patterns, types or predicates; '**' selects every layer.")
    found: dict[int, Match] = {}
    for condition in conditions:
        met = [match for match, path in candidates if condition.selects(match, path)]
        if not met:
            raise _nothing_selected(condition, where, candidates)
        found.update((match.span.start, match) for match in met)
    return [found[number] for number in sorted(found)]


def _conditions(given: Iterable[object]) -> Iterator[Condition]:
    for criterion in given:
        if isinstance(criterion, str | Pattern):
            pattern = criterion if isinstance(criterion, Pattern) else Pattern(criterion)
            yield Condition(f"The pattern {pattern.text!r}", pattern, _by_path(pattern))
        elif isinstance(criterion, type):
            yield Condition(f"The type {criterion.__name__}", criterion, _by_type(criterion))
        elif isinstance(criterion, nn.Module):
            raise TypeError(
                f"A layer is no criterion. Received: a {type(criterion).__name__}. "
                f"To select where it stands, give a predicate: lambda match: match.layer is layer."
            )
        elif isinstance(criterion, Iterable):
            yield from _conditions(cast("Iterable[object]", criterion))
        elif callable(criterion):
            name = getattr(criterion, "__name__", repr(criterion))
            yield Condition(f"The predicate {name}", criterion, _by_predicate(criterion))
        else:
            raise TypeError(
                f"Layers are selected by patterns of paths (str), types, or predicates (functions of a match). "
                f"Received: {criterion!r} ({type(criterion).__name__})."
            )


def _by_path(pattern: Pattern) -> Callable[[Match, str], bool]:
    return lambda match, path: pattern.matches(path)


def _by_type(kind: type[Any]) -> Callable[[Match, str], bool]:
    return lambda match, path: isinstance(match.layer, kind)


def _by_predicate(predicate: Callable[[Match], object]) -> Callable[[Match, str], bool]:
    return lambda match, path: bool(predicate(match))


# When nothing is selected


def _nothing_selected(condition: Condition, where: str, candidates: Sequence[tuple[Match, str]]) -> SelectionError:
    """The error for a criterion that selects none of the candidates, with what is near to it."""
    hint = ""
    if candidates and isinstance(condition.given, Pattern):
        hint = _near_patterns(condition.given.text, candidates)
    elif candidates and isinstance(condition.given, type):
        hint = _near_types(condition.given.__name__, [type(match.layer).__name__ for match, _ in candidates])
    return SelectionError(f"{condition.name} selects none of the {len(candidates)} layers in {where}. {hint}".rstrip())


def _near_patterns(pattern: str, candidates: Sequence[tuple[Match, str]]) -> str:
    if pattern in {type(match.layer).__name__ for match, _ in candidates}:
        return f"{pattern} is a class: give the type itself instead of its name."
    if set(pattern) & set("[]()|^$?"):
        return "A pattern is written like blocks.3, blocks.3-7, blocks.{3,7}, blocks.*.norm or **.norm."
    paths = [path for _, path in candidates]
    anchor = "." if pattern.startswith(".") else ""
    if anchor and any(map(Pattern(pattern[1:]).matches, paths)):
        return f"The leading dot anchors it at the root; {pattern[1:]!r} selects layers."
    wanted = _general(pattern.removeprefix("."))
    length = wanted.count(".") + 1
    ends = {_general(path if anchor else ".".join(path.split(".")[-length:])): None for path in paths}
    if wanted in ends:
        numbered = list(filter(Pattern(anchor + wanted).matches, paths))
        return f"The numbers there go from {numbered[0]!r} to {numbered[-1]!r}."
    around, _, last = pattern.rpartition(".")
    for deeper in (pattern.replace(".*.", ".**."), f"{around}.**.{last}"):
        if around and any(map(Pattern(deeper).matches, paths)):
            return f"What is meant may be deeper inside: {deeper!r} selects layers."
    names = list(dict.fromkeys(path.rpartition(".")[2] for path in paths))
    if (here := _ELSEWHERE.get(last)) in names:
        return f"What other libraries call {last!r} is {here!r} here."
    near = difflib.get_close_matches(wanted, ends) or difflib.get_close_matches(wanted.rpartition(".")[2], names)
    return _listed("Near to it", near) if near else _listed("The names are", names)


def _near_types(wanted: str, present: Sequence[str]) -> str:
    names = list(dict.fromkeys(present))
    if wanted in names:
        return f"There are layers of another class {wanted}: look at where it is imported from."
    near = difflib.get_close_matches(wanted, names)
    return _listed("Near to it", near) if near else _listed("The classes are", names)


def _general(path: str) -> str:
    """A path or pattern in which every number stands for all."""
    return ".".join("*" if _NUMERIC.fullmatch(name) else name for name in path.split("."))


def _listed(lead: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"{lead}: {', '.join(map(repr, names[:_NAMES_SHOWN]))}{more}."
