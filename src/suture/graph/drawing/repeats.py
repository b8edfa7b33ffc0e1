"""Finds what repeats in a picture: blocks that are alike and each fed by the one before, also in turns of several."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from suture.graph.drawing.picture import Box, Edge, Picture

_LONGEST_TURN = 8
_NUMBER = re.compile(r"_?\d+")


def fold_repeats(picture: Picture) -> None:
    """Puts boxes that repeat into a box of their own, everywhere in the picture.

    A repeat hides nothing that differs: all turns have the same layers, edges, shapes, tags and changes inside, take
    from outside the same, or what the turn before gives, and only the last one gives to anything but the next.
    """
    links = _Links(picture.edges)
    for box in reversed([picture.root, *picture.boxes]):
        if len(box.inside) > 1:
            _fold(box, links)


def counterparts(root: Box) -> dict[Box, Box]:
    """For every box in a later turn of a repeat, the one in its first turn that is drawn for it."""
    found: dict[Box, Box] = {}
    for repeat in root.below():
        if repeat.role == "repeat":
            first = [box for member in repeat.turn for box in member.below()]
            later = [box for member in repeat.inside[len(repeat.turn) :] for box in member.below()]
            found |= {box: first[number % len(first)] for number, box in enumerate(later)}
    return found


@dataclass(frozen=True)
class _Link:
    """What a box takes from outside, and gives to others than the next: from where in it, what, and with whom."""

    before: frozenset[Any]
    outside: frozenset[Any]
    gives: frozenset[Any]


class _Links:
    """What leads in and out of boxes."""

    def __init__(self, edges: list[Edge]) -> None:
        self.into: dict[Box, list[Edge]] = {}
        self.out_of: dict[Box, list[Edge]] = {}
        for edge in edges:
            self.into.setdefault(edge.target, []).append(edge)
            self.out_of.setdefault(edge.source, []).append(edge)

    def shape(self, box: Box, top: bool = True) -> Any:
        """What boxes that are alike have in common. Only the name of the outermost may have another number."""
        name = _NUMBER.sub("", box.name) if top else box.name
        own = (name, box.caption, box.role, box.status, box.turns, _tags(box.takes), _tags(box.gives))
        if not box.inside:
            return own
        place = {each: number for number, each in enumerate(box.below())} if top else {}
        edges = frozenset(
            (place[edge.source], place[edge.target], edge.label, edge.status)
            for each in place
            for edge in self.out_of.get(each, ())
            if edge.target in place
        )
        return (own, edges, tuple(self.shape(each, top=False) for each in box.inside))

    def of(self, number: int, boxes: Sequence[Box], where: dict[Box, tuple[int, int]], alike: set[int]) -> _Link:
        """What leads in and out of one of several boxes side by side.

        `where` tells in which of them a box is, and `alike` which are not the only ones that look as they do: these are
        told by how far away they are, all else by what it is.
        """

        def other(box: Box) -> tuple[Any, ...]:
            beside, place = where.get(box, (None, 0))
            return ("outside", id(box)) if beside not in alike else ("sibling", beside - number, place)

        before: set[Any] = set()
        outside: set[Any] = set()
        gives: set[Any] = set()
        for box in boxes[number].below():
            for edge in self.into.get(box, ()):
                if where.get(edge.source, (None,))[0] != number:
                    source = other(edge.source)
                    kind = before if source[0] == "sibling" else outside
                    kind.add((where[box][1], edge.label, edge.status, source))
            for edge in self.out_of.get(box, ()):
                if where.get(edge.target, (None,))[0] not in (number, number + 1):
                    gives.add((where[box][1], edge.label, edge.status, other(edge.target)))
        return _Link(frozenset(before), frozenset(outside), frozenset(gives))


def _tags(tags: list[Any]) -> frozenset[Any]:
    return frozenset((tag.name, tag.updated, tag.status) for tag in tags)


@dataclass(frozen=True)
class _Element:
    """A box, or several that were found to repeat, with what it looks like and how it is linked."""

    box: Box
    shape: Any
    first: _Link
    last: _Link


def _fold(around: Box, links: _Links) -> None:
    boxes = around.inside
    where = {inner: (number, place) for number, box in enumerate(boxes) for place, inner in enumerate(box.below())}
    shapes = [links.shape(box) for box in boxes]
    count = Counter(shapes)
    alike = {number for number, shape in enumerate(shapes) if count[shape] > 1}
    found = [links.of(number, boxes, where, alike) for number in range(len(boxes))]
    elements = [_Element(box, shape, link, link) for box, shape, link in zip(boxes, shapes, found, strict=True)]
    for length in range(1, _LONGEST_TURN + 1):
        elements = list(_with_repeats(elements, length, around))
    around.put([element.box for element in elements])


def _with_repeats(elements: list[_Element], length: int, around: Box) -> list[_Element]:
    made: list[_Element] = []
    start = 0
    while start < len(elements):
        turns = _turns(elements[start:], length)
        covered = elements[start : start + (turns * length if turns > 1 else 1)]
        if turns > 1:
            shape = ("repeat", turns, tuple(element.shape for element in covered[:length]))
            repeat = _repeat([element.box for element in covered], turns, around)
            made.append(_Element(repeat, shape, covered[0].first, covered[-1].last))
        else:
            made += covered
        start += len(covered)
    return made


def _turns(elements: list[_Element], length: int) -> int:
    """How often the first `length` elements come in turn, one turn being no repeat."""
    turns = 1
    while len(elements) >= (turns + 1) * length and _continues(elements, turns, length):
        turns += 1
    worth = 2 if any(element.box.inside for element in elements[:length]) else 3
    return turns if turns >= worth and _is_named_as_a_run(elements, turns, length) else 1


def _continues(elements: list[_Element], turn: int, length: int) -> bool:
    """Whether the turn of this number goes on as those before it."""
    for number in range(length):
        first, second, before, now = (elements[each * length + number] for each in (0, 1, turn - 1, turn))
        if now.shape != first.shape or before.last.gives != first.last.gives:
            return False
        # The first turn as a whole is fed from elsewhere, all others by the one before.
        wanted = first if number else second
        if (now.first.before, now.first.outside) != (wanted.first.before, wanted.first.outside):
            return False
    return bool(elements[length].first.before) and elements[length].first.outside <= elements[0].first.outside


def _is_named_as_a_run(elements: list[_Element], turns: int, length: int) -> bool:
    names = [element.box.name for element in elements[: turns * length : length]]
    return len(set(names)) == len(names) and all(re.search(r"\d", name) for name in names[1:])


def _repeat(boxes: list[Box], turns: int, around: Box) -> Box:
    length = len(boxes) // turns
    first, last = boxes[0], boxes[-1]
    kinds = dict.fromkeys(box.caption for box in boxes[:length])
    repeat = Box(
        key=f"{first.key}..{last.key}",
        name=f"{first.name.partition('..')[0]}..{last.name.rpartition('..')[2]}",
        caption=", ".join(filter(None, kinds)),
        role="repeat",
        path=first.path,
        status=first.status if all(box.status == first.status for box in boxes) else "same",
        turns=turns,
        parent=around,
    )
    repeat.put(boxes)
    return repeat
