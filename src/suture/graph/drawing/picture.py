"""What a picture of a graph shows, whatever draws it: boxes in boxes, what flows between them, and tags.

A value that is handed from call to call is an edge. One that reaches a layer by the context, past the arguments of the
composites around it, is a tag: a small name at its origin, once, and at every box that takes it. So a mask that thirty
layers share is thirty short words and not thirty lines across the picture.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

_NUMBER = re.compile(r"_\d+$")

Status = Literal["same", "added", "removed"]
"""What became of a thing since the graph that a picture is compared with."""
Role = Literal["input", "output", "layer", "function", "composite", "repeat"]


@dataclass(frozen=True)
class Tag:
    """A value that is taken or given by name and not along an edge."""

    name: str
    part: str = ""
    """Which part of it, of an input that is a structure."""
    updated: bool = False
    """Whether what takes it changes it, as a layer does its cache."""
    status: Status = "same"

    @property
    def text(self) -> str:
        return self.name + self.part


@dataclass(eq=False)
class Box:
    """A call of a layer or function, an input or output, or a composite with what is inside of it."""

    key: str
    """What it is known by in other graphs: where, what and the how manieth."""
    name: str
    caption: str
    role: Role
    path: str = ""
    status: Status = "same"
    optional: bool = False
    weights: bool = False
    """Whether it is a layer with parameters of its own."""
    cache: bool = False
    takes: list[Tag] = field(default_factory=list["Tag"])
    gives: list[Tag] = field(default_factory=list["Tag"])
    inside: list[Box] = field(default_factory=list["Box"])
    parent: Box | None = field(default=None, repr=False)
    turns: int = 1
    """Of a repeat: how often what is inside comes in turn."""

    @property
    def around(self) -> list[Box]:
        """What it is in, the outermost first."""
        return [] if self.parent is None else [*self.parent.around, self.parent]

    @property
    def said(self) -> str:
        """The caption, without what the name says already."""
        named = _NUMBER.sub("", self.name)
        if self.caption == named:
            return ""
        return self.caption[len(named) + 1 : -1] if self.caption.startswith(f"{named}(") else self.caption

    @property
    def holds(self) -> bool:
        """Whether it is drawn around others."""
        return self.role in ("composite", "repeat")

    @property
    def turn(self) -> list[Box]:
        """Of a repeat: what comes in the first turn. Of a composite: all that is inside."""
        return self.inside[: len(self.inside) // self.turns]

    def put(self, boxes: list[Box]) -> None:
        """Makes `boxes` what is inside."""
        self.inside = boxes
        for box in boxes:
            box.parent = self

    def below(self) -> Iterator[Box]:
        """Itself and all that is inside, from the outside in."""
        yield self
        for box in self.inside:
            yield from box.below()


@dataclass(frozen=True)
class Edge:
    """What goes from one box to another; `label` says its shape."""

    source: Box
    target: Box
    label: str
    status: Status = "same"


@dataclass
class Picture:
    """Everything that a picture shows, with nothing folded away yet."""

    title: str
    root: Box
    """Holds all others, and is not drawn itself."""
    edges: list[Edge]

    @property
    def boxes(self) -> list[Box]:
        return list(self.root.below())[1:]

    @property
    def compared(self) -> bool:
        """Whether something in it was added or removed."""
        changed = [box for box in self.boxes if box.status != "same"]
        return bool(changed) or any(edge.status != "same" for edge in self.edges)
