"""Going through a graph again with symbolic values: as it is, or with a call function at every layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from suture.graph.calls import Call, Item, Scope
from suture.graph.recording import Recorded, record_call, record_layer, record_scope
from suture.graph.running import Handler, Running
from suture.graph.values import Value
from suture.layers.composite import Composite
from suture.layers.context import Context
from suture.layers.frames import CallFunction, refuse_other_context, standing_in
from suture.layers.placing import fit, place_beside
from suture.layers.symbolic import seeing_plain_calls

if TYPE_CHECKING:
    from suture.graph.graph import Graph


class Again(Handler):
    """Records every call anew, at the path that it has in `graph`; `layer_of` says which layer is called there."""

    def __init__(self, graph: Graph, around: nn.Module | None = None, path: str = "") -> None:
        self.graph = graph
        self.root = graph.root if around is None else around
        self.path = path

    def path_of(self, item: Item) -> str:
        return ".".join(filter(None, [self.path, self.graph.name_of(item)]))

    def layer_of(self, item: Item) -> nn.Module:
        """What is called: a layer as it stands in the graph now, or the composite that was called."""
        if isinstance(item, Call):
            return self.graph.get_submodule(self.graph.name_of(item))
        return cast("nn.Module", item.target)

    def call(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not call.is_layer:
            return record_call(call.target, args, kwargs, earlier=call)
        return record_layer(self.layer_of(call), args, kwargs, self.root, self.path_of(call), earlier=call)

    def scope(
        self, scope: Scope, args: tuple[Any, ...], run: Callable[[tuple[Any, ...]], Any], running: Running
    ) -> Any:
        entries = running.known_entries(scope)
        return record_scope(self.layer_of(scope), args, {}, self.root, self.path_of(scope), entries, run)


class Rewire(Again):
    """Hands every call of a layer, composites included, to a call function."""

    def __init__(self, graph: Graph, call_function: CallFunction) -> None:
        super().__init__(graph)
        self.call_function = call_function
        self.paths = {id(layer): name for name, layer in graph.layers.items()}
        self.taken = set(graph.paths)
        self.new: list[nn.Module] = []

    def call(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not call.is_layer:
            return super().call(call, args, kwargs)
        return self._hand_on(call, args, kwargs, lambda args, kwargs: Again.call(self, call, args, kwargs))

    def scope(
        self, scope: Scope, args: tuple[Any, ...], run: Callable[[tuple[Any, ...]], Any], running: Running
    ) -> Any:
        context = Context(running.known_entries(scope))
        context.in_call = True

        def again(args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
            refuse_other_context(self.layer_of(scope), context, keywords)
            return Again.scope(self, scope, args, run, running)

        return self._hand_on(scope, args, {"context": context}, again)

    def _hand_on(
        self, item: Item, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[Any, dict[str, Any]], Any]
    ) -> Any:
        layer = self.layer_of(item)
        with standing_in(_Frame(self, layer, self.path_of(item), run)):
            return self.call_function(layer, *args, **kwargs)

    def path_beside(self, layer: nn.Module, path: str, place: nn.Module) -> str:
        """The path of a layer that is called beside `place`, at `path`: its own, or a new one that it keeps."""
        if id(layer) not in self.paths:
            fit(layer, place_beside(place, self.graph), self.graph.modules())
            self.new.append(layer)
            self.paths[id(layer)] = self._unused(f"{path}+{type(layer).__name__}")
        return self.paths[id(layer)]

    def _unused(self, wanted: str) -> str:
        # What has a name keeps it, also where a new layer is called before it.
        number, name = 1, wanted
        while name in self.taken:
            number += 1
            name = f"{wanted}_{number}"
        self.taken.add(name)
        return name


class _Frame:
    """A call function that stands in for the layer at a path."""

    def __init__(self, handler: Rewire, layer: nn.Module, path: str, run: Callable[[Any, dict[str, Any]], Any]) -> None:
        self.handler = handler
        self.layer = layer
        self.path = path
        self.run = run

    def takes(self, layer: object) -> bool:
        return layer is self.layer

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with standing_in(None):
            return self.run(args, kwargs)

    def path_beside(self, layer: nn.Module) -> tuple[nn.Module, str]:
        return self.handler.root, self.handler.path_beside(layer, self.path, self.layer)


def replay(graph: Graph, inputs: Any, call: CallFunction | None = None) -> Any:
    """The outputs of a graph for other symbolic inputs, with a call function at every layer.

    Args:
        graph: What is gone through.
        inputs: A value for each of its inputs, by name or in the structure that they are in. Names that the graph
            does not have are passed over, so that the inputs of the graph that is being made can be given whole;
            optional inputs that are left out are left out.
        call: As for `rewire`; without it everything is called as it was.

    Returns:
        Symbolic values in the structure of the graph's outputs, to make another `Graph` of.
    """
    graph = graph if call is None else settled(graph)
    given = dict(zip(graph.flat_inputs.values(), graph.bind_symbolic(inputs), strict=True))
    return _go_through(graph, given, Again(graph) if call is None else Rewire(graph, call))


def settled(graph: Graph) -> Graph:
    """A graph in which the layers inside of what edits put in are steps like all others."""
    if not any(isinstance(layer, Composite | Recorded) for layer in graph.layers.values()):
        return graph
    return graph.like(again(graph, {value: value for value in graph.flat_inputs.values()}))


def again(graph: Graph, given: Mapping[Value, Any]) -> Any:
    """The outputs of a graph with everything in it recorded anew, as it stands now."""
    return _go_through(graph, given, Again(graph))


def _go_through(graph: Graph, given: Mapping[Value, Any], handler: Handler) -> Any:
    with standing_in(None), seeing_plain_calls():
        return Running(graph, given, handler).outputs()


def rewire(model: nn.Module, call: CallFunction, inputs: Any = None) -> Graph:
    """A graph like `model`, in which `call` says what happens where a layer is called.

    `call(layer, *args, **kwargs)` is asked once for each call of each layer, composites first and then, if it calls
    them, what they call. `layer(*args, **kwargs)` gives what the model would compute; it may be called with other
    arguments, more than once, or not at all. Keywords are what a layer reads from the context, and for a composite the
    context itself: pass them on. A layer made in the call function stands beside the layer it was made for, as
    `<path>+<class>`, and takes on its dtype, device and mode.

    Args:
        model: A tree, or a graph; a graph that was rewired keeps that.
        call: The call function.
        inputs: What the graph is called with, for a tree that does not know: `Input`s.

    Returns:
        A graph that shares the weights of `model`, which stays as it is.

    Raises:
        TypeError: the inputs of the tree are not known and not given.
        LookupError: something replaced what a later layer needs.

    Source: the layer-graph cloning of Keras (https://github.com/keras-team/keras/pull/19600).

    Example:
        >>> import torch
        >>> from suture import layers as sl
        >>> from suture.graph.input import Input
        >>> def call(layer, *args, **kwargs):
        ...     y = layer(*args, **kwargs)
        ...     return 2 * y if isinstance(layer, sl.Linear) else y
        >>> model = sl.Chain(sl.Linear(2, 2), sl.ReLU())
        >>> rewired = rewire(model, call, inputs=Input("x", shape=(None, 2)))
        >>> x = torch.ones(1, 2)
        >>> torch.equal(rewired(x), torch.relu(2 * model[0](x)))
        True
    """
    from suture.graph.tracing import as_graph

    graph = settled(as_graph(model, inputs))
    given = {value: value for value in graph.flat_inputs.values()}
    return graph.like(_go_through(graph, given, Rewire(graph, call)))
