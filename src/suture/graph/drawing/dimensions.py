"""What the shapes in a picture say: which sizes are fixed, and which depend on what the graph is called with.

Every value has an example with the first sizes of the open dimensions. The recorded calls are run again with other
sizes; a size that differs is told by the open dimension that explains it.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor

from suture.graph.calls import Call, Scope
from suture.graph.examples import FIRST, OTHER, Sizes, run_on_examples
from suture.graph.graph import Graph
from suture.graph.input import Input
from suture.graph.running import Handler, Running
from suture.graph.values import Value, values_in

_TIMES = "\u00d7"
_LETTERS = "BTSUVW"
"""Open dimensions without a name, by position: rows, then tokens."""


class Dimensions:
    """Tells the shapes of the values of a graph.

    >>> from suture import layers as sl
    >>> from suture.graph.tracing import trace
    >>> graph = trace(sl.Linear(4, 8), Input("x", shape=(None, "length", 4)))
    >>> Dimensions(graph).told(graph.outputs)
    'B×length×8'
    """  # noqa: RUF002 (the sign that says it)

    def __init__(self, graph: Graph) -> None:
        inputs = list(_inputs_before(graph.flat_inputs.values()))
        self._open = _open_sizes(inputs)
        self._others = _examples_with(OTHER, graph)

    def told(self, value: Value) -> str:
        """The shape of a tensor, with its dtype where it holds no numbers with a fraction; for anything else a word."""
        example = value.example
        if isinstance(example, tuple | list):
            return f"{type(example).__name__} of {len(example)}"  # pyright: ignore[reportUnknownArgumentType]
        if not isinstance(example, Tensor):
            return "" if example is None else type(example).__name__
        other = self._others.get(_end(value))
        if not isinstance(other, Tensor) or other.dim() != example.dim():
            other = example
        sizes = zip(example.shape, other.shape, strict=True)
        shape = _TIMES.join(self._size(*each) for each in sizes) or "scalar"
        return shape if example.is_floating_point() else f"{shape} {str(example.dtype).removeprefix('torch.')}"

    def _size(self, first: int, other: int) -> str:
        if first == other and self._others:
            return str(first)
        found = (name for name, sizes in self._open.items() if sizes[0] == first and other in (sizes[1], first))
        name = next(found, None) or (None if first == other else self._composed(first, other))
        return name or (str(first) if first == other else "?")

    def _composed(self, first: int, other: int) -> str | None:
        """A size that is made of open ones: a multiple, a product, a sum, something more or less, a part."""
        for name, (one, two) in self._open.items():
            if first % one == 0 and first // one * two == other:
                return f"{first // one}{name}"
        for name, (one, two) in self._open.items():
            for name_2, (one_2, two_2) in self._open.items():
                factor, rest = divmod(first, one * one_2)
                if rest == 0 and factor * two * two_2 == other:
                    return f"{factor if factor > 1 else ''}{name}·{name_2}"
                if first == one + one_2 and other == two + two_2:
                    return f"{name}+{name_2}"
        for name, (one, two) in self._open.items():
            if first - one == other - two:
                return f"{name}{first - one:+}"
        for name, (one, two) in self._open.items():
            for part in range(2, one + 1):
                if first == -(-one // part) and other == -(-two // part):
                    return f"{name}/{part}"
        return None


def _open_sizes(inputs: Iterable[Input]) -> dict[str, tuple[int, int]]:
    """The open dimensions by name, with their two sizes; those that were named come first."""
    named: dict[str, tuple[int, int]] = {}
    positions: dict[str, tuple[int, int]] = {}
    for value in inputs:
        for position, dimension in enumerate(value.shape_wanted or ()):
            if isinstance(dimension, int):
                continue
            sizes = (_size_of(FIRST, position, dimension), _size_of(OTHER, position, dimension))
            if dimension is None:
                letter = min(position, len(_LETTERS) - 1)
                positions[_LETTERS[letter]] = sizes
            else:
                named[dimension] = sizes
    free = (letter for letter in string.ascii_uppercase if letter not in named)
    return named | {(next(free) if letter in named else letter): sizes for letter, sizes in positions.items()}


def _size_of(sizes: Sizes, position: int, dimension: str | None) -> int:
    return sizes.of((*(0,) * position, dimension))[position]


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
