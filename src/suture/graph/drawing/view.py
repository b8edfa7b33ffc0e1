"""What of a picture is seen while repeats are folded and some boxes are closed. The page does the same in viewer.js."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from suture.graph.drawing.picture import Box, Edge, Picture, Status, Tag
from suture.graph.drawing.repeats import counterparts

_MOST_SEEN = 80
"""How many boxes a picture may have before deeper ones are closed."""


@dataclass(frozen=True)
class View:
    """A picture as it is drawn."""

    picture: Picture
    closed: frozenset[Box]
    edges: list[Edge]

    def inside(self, box: Box) -> list[Box]:
        """What is seen inside of a box."""
        return [] if box in self.closed else shown_inside(box)

    def takes(self, box: Box) -> list[Tag]:
        """The tags that a box takes; a closed one those that come from outside of it."""
        below = self._below(box)
        given = {tag.name for each in below for tag in each.gives} if len(below) > 1 else set[str]()
        return self._tags(box, [tag for each in below for tag in each.takes if tag.name not in given])

    def gives(self, box: Box) -> list[Tag]:
        """The tags that a box gives; a closed one those that anything outside of it takes."""
        below = self._below(box)
        if len(below) == 1:
            return self._tags(box, box.gives)
        others = {tag.name for each in set(self.picture.boxes) - set(below) for tag in each.takes}
        return self._tags(box, [tag for each in below for tag in each.gives if tag.name in others])

    def _below(self, box: Box) -> list[Box]:
        """What a box is drawn for."""
        return list(box.below()) if box in self.closed else [box]

    def _tags(self, box: Box, tags: list[Tag]) -> list[Tag]:
        """Each once. In a folded repeat, they stand for other parts of a structure too."""
        folded = any(around.role == "repeat" for around in box.around)
        return [replace(tag, part="[…]") if tag.part and folded else tag for tag in _merged(tags)]


def shown_inside(box: Box) -> list[Box]:
    """What is drawn inside of an open box: of a repeat of one composite, what is inside of that."""
    alone = box.role == "repeat" and len(box.turn) == 1
    return shown_inside(box.turn[0]) if alone and box.turn[0].inside else box.turn


def view(picture: Picture, closed: Collection[Box] | None = None) -> View:
    """What is seen with repeats folded; by default everything is open that there is room for."""
    shut = frozenset(_closed_by_default(picture) if closed is None else closed)
    first = counterparts(picture.root)
    seen: dict[tuple[Box, Box], dict[str, set[Status]]] = {}
    for edge in picture.edges:
        if _between_turns(edge):
            continue
        source, target = _seen(edge.source, first, shut), _seen(edge.target, first, shut)
        if source is not target:
            seen.setdefault((source, target), {}).setdefault(edge.label, set()).add(edge.status)
    edges = [Edge(*ends, label, _one(statuses)) for ends, labels in seen.items() for label, statuses in labels.items()]
    return View(picture, shut, edges)


def _seen(box: Box, first: dict[Box, Box], closed: frozenset[Box]) -> Box:
    """The box that is drawn for another."""
    while box in first:
        box = first[box]
    return next((around for around in box.around if around in closed), box)


def _between_turns(edge: Edge) -> bool:
    """Whether an edge leads from one turn of a repeat to the next, which are drawn as one."""
    ends = [dict(_turns_of(box)) for box in (edge.source, edge.target)]
    return any(repeat in ends[1] and ends[1][repeat] != turn for repeat, turn in ends[0].items())


def _turns_of(box: Box) -> list[tuple[Box, int]]:
    lineage = [*box.around, box]
    return [
        (around, around.inside.index(member) // len(around.turn))
        for around, member in pairwise(lineage)
        if around.role == "repeat"
    ]


def _closed_by_default(picture: Picture) -> set[Box]:
    """What to close so that there are not too many boxes: in a comparison what did not change, else what is deepest."""
    changed = {around for box in picture.boxes if box.status != "same" for around in (box, *box.around)}
    visible = dict(_open(picture.root, 1))
    quiet = {box for box in visible if picture.compared and box.inside and box not in changed}
    visible = {box: depth for box, depth in visible.items() if not any(around in quiet for around in box.around)}
    deepest = max(visible.values(), default=1)
    while deepest > 1 and sum(depth <= deepest for depth in visible.values()) > _MOST_SEEN:
        deepest -= 1
    return {box for box, depth in visible.items() if box.inside and (box in quiet or depth >= deepest)}


def _open(box: Box, depth: int) -> Iterator[tuple[Box, int]]:
    """Everything that is drawn where all is open, with how deep it is."""
    for inner in shown_inside(box):
        yield inner, depth
        yield from _open(inner, depth + 1)


def _one(statuses: set[Status]) -> Status:
    return next(iter(statuses)) if len(statuses) == 1 else "same"


def _merged(tags: list[Tag]) -> list[Tag]:
    """Each name once; without the part where there are several."""
    merged: dict[str, Tag] = {}
    for tag in tags:
        known = merged.get(tag.name)
        merged[tag.name] = tag if known is None or known == tag else Tag(tag.name, "", known.updated or tag.updated)
    return list(merged.values())
