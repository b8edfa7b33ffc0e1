"""The one routine that goes through a graph: to rewire it, to find shapes, to run it under a call function."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from torch.utils import _pytree as pytree

from suture.graph.calls import Call, Item, Scope
from suture.graph.values import Value, map_values

if TYPE_CHECKING:
    from suture.graph.graph import Graph


class Handler(ABC):
    """What is done at each call of a graph."""

    @abstractmethod
    def call(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call, for these arguments."""

    @abstractmethod
    def scope(
        self, scope: Scope, args: tuple[Any, ...], run: Callable[[tuple[Any, ...]], Any], running: Running
    ) -> Any:
        """The result of a scope for these arguments; `run` goes through what is inside."""


class Running:
    """Goes through the calls of a graph, in order, once.

    Args:
        graph: What is gone through.
        given: What each of the graph's input values is.
        handler: What is done at each call.
    """

    def __init__(self, graph: Graph, given: Mapping[Value, Any], handler: Handler) -> None:
        self.graph = graph
        self.handler = handler
        self.known = [dict(given)]
        """What values are: in the scope that is gone through, and in those around it."""

    def outputs(self) -> Any:
        """The outputs of the graph."""
        self._go_through(self.graph.contents.items)
        return self.map(self.graph.outputs)

    def map(self, structure: Any) -> Any:
        """The structure with what each of its values is."""
        return map_values(self.value, structure)

    def value(self, value: Value) -> Any:
        """What a value is. Raises `LookupError` for what was not made, since a call function left it out."""
        for known in reversed(self.known):
            if value in known:
                return known[value]
        if value.alias_of is not None:
            return self.value(value.alias_of)
        made_by = value.origin.path or value.origin.name if value.origin is not None else "an input"
        raise LookupError(
            f"A value made by {made_by!r} is needed later in the graph, but the call function replaced what made it "
            f"without calling it. Call the layer, or replace what needs the value as well."
        )

    def known_entries(self, scope: Scope) -> dict[str, dict[str, Any]]:
        """The context entries with which a scope begins, but for what is not there any more."""
        entries: dict[str, dict[str, Any]] = {}
        for name, keys in scope.entries.items():
            for key, value in keys.items():
                with suppress(LookupError):
                    entries.setdefault(name, {})[key] = self.map(value)
        return entries

    def _go_through(self, items: list[Item]) -> None:
        for item in items:
            if isinstance(item, Call):
                if item in self.graph.contents.replayed:
                    self._call(item)
            elif isinstance(item, Scope) and item in self.graph.contents.whole:
                self._scope(item)
            elif isinstance(item, Scope):
                # A part of a composite was cut out, so there is no call of the composite.
                self._go_through(item.items)

    def _call(self, call: Call) -> None:
        args, kwargs = self.map(self.graph.present(call.arguments))
        is_part = call.target is operator.getitem and isinstance(args[0], tuple | list | dict)
        self.known[-1][call.whole] = args[0][args[1]] if is_part else self.handler.call(call, args, kwargs)

    def _scope(self, scope: Scope) -> None:
        written: dict[Value, Any] = {}

        def run(args: tuple[Any, ...]) -> Any:
            # Each time anew, so that a call function may run it again.
            self.known.append(_bound(scope, scope.parameters, args, "is called with"))
            try:
                self._go_through(scope.items)
                return self.map(scope.result)
            finally:
                # What is written to the context inside is read outside.
                written.update(self.known.pop())

        result = self.handler.scope(scope, self.map(scope.args), run, self)
        self.known[-1] |= written | _bound(scope, scope.output, result, "gives")


def _bound(scope: Scope, values: Any, given: Any, what: str) -> dict[Value, Any]:
    """Each of the values with its counterpart in a structure like theirs."""
    wanted, received = pytree.tree_leaves(values), pytree.tree_leaves(given)
    if len(wanted) != len(received):
        raise TypeError(
            f"{scope.name} at {scope.path!r} {what} {len(wanted)} value{'s' * (len(wanted) != 1)} in this graph. "
            f"Received from the call function: {len(received)}."
        )
    return {value: made for value, made in zip(wanted, received, strict=True) if isinstance(value, Value)}
