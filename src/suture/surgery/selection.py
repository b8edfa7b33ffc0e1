"""Selecting layers of a tree, and editing what was selected as one edit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, cast, overload

from torch import nn

from suture.layers import printing
from suture.layers.composite import Composite
from suture.layers.drawing import Drawing
from suture.layers.edit import Edit, insert, swap
from suture.layers.notebook import html
from suture.layers.recording import borrowing, recording
from suture.surgery.adapter import Adapter
from suture.surgery.criteria import Criteria, find
from suture.surgery.survey import Match, SelectionError, Survey

Make = Callable[[Any], nn.Module]
"""A user's function that makes a layer for the one that stands at a place."""


def select(model: nn.Module, *criteria: Criteria) -> Selection:
    """The layers of `model` that meet any of the criteria, in the order of the calls.

    A criterion is a pattern of paths (see `suture.surgery.pattern`), a type of layer, a function of a match (with
    `.path`, `.layer` and `.parent`) that says whether to select it, or an iterable of such criteria. The root itself is
    never selected. A layer that is called at several places is selected at each.

    Raises:
        SelectionError: a criterion selects nothing; the message names it and what is near.
        TypeError: `model` is no composite, or something is no criterion.
        ValueError: a pattern is malformed.

    Example:
        >>> from suture import layers as sl
        >>> model = sl.Stack(*(sl.Chain(norm=sl.RMSNorm(4), up=sl.Linear(4, 8)) for _ in range(3)))
        >>> select(model, "{0,2}.norm", sl.Linear).paths
        ('0.norm', '0.up', '1.up', '2.norm', '2.up')
    """
    survey = Survey(model)
    return Selection(survey, find(criteria, [(match, match.path) for match in survey.matches], survey.name))


