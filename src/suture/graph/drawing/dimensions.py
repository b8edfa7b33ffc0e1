"""What the shapes in a picture say: which sizes are fixed, and which depend on what the graph is called with.

Every value has an example with the first sizes of the open dimensions. The recorded calls are run again with other
sizes; a size that differs is told by the open dimension that explains it.
"""

from __future__ import annotations

import operator
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import combinations
from typing import Any

from torch import Tensor

from suture.graph.calls import Call, Scope
from suture.graph.examples import FIRST, OTHER, Sizes, run_on_examples
from suture.graph.graph import Graph
from suture.graph.input import Input
from suture.graph.running import Handler, Running
from suture.graph.values import Value, values_in

_THIRD = Sizes((6, 17, 103, 127, 149, 163), named_from=20)
_LARGEST_FACTOR = 512
_LETTERS = "BTSUVW"
"""Open dimensions without a name, by position: rows, then tokens."""


class Dimensions:
    """Tells the shapes of the values of a graph.

    >>> from suture import layers as sl
    >>> from suture.graph.tracing import trace
    >>> graph = trace(sl.Linear(4, 8), Input("x", shape=(None, "length", 4)))
    >>> Dimensions(graph).told(graph.outputs)
    'B×length×8'
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._open = _open_sizes(list(_inputs_before(graph.flat_inputs.values())))
        self._others = _examples_with(OTHER, graph)

    @cached_property
    def _thirds(self) -> dict[Value, Any]:
        """A third set of examples, to tell what two cannot: 2 and 5 make 7, as does 5 more than 2."""
        return _examples_with(_THIRD, self._graph)

    def told(self, value: Value) -> str:
        """The shape of a tensor, with its dtype where it holds no numbers with a fraction; for anything else a word."""
        example = value.example
        if isinstance(example, tuple | list):
            return f"{type(example).__name__} of {len(example)}"  # pyright: ignore[reportUnknownArgumentType]
        if not isinstance(example, Tensor):
            return "" if example is None else type(example).__name__
        shape = "×".join(self._size(value, number) for number in range(example.dim())) or "scalar"
        return shape if example.is_floating_point() else f"{shape} {str(example.dtype).removeprefix('torch.')}"

    def _size(self, value: Value, number: int) -> str:
        first: int = value.example.shape[number]
        other = _size_in(self._others, value, number)
        if other is None:
            # It did not run: what has the first size of an open dimension is taken to be that.
            return next((name for name, sizes in self._open.items() if sizes[0] == first), str(first))
        if first == other:
            return str(first)
        for name, sizes in self._open.items():
            if sizes[:2] == (first, other):
                return name
        sizes = (first, other, _size_in(self._thirds, value, number))
        return next((name for name, made in _compositions(self._open) if made == sizes), "?")


_Composed = tuple[int | None, ...]
"""A size with the first sizes of the open dimensions, with other ones, and with a third set."""


def _compositions(single: dict[str, tuple[int, int, int]]) -> Iterator[tuple[str, _Composed]]:
    """What sizes are made of open ones: a sum, a multiple, a product, something more or less, a part."""
    for (name, sizes), (name_2, sizes_2) in combinations(single.items(), 2):
        yield f"{name}+{name_2}", tuple(map(operator.add, sizes, sizes_2))
        for factor in range(1, _LARGEST_FACTOR + 1):
            product = tuple(factor * one * two for one, two in zip(sizes, sizes_2, strict=True))
            yield f"{factor if factor > 1 else ''}{name}·{name_2}", product
    for name, sizes in single.items():
        for factor in range(2, _LARGEST_FACTOR + 1):
            yield f"{factor}{name}", tuple(factor * size for size in sizes)
            yield f"{name}/{factor}", tuple(-(-size // factor) for size in sizes)
        for more in range(-_LARGEST_FACTOR, _LARGEST_FACTOR + 1):
            yield f"{name}{more:+}", tuple(size + more for size in sizes)


def _size_in(examples: dict[Value, Any], value: Value, number: int) -> int | None:
    example = _example_in(examples, value)
    return example.shape[number] if isinstance(example, Tensor) and number < example.dim() else None


def _example_in(examples: dict[Value, Any], value: Value) -> Any:
    """What a value looks like; a part of a structure is found in that."""
    value = _end(value)
    if value in examples or value.origin is None or value.origin.target is not operator.getitem:
        return examples.get(value)
    whole, index = value.origin.args
    around: Any = _example_in(examples, whole)
    return None if around is None else around[index]


def _open_sizes(inputs: Iterable[Input]) -> dict[str, tuple[int, int, int]]:
    """The open dimensions by name, with their sizes; those that were named come first."""
    named: dict[str, tuple[int, int, int]] = {}
    positions: dict[str, tuple[int, int, int]] = {}
    for value in inputs:
        for position, dimension in enumerate(value.shape_wanted or ()):
            if isinstance(dimension, int):
                continue
            shape = (*(0,) * position, dimension)
            first, other, third = (sizes.of(shape)[position] for sizes in (FIRST, OTHER, _THIRD))
            if dimension is None:
                positions[_LETTERS[min(position, len(_LETTERS) - 1)]] = (first, other, third)
            else:
                named[dimension] = (first, other, third)
    free = (letter for letter in string.ascii_uppercase if letter not in named and letter not in positions)
    return named | {(next(free) if letter in named else letter): sizes for letter, sizes in positions.items()}


def _examples_with(sizes: Sizes, graph: Graph) -> dict[Value, Any]:
    """What every value of the graph looks like where open dimensions have these sizes; nothing where it cannot run."""
    again = _Again()
    try:
        again.run(graph, _given(sizes, graph.flat_inputs.values()))
    except Exception:  # whatever a layer raises that does not run with these sizes: it is drawn with the first ones
        return {}
    return again.made


def _given(sizes: Sizes, inputs: Iterable[Value]) -> dict[Value, Any]:
    given: dict[Value, Any] = {}
    for value in inputs:
        if isinstance(value, Input):
            given[value] = value.example_of(sizes)
        else:
            before = dict(enumerate(_inputs_before([value])))
            made_by = Graph(inputs={f"input_{number}": each for number, each in before.items()}, outputs=value)
            given[value] = _Again().run(made_by, {each: each.example_of(sizes) for each in before.values()})
    return given


def _inputs_before(values: Iterable[Value]) -> dict[Input, None]:
    """The inputs that values are made from, each once."""
    found: dict[Input, None] = {}
    seen: set[Value] = set()
    waiting = list(values)
    while waiting:
        value = waiting.pop(0)
        if value in seen:
            continue
        seen.add(value)
        if isinstance(value, Input):
            found[value] = None
        elif value.alias_of is not None:
            waiting.append(value.alias_of)
        elif value.origin is not None:
            waiting += values_in((value.origin.args, value.origin.kwargs))
    return found


def _end(value: Value) -> Value:
    """The value that an alias is a name for."""
    while value.alias_of is not None:
        value = value.alias_of
    return value


class _Again(Handler):
    """Runs the calls on examples, and notes what each gives."""

    def __init__(self) -> None:
        self.made: dict[Value, Any] = {}

    def run(self, graph: Graph, given: Mapping[Value, Any]) -> Any:
        self.made |= {_end(value): example for value, example in given.items()}
        return Running(graph, given, self).outputs()

    def call(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.made[call.whole] = result = run_on_examples(call.target, args, kwargs)
        return result

    def scope(
        self, scope: Scope, args: tuple[Any, ...], run: Callable[[tuple[Any, ...]], Any], running: Running
    ) -> Any:
        return run(args)
