"""Running a graph with its layer calls handed to the call functions of the blocks around."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from suture.graph.calls import Call, Scope
from suture.graph.running import Handler, Running
from suture.layers.context import Context
from suture.layers.intercepting import CallFunctions
from suture.layers.mount import Mount
from suture.layers.symbolic import inner_call

if TYPE_CHECKING:
    from suture.graph.graph import Graph


@dataclass(frozen=True)
class GraphPlace:
    """Where a layer is called in a graph."""

    graph: Graph
    path: str


class Intercepted(Handler):
    """Calls everything as the graph does, through the call functions."""

    def __init__(self, graph: Graph, functions: CallFunctions) -> None:
        self.graph = graph
        self.functions = functions

    def call(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not isinstance(call.target, nn.Module):
            return call.target(*args, **kwargs)
        layer = self.graph.get_submodule(self.graph.name_of(call))
        if isinstance(layer, Mount):
            return layer(*args, **kwargs)
        run = inner_call(layer)
        place = GraphPlace(self.graph, self.graph.name_of(call))
        return self.functions.hand_on(layer, args, kwargs, lambda args, kwargs: run(*args, **kwargs), place)

    def scope(
        self, scope: Scope, args: tuple[Any, ...], run: Callable[[tuple[Any, ...]], Any], running: Running
    ) -> Any:
        context = Context(running.known_entries(scope))
        context.in_call = True
        layer = cast("nn.Module", scope.target)
        place = GraphPlace(self.graph, self.graph.name_of(scope))
        return self.functions.hand_on(layer, args, {"context": context}, lambda args, _: run(args), place)