class Selection:
    """Layers that were selected, in the order of the calls. `select` makes one.

    It is a list of matches that never changes. Its methods follow the selected layers through edits made meanwhile; a
    layer that was taken out is a `SelectionError`. Of matches inside one another an edit takes the outermost, unless
    `innermost()` was said. Every edit holds whole or not at all, and returns one `Edit`.
    """

    def __init__(self, survey: Survey, matches: Sequence[Match]) -> None:
        self.survey = survey
        self.matches = tuple(matches)

    # Looking

    @property
    def paths(self) -> tuple[str, ...]:
        """Where each match is owned, from the root of the model."""
        return tuple(match.path for match in self.matches)

    @property
    def layers(self) -> tuple[Any, ...]:
        """The selected layers; one that is called at several places as often."""
        return tuple(match.layer for match in self.matches)

    def __len__(self) -> int:
        return len(self.matches)

    def __iter__(self) -> Iterator[Match]:
        return iter(self.matches)

    @overload
    def __getitem__(self, index: int) -> Match: ...
    @overload
    def __getitem__(self, index: slice) -> Selection: ...
    def __getitem__(self, index: int | slice) -> Match | Selection:
        return self._of(self.matches[index]) if isinstance(index, slice) else self.matches[index]

    def __repr__(self) -> str:
        return str(self.__rich__())

    def __rich__(self) -> Drawing:
        """The tree with the matches marked, in colours where rich prints it."""
        footer = f"{len(self)} of {len(self.survey.matches)} layers selected"
        return printing.drawing(self.survey.model, marked=frozenset(self.paths), footer=footer)

    def _repr_html_(self) -> str:
        return html(self.__rich__())

    # Counting

    def one(self) -> Match:
        """The one match. Raises `SelectionError` when there is none or another."""
        return self.exactly(1).matches[0]

    def exactly(self, count: int) -> Selection:
        """This selection. Raises `SelectionError` when it does not have just `count` matches."""
        if len(self) != count:
            raise SelectionError(
                f"Expected to select {count} of the layers in {self.survey.name}. "
                f"Selected {len(self)}: {_listed(self.paths)}."
            )
        return self

    # Narrowing and joining

    def first(self, count: int) -> Selection:
        """The first `count` matches, or as many as there are."""
        return self._of(self.matches[: _at_least_zero(count)])

    def last(self, count: int) -> Selection:
        """The last `count` matches, or as many as there are."""
        return self._of(self.matches[max(len(self) - _at_least_zero(count), 0) :])

    def where(self, predicate: Callable[[Match], object]) -> Selection:
        """The matches for which `predicate` is true; there may be none."""
        return self._of([match for match in self._now().matches if predicate(match)])

    def select(self, *criteria: Criteria) -> Selection:
        """The layers inside each match that meet any of the criteria; to a pattern, a match is the root."""
        current = self._some()
        candidates: dict[int, tuple[Match, str]] = {}
        for around in current.matches:
            for match in current.survey.below(around):
                candidates[match.span.start] = (match, around.inside(match.path))
        places = f"the {len(self)} selected places" if len(self) > 1 else repr(self.paths[0])
        return current._of(find(criteria, list(candidates.values()), places))

    def innermost(self) -> Selection:
        """The matches that have no other match inside."""
        matches = self._now().matches
        # In the order of the calls, what is inside a match follows it at once.
        last = matches[-1:]
        return self._of([*(one for one, other in pairwise(matches) if not one.holds(other)), *last])

    def outermost(self) -> Selection:
        """The matches that are inside no other match."""
        kept: list[Match] = []
        for match in self._now().matches:
            if not (kept and kept[-1].holds(match)):
                kept.append(match)
        return self._of(kept)

    def invert(self) -> Selection:
        """The rest of the model: the outermost layers that have nothing selected in or around them.

        Written `~selection` too.

        Example:
            >>> from suture import layers as sl
            >>> model = sl.Stack(*(sl.Chain(norm=sl.RMSNorm(4), up=sl.Linear(4, 8)) for _ in range(2)))
            >>> select(model, "0.up").invert().paths
            ('0.norm', '1')
        """
        current = self._now()
        starts = {match.span.start for match in current.matches}
        untouched = [match for match in current.survey.matches if starts.isdisjoint(match.span)]
        inside = {number for match in current.matches for number in match.span}
        return current._of([match for match in untouched if match.span.start not in inside]).outermost()

    def __invert__(self) -> Selection:
        return self.invert()

    def __or__(self, other: Selection) -> Selection:
        mine, others = self._beside(other)
        return self._of([mine[start] if start in mine else others[start] for start in sorted({*mine, *others})])

    def __sub__(self, other: Selection) -> Selection:
        mine, others = self._beside(other)
        return self._of([match for start, match in mine.items() if start not in others])

    # Acting on what is there

    def apply(self, function: Callable[[Any], object]) -> Selection:
        """Calls a function with every selected layer, once for each layer."""
        for layer in {id(layer): layer for layer in self._some().layers}.values():
            function(layer)
        return self

    def to(self, *args: Any, **kwargs: Any) -> Selection:
        """Moves or casts the selected layers, and what they call: arguments as for `torch.nn.Module.to`.

        What a selected layer calls goes along, also where it is owned elsewhere. This is no edit.
        """
        for layer in self._with_all_below():
            layer.to(*args, **kwargs)
        return self

    def freeze(self) -> Selection:
        """Takes the parameters of the selected layers, and of what they call, out of training.

        This is no edit: nothing but `unfreeze` takes it back.
        """
        return self._require_grad(False)

    def unfreeze(self) -> Selection:
        """Puts the parameters of the selected layers, and of what they call, back into training."""
        return self._require_grad(True)

    # Editing

    @overload
    def replace(self, new: Make) -> Edit: ...
    @overload
    def replace(self, new: nn.Module) -> Edit: ...
    def replace(self, new: nn.Module | Make) -> Edit:
        """Puts a new layer in the place of each match.

        Args:
            new: a function of the layer that stands there, whose result may hold it; or a layer, where one is selected.
        """
        make = self._maker(new, "replace")

        def replace(match: Match) -> None:
            layer = make(match)
            if layer is match.layer:
                raise ValueError(
                    f"The function given to replace() returned the layer that stands at {match.path!r} already. "
                    f"Leave out places that shall stay with .where()."
                )
            swap(*match.open(), layer)

        return self._edit(replace)

    def wrap(self, function: Callable[[Any], Composite]) -> Edit:
        """Puts around each match the composite that `function` makes with the layer that stands there."""
        make = self._maker(function, "wrap")

        def wrap(match: Match) -> None:
            layer = make(match)
            if not isinstance(layer, Composite) or layer.find_parent(match.layer) is None:
                raise ValueError(
                    f"The function given to wrap() must return a composite that calls the layer it was given, at "
                    f"{match.path!r}. Received: {type(layer).__name__}. To put something else there, use replace()."
                )
            swap(*match.open(), layer)

        return self._edit(wrap)

    @overload
    def insert_before(self, new: Make) -> Edit: ...
    @overload
    def insert_before(self, new: nn.Module) -> Edit: ...
    def insert_before(self, new: nn.Module | Make) -> Edit:
        """Puts a new layer before each match; `new` as in `replace`."""
        make = self._maker(new, "insert_before")
        return self._edit(lambda match: _insert(match, 0, make(match)))

    @overload
    def insert_after(self, new: Make) -> Edit: ...
    @overload
    def insert_after(self, new: nn.Module) -> Edit: ...
    def insert_after(self, new: nn.Module | Make) -> Edit:
        """Puts a new layer after each match; `new` as in `replace`."""
        make = self._maker(new, "insert_after")
        return self._edit(lambda match: _insert(match, 1, make(match)))

    def remove(self) -> Edit:
        """Takes the matches out of the tree."""
        return self._edit(lambda match: swap(*match.open(), None))

    def adapt(self, function: Callable[[Any], Adapter[Any]]) -> Edit:
        """Injects at each match the adapter that `function` makes for the layer that stands there."""

        def adapt(match: Match) -> None:
            adapter = _result(function, match)
            if not isinstance(adapter, Adapter):
                raise TypeError(
                    f"The function given to adapt() must return an Adapter, for {match.path!r}. "
                    f"Received: {adapter!r:.80} ({type(adapter).__name__}). For a plain composite, use wrap()."
                )
            cast("Adapter[Any]", adapter).inject_at(*match.open(), match.path)

        return self._edit(adapt)

    def _edit(self, change: Callable[[Match], object]) -> Edit:
        current = self._some().outermost()
        with recording() as record:
            for match in current.matches:
                change(match)
        return Edit(list(record.swaps))

    def _maker(self, new: nn.Module | Make, method: str) -> Callable[[Match], nn.Module]:
        """What makes the layer for each match. A layer is callable too, so what is a layer is asked first."""
        if isinstance(new, nn.Module):
            places = len(self._some().outermost())
            if places != 1:
                raise ValueError(
                    f"{method}() takes one layer only for one place; {places} are selected. "
                    f"Give a function that makes a layer for each: lambda layer: {type(new).__name__}(...)."
                )
            return lambda match: new

        def make(match: Match) -> nn.Module:
            made = _result(new, match)
            if not isinstance(made, nn.Module):
                raise TypeError(
                    f"The function given to {method}() must return a layer, for {match.path!r}. "
                    f"Received: {made!r:.80} ({type(made).__name__})."
                )
            return made

        if not callable(new):
            raise TypeError(f"{method}() takes a layer or a function that makes one. Received: {new!r:.80}.")
        return make

    def _require_grad(self, wanted: bool) -> Selection:
        parameters = [
            parameter
            for layer in self._with_all_below()
            for parameter in layer.parameters(recurse=not isinstance(layer, Composite))
        ]
        if not parameters:
            raise SelectionError(f"None of the {len(self)} selected layers has parameters: {_listed(self.paths)}.")
        for parameter in parameters:
            parameter.requires_grad_(wanted)
        return self

    def _with_all_below(self) -> list[nn.Module]:
        """Every selected layer and all that it calls, once each."""
        current = self._some()
        found = (match.layer for each in current for match in (each, *current.survey.below(each)))
        return list({id(layer): layer for layer in found}.values())

    # Following the tree

    def _of(self, matches: Sequence[Match]) -> Selection:
        return Selection(self.survey, matches)

    def _some(self) -> Selection:
        if not self.matches:
            raise SelectionError(f"This selection of layers in {self.survey.name} is empty, so there is nothing to do.")
        return self._now()

    def _now(self) -> Selection:
        """This selection in the tree as it is now."""
        if self.survey.is_current:
            return self
        survey = Survey(self.survey.model)
        return Selection(survey, _in_order([survey.follow(match, self.survey) for match in self.matches]))

    def _beside(self, other: Selection) -> tuple[dict[int, Match], dict[int, Match]]:
        """The places of both selections by their numbers in the tree as it is now."""
        if other.survey.model is not self.survey.model:
            raise ValueError(
                f"Only selections of one model can be joined. "
                f"Received: selections of a {self.survey.name} and of another {other.survey.name}."
            )
        mine = self._now()
        others = [mine.survey.follow(match, other.survey) for match in other.matches]
        return {match.span.start: match for match in mine}, {match.span.start: match for match in others}


def _result(function: Callable[[Any], object], match: Match) -> object:
    """What the user's function makes for a match; it may build around layers that have a place."""
    with borrowing():
        return function(match.layer)


def _in_order(matches: Sequence[Match]) -> list[Match]:
    return sorted(matches, key=lambda match: match.span.start)


def _insert(match: Match, behind: int, layer: nn.Module) -> Edit:
    """Puts a layer before the match, or behind it."""
    composite, slot = match.open()
    return insert(composite, composite.node.position(slot) + behind, layer)


def _at_least_zero(count: int) -> int:
    if count < 0:
        raise ValueError(f"The number of matches cannot be negative. Received: {count}.")
    return count


def _listed(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - 8} more" if len(paths) > 8 else ""
    return ", ".join(map(repr, paths[:8])) + more if paths else "none"
