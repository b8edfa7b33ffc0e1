"""All places of a tree at one moment: what a selection chooses from, and by what it follows layers through edits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from suture.layers.composite import Composite
from suture.layers.node import Slot
from suture.layers.places import open_place, places_in


class SelectionError(LookupError):
    """Nothing was selected, not as many layers as was said, or a layer that is no longer there."""


@dataclass(frozen=True, eq=False)
class Match:
    """A place in a model: the path and the layer there, and the composite or plain module that has it."""

    path: str
    layer: Any
    """An `nn.Module`; typed so that a predicate may read attributes of the class that it expects."""
    parent: Any
    """The composite or plain module that has it; typed as the layer is."""
    slot: Slot | None
    """None in a plain module, until the place is edited."""
    span: range
    """This place and all below it, numbered over the whole tree in the order of the calls."""

    def holds(self, other: Match) -> bool:
        """Whether the other place is inside this one."""
        return self.span.start < other.span.start < self.span.stop

    def open(self) -> tuple[Composite, Slot]:
        """The composite and the slot in which this place is edited."""
        return open_place(self.parent, self.slot, self.path)

    def inside(self, path: str) -> str:
        """A path seen from this place; from around it, where the layer is owned beside this one."""
        around = self.path
        while around and not path.startswith(f"{around}."):
            around = around.rpartition(".")[0]
        return path[len(around) + 1 :] if around else path

    def __repr__(self) -> str:
        return f"Match({self.path!r}, {type(self.layer).__name__})"


class Survey:
    """The places of a model, as they were at one version of its structure."""

    def __init__(self, model: nn.Module) -> None:
        _refuse_no_model(model)
        self.model = model
        self.name = type(model).__name__
        self.version = _version(model)
        self.matches = list(_matches(model))
        self.has_plain = any(match.slot is None for match in self.matches)
        self._at_path: dict[str, list[Match]] | None = None

    @property
    def is_current(self) -> bool:
        """Whether the model is known not to have changed; plain modules do not tell."""
        return not self.has_plain and self.version == _version(self.model)

    def below(self, match: Match) -> list[Match]:
        """The places inside a match of this survey."""
        return self.matches[match.span.start + 1 : match.span.stop]

    def at_path(self, path: str) -> list[Match]:
        """The places of the layer owned at `path`: several for a leaf that is shared."""
        if self._at_path is None:
            self._at_path = defaultdict(list)
            for match in self.matches:
                self._at_path[match.path].append(match)
        return self._at_path.get(path, [])

    def follow(self, match: Match, earlier: Survey) -> Match:
        """The place to which edits have brought a match of an earlier survey.

        Raises:
            SelectionError: its layer was taken out.
        """
        if earlier is self:
            return match
        places = [place for place in self.at_path(match.path) if place.layer is match.layer]
        before = earlier.at_path(match.path)
        for place in places:
            # A slot stays when edits happen around it. A layer that was wrapped has moved to another: where it stood at
            # one place only, that is the place where it is now.
            if place.slot is match.slot or len(places) == len(before) == 1:
                return place
        raise SelectionError(
            f"{match.path!r} ({type(match.layer).__name__}) was taken out of {self.name} since it was selected. "
            f"Select again."
        )


def _version(model: nn.Module) -> int:
    return model.structure_version if isinstance(model, Composite) else 0


def _refuse_no_model(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"select() takes a model: any torch.nn.Module. Received: {model!r:.80} ({type(model).__name__})."
        )


def _matches(model: nn.Module) -> Iterator[Match]:
    places = list(places_in(model))
    ends = [len(places)] * len(places)
    around: list[int] = []
    for number, place in enumerate(places):
        while around and places[around[-1]].depth >= place.depth:
            ends[around.pop()] = number
        around.append(number)
    for number, (place, end) in enumerate(zip(places, ends, strict=True)):
        yield Match(place.path, place.layer, place.parent, place.slot, range(number, end))
