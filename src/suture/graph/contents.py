"""What of all that was recorded a graph is made of, found from its outputs."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from suture.graph.calls import Call, Item, Scope
from suture.graph.input import Input
from suture.graph.values import Value, values_in


class GraphError(ValueError):
    """A graph that cannot be: an output that hangs from something undeclared, an input that leads nowhere."""


class Contents:
    """The calls that lead from `inputs` to `outputs`.

    Raises:
        GraphError: an output needs an input that is not among the inputs, or a required input reaches no output.
    """

    def __init__(self, inputs: Iterable[Value], outputs: Any) -> None:
        self._declared = set(inputs)
        self.left_out: dict[Input, None] = {}
        """Optional inputs that the outputs hang from and that were not declared: they may still be given."""
        self._reached: set[Value] = set()
        self._reach({value: f"output {number}" for number, value in enumerate(values_in(outputs))})
        for value in self._declared - self._reached:
            if not (isinstance(value, Input) and value.optional):
                raise GraphError(
                    f"The input {_name_of(value)} reaches no output of the graph. Leave it out of the inputs, or say "
                    f"optional=True where it is made."
                )
        self.needed = self._calls()
        """The calls that the outputs hang from, in order."""
        self.whole: set[Scope] = set()
        """The scopes whose arguments and results are all in the graph, so that they can be called."""
        self._find_whole_scopes()
        self.replayed = self._calls()
        """The same with what only composites need, to be called with all that they take."""
        scopes = self._scopes()
        outermost = {(*item.around, item)[0] for item in (*self.replayed, *scopes)}
        self.items: list[Item] = sorted(outermost, key=lambda item: item.number)
        """What is in no scope, in order."""

    def _reach(self, wanted: dict[Value, str]) -> None:
        """Goes back from `wanted` (with what needs each) to the declared inputs; all or nothing."""
        reached: set[Value] = set()
        left_out: dict[Input, None] = {}
        waiting = list(wanted.items())
        while waiting:
            value, needed_by = waiting.pop()
            if value in reached or value in self._reached:
                continue
            reached.add(value)
            if value in self._declared:
                continue
            if isinstance(value, Input) and value.optional:
                left_out[value] = None
                continue
            if isinstance(value, Input):
                raise GraphError(
                    f"The graph needs the input {value.name!r}, for {needed_by}, and it is not among the inputs. "
                    f"Declare it: Graph(inputs={{..., {value.name!r}: ...}}, ...)."
                )
            if value.alias_of is not None:
                waiting.append((value.alias_of, needed_by))
            if value.origin is not None:
                name = repr(value.origin.path or value.origin.name)
                waiting += [(other, name) for other in values_in(value.origin.arguments)]
        self._reached |= reached
        self.left_out |= left_out

    def _find_whole_scopes(self) -> None:
        # What begins or ends inside a composite is no call of it.
        seen = {scope for value in self._declared for scope in _scopes_of(value)}
        while new := self._scopes() - seen:
            seen |= new
            for scope in sorted(new, key=lambda scope: scope.number):
                if (self._reached - self._declared).isdisjoint(values_in(scope.output)):
                    continue
                name = repr(scope.path or scope.name)
                # What a part that was cut out does not have ends in an input that is not declared.
                with suppress(GraphError):
                    self._reach(dict.fromkeys(values_in((scope.args, scope.result)), name))
                    self.whole.add(scope)

    def _calls(self) -> dict[Call, None]:
        calls = {value.origin for value in self._reached - self._declared if value.origin is not None}
        return dict.fromkeys(sorted(calls, key=lambda call: call.number))

    def _scopes(self) -> set[Scope]:
        """The scopes that something reached is in, or goes through."""
        through = {scope for value in self._reached - self._declared if (scope := value.scope) is not None}
        return through | {scope for item in (*self._calls(), *through) for scope in item.around}


def _scopes_of(value: Value) -> list[Scope]:
    """The scopes inside of which a value is."""
    if value.origin is not None:
        return value.origin.around
    if value.scope is None:
        return []
    inside = any(value is parameter for parameter in values_in(value.scope.parameters))
    return [*value.scope.around, value.scope] if inside else value.scope.around


def _name_of(value: Value) -> str:
    if isinstance(value, Input):
        return repr(value.name)
    return f"made by {value.origin.path or value.origin.name!r}" if value.origin is not None else "inside a composite"
