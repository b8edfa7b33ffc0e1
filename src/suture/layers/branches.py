"""A model as it is printed: one branch for each place, with its text, its parameters and what it resembles.

Inside composites the places are those of the wiring, inside plain modules their children.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from torch import nn
from torch.nn.parameter import is_lazy

from suture.layers.label import label
from suture.layers.node import node_of
from suture.layers.places import places_in

_NUMBERED = re.compile(r"(.*?)_?([0-9]+)")


@dataclass(eq=False)
class Branch:
    """One place of the tree."""

    key: int
    """Of the slot where a composite calls the layer, else of the layer itself: its identity."""
    name: str
    path: str
    title: str
    parameters: dict[int, nn.Parameter]
    """The parameters at and below this place by identity, so that shared ones count once."""
    notes: list[str] = field(default_factory=list[str])
    children: list[Branch] = field(default_factory=list["Branch"])
    same_weights: Branch | None = None
    """An earlier branch, not around this one, that has just these parameters."""
    tie: str = ""
    """What is said of it."""
    shape: int = 0
    """Equal for branches that print alike, but for their own names and notes."""
    column: str | None = None
    """What stands at the right; by default the number of parameters."""
    mark: str = ""
    visible: bool = True
    opened: bool = True

    @property
    def size(self) -> int:
        return size_of(self.parameters)

    def below(self) -> Iterator[Branch]:
        for child in self.children:
            yield child
            yield from child.below()

    def lineage_of(self, path: str) -> list[Branch]:
        """The branches from this one down to the first at `path`; empty when there is none."""
        if self.path == path:
            return [self]
        for child in self.children:
            if found := child.lineage_of(path):
                return [self, *found]
        return []


def size_of(parameters: Mapping[int, nn.Parameter]) -> int:
    """The number of values; a lazy parameter has none yet."""
    return sum(0 if is_lazy(parameter) else parameter.numel() for parameter in parameters.values())


def branches(model: nn.Module) -> Branch:
    """The branch of `model`, with all below it."""
    root = Branch(id(model), "", "", label(model), _own_parameters(model))
    everything, lineage = [root], [root]
    for place in places_in(model):
        del lineage[place.depth :]
        owner, _, name = place.path.rpartition(".")
        key = id(place.layer if place.slot is None else place.slot)
        branch = Branch(key, name, place.path, label(place.layer), _own_parameters(place.layer))
        if owner != lineage[-1].path:
            branch.notes.append(f"owned by {_seen_from(lineage, owner)}")
        lineage[-1].children.append(branch)
        lineage.append(branch)
        everything.append(branch)
    for branch in reversed(everything):
        for child in branch.children:
            branch.parameters.update(child.parameters)
    _find_same_weights([root], {})
    return root


def _own_parameters(layer: nn.Module) -> dict[int, nn.Parameter]:
    return {id(parameter): parameter for parameter in layer.parameters(recurse=node_of(layer) is None)}


def _find_same_weights(lineage: list[Branch], seen: dict[tuple[int, ...], list[Branch]]) -> None:
    branch = lineage[-1]
    if branch.parameters:
        alike = seen.setdefault(tuple(branch.parameters), [])
        branch.same_weights = next((other for other in alike if other not in lineage), None)
        if branch.same_weights is not None:
            branch.tie = f"tied to {_seen_from(lineage[:-1], branch.same_weights.path)}"
            return
        alike.append(branch)
    for child in branch.children:
        _find_same_weights([*lineage, child], seen)


def _seen_from(lineage: list[Branch], path: str) -> str:
    """`path` from the innermost branch of the lineage that it is in; that branch itself goes by its name."""
    for branch in reversed(lineage):
        if path == branch.path:
            return branch.name or "the root"
        if path.startswith(branch.path + "."):
            return path[len(branch.path) + 1 :]
    return path


# Folding


def number_shapes(branch: Branch, shapes: dict[object, int]) -> None:
    """Gives equal numbers to branches that print alike; call it when the marks are set."""
    for child in branch.children:
        number_shapes(child, shapes)
    below = tuple((child.name, child.shape, child.tie, *child.notes) for child in branch.children)
    branch.shape = shapes.setdefault((branch.title, branch.size, branch.column, branch.mark, below), len(shapes))


def runs(siblings: Iterable[Branch]) -> list[list[Branch]]:
    """Groups consecutive siblings that are printed on one line."""
    found: list[list[Branch]] = []
    for branch in siblings:
        if found and _continues(found[-1], branch):
            found[-1].append(branch)
        else:
            found.append([branch])
    return found


def run_name(run: list[Branch]) -> str:
    """The name of one branch, or the first and the last of several: `0..29`."""
    return run[0].name if len(run) == 1 else f"{run[0].name}..{run[-1].name}"


def _continues(run: list[Branch], branch: Branch) -> bool:
    """Whether `branch` counts on from the run, prints like it, and shares weights with all of it or with none."""
    first, last = run[0], run[-1]
    stem, number = _numbered(last.name)
    if (branch.shape, branch.notes) != (first.shape, first.notes) or _numbered(branch.name) != (stem, number + 1):
        return False
    if len(run) == 1 and branch.same_weights is first:
        return True
    return branch.same_weights is last.same_weights


def _numbered(name: str) -> tuple[str, int]:
    """A name as a stem and a number: `Linear` is followed by `Linear_2`."""
    found = _NUMBERED.fullmatch(name)
    return (found[1], int(found[2])) if found else (name, 1)
