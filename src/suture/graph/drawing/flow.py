"""Where the values of a graph come from, and how they get to what takes them: by hand or by the context."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from torch import Tensor

from suture.graph.binding import Parameters
from suture.graph.calls import Call, Item, Scope
from suture.graph.graph import Graph
from suture.graph.input import Input
from suture.graph.values import Value, values_in

Source = Call | str
"""What makes a value: a call, or the input of a name."""


class Flow:
    """The calls of a graph as a person sees them: parts of a result are no steps, shared ones stand where all see them.

    A call belongs to the composite in which it was made. What is computed once, where it was first needed, and then
    handed by the context to layers in other composites (a mask, a table of positions) belongs to the innermost that
    holds all of those.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.inputs: dict[str, Any] = Parameters(graph.inputs).by_name
        self._input_of = {value: leaf for name, each in self.inputs.items() for value, leaf in _leaves(name, each)}
        self.calls = [call for call in graph.contents.needed if _whole_of(call) is None]
        self._entered = {
            value: scope
            for scope in {scope for call in self.calls for scope in call.around}
            for value in values_in(scope.parameters)
        }
        self.home: dict[Item, Scope | None] = {call: call.parent for call in graph.contents.needed}
        self._share()

    def taken(self, item: Call) -> Iterator[tuple[str, Value]]:
        """What a call is called with, each with the keyword by which it is given or ""."""
        yield from (("", value) for value in values_in(item.args))
        yield from ((name, value) for name, each in item.kwargs.items() for value in values_in(each))

    def source(self, value: Value) -> tuple[Source, str]:
        """What makes a value, and which part it is of an input."""
        while value not in self._input_of and value.alias_of is not None:
            value = value.alias_of
        if value in self._input_of:
            return self._input_of[value]
        origin = cast("Call", value.origin)
        whole = _whole_of(origin)
        return (origin, "") if whole is None else self.source(whole)

    def by_context(self, value: Value, at: Scope | None) -> bool:
        """Whether a value gets to what is called inside `at` past the arguments or the results of a composite."""
        while True:
            if self._home(value) is not at:
                return True
            if value in self._input_of or value.alias_of is None:
                return False
            at, value = (at.parent if value in self._entered and at is not None else value.scope), value.alias_of

    def _home(self, value: Value) -> Scope | None:
        """The composite, if it is in one, in which a value is at hand without any context."""
        if value.scope is not None:
            return value.scope if value in self._entered else value.scope.parent
        if value in self._input_of or value.origin is None:
            return None
        origin = value.origin
        whole = _whole_of(origin)
        return self.home[origin] if whole is None else self._home(whole)

    def _share(self) -> None:
        takers: dict[Source, list[tuple[Call, Value]]] = {}
        for call in self.calls:
            for _, value in self.taken(call):
                takers.setdefault(self.source(value)[0], []).append((call, value))
        for call in reversed(self.calls):
            taken_by = takers.get(call, [])
            moved = (self.home[taker] is not taker.parent for taker, _ in taken_by)
            if call.is_layer or not (
                any(moved) or any(self.by_context(value, self.home[taker]) for taker, value in taken_by)
            ):
                continue
            lineages = [_lineage(self.home[taker]) for taker, _ in taken_by] + [_lineage(call.parent)]
            shared = [each[0] for each in zip(*lineages, strict=False) if len(set(each)) == 1]
            self.home[call] = shared[-1]


def _lineage(scope: Scope | None) -> list[Scope | None]:
    return [None] if scope is None else [None, *scope.around, scope]


def _whole_of(call: Call) -> Value | None:
    """For a call that only takes a part out of what another gave: that."""
    whole = call.args[0] if call.target is operator.getitem else None
    return whole if isinstance(whole, Value) and not isinstance(whole.example, Tensor) else None


def _leaves(name: str, structure: Any) -> Iterator[tuple[Value, tuple[str, str]]]:
    for part, value in parts_of(structure):
        yield value, (name, part)


def parts_of(structure: Any, part: str = "") -> Iterator[tuple[str, Value]]:
    """The values in a structure, each with how it is taken out of it: `[2]['keys']`."""
    if isinstance(structure, Value):
        yield part, structure
    elif isinstance(structure, Mapping):
        for key, inner in cast("Mapping[Any, Any]", structure).items():
            yield from parts_of(inner, f"{part}[{key!r}]")
    elif isinstance(structure, Sequence) and not isinstance(structure, str):
        for number, inner in enumerate(cast("Sequence[Any]", structure)):
            yield from parts_of(inner, f"{part}[{number}]")


def outputs_of(graph: Graph) -> dict[str, Any]:
    """The outputs by name: the keys of a dictionary, numbers in a sequence."""
    outputs = graph.outputs
    if isinstance(outputs, Mapping):
        return {str(key): each for key, each in cast("Mapping[Any, Any]", outputs).items()}
    if isinstance(outputs, tuple | list):
        return {f"output {number}": each for number, each in enumerate(cast("Sequence[Any]", outputs))}
    return {"output": outputs}


def is_cache(graph: Graph, name: str) -> bool:
    """Whether an input is the cache that a backbone advances in place."""
    value = graph.flat_inputs.get(name)
    read = graph.reads.get(name)
    opaque = isinstance(value, Input) and value.shape_wanted is None
    return opaque and read is not None and read.key == "cache"
