"""What was added and removed between two pictures, in one picture that shows both."""

from __future__ import annotations

from dataclasses import replace

from suture.graph.drawing.picture import Box, Edge, Picture, Status, Tag


def compare(new: Picture, old: Picture) -> None:
    """Marks in `new` what `old` has not, and puts in, marked too, what only `old` has. `old` is used up.

    Layers are the same where their path, their class and its configuration are, calls of functions where they are made
    in the same composite in the same order.
    """
    now = {box.key: box for box in new.boxes}
    before = {box.key: box for box in old.boxes}
    drawn = {"": new.root} | now
    for key, box in before.items():
        if key not in now:
            drawn[key] = _put_in(box, drawn)
    for key, box in now.items():
        earlier = before.get(key)
        if earlier is None:
            box.status = "added"
        box.takes = _tags(box.takes, [] if earlier is None else earlier.takes)
        box.gives = _tags(box.gives, [] if earlier is None else earlier.gives)
    new.edges = _edges(new.edges, old.edges, drawn)


def _put_in(box: Box, drawn: dict[str, Box]) -> Box:
    """Draws a box that is no more where it was: in what it was in, after what it came after."""
    around = box.parent
    parent = drawn[around.key if around is not None else ""]
    siblings = [] if around is None else [drawn[each.key] for each in around.inside if each.key in drawn]
    names = [] if around is None else [each.key for each in around.inside]
    earlier = [each for each in siblings if each.parent is parent and _comes_before(each.key, box.key, names)]
    removed = replace(box, inside=[], parent=parent, status="removed")
    removed.takes = [replace(tag, status="removed") for tag in box.takes]
    removed.gives = [replace(tag, status="removed") for tag in box.gives]
    place = parent.inside.index(earlier[-1]) + 1 if earlier else 0
    parent.inside.insert(place, removed)
    return removed


def _comes_before(key: str, other: str, names: list[str]) -> bool:
    return names.index(key) < names.index(other)


def _tags(now: list[Tag], before: list[Tag]) -> list[Tag]:
    kept = [replace(tag, status="same" if tag in before else "added") for tag in now]
    return kept + [replace(tag, status="removed") for tag in before if tag not in now]


def _edges(now: list[Edge], before: list[Edge], drawn: dict[str, Box]) -> list[Edge]:
    def key(edge: Edge) -> tuple[str, str, str]:
        return edge.source.key, edge.target.key, edge.label

    known_now, known_before = {key(edge) for edge in now}, {key(edge) for edge in before}

    def status(edge: Edge) -> Status:
        return "same" if key(edge) in known_before else "added"

    kept = [replace(edge, status=status(edge)) for edge in now]
    gone = [edge for edge in before if key(edge) not in known_now]
    return kept + [Edge(drawn[edge.source.key], drawn[edge.target.key], edge.label, "removed") for edge in gone]
