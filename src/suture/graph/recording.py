"""Recording: what is called with symbolic values becomes a call, or for a composite a scope that holds others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol, cast

from torch import nn

from suture.graph.calls import Call, Scope
from suture.graph.examples import look_alike, run_on_examples
from suture.graph.values import Value, alias, as_parts, describe, examples_of, values_in
from suture.layers.composite import Composite
from suture.layers.context import Context, Interceptor
from suture.layers.frames import Frame, call_module, current_frame, standing_in
from suture.layers.mount import Mount
from suture.layers.node import Slot


class RecordingFrame(Frame, Protocol):
    """A frame of a call function that is called with symbolic values."""

    def path_beside(self, layer: nn.Module) -> tuple[nn.Module | None, str]:
        """The root and the path for a layer that is called for the first time, beside that of its own layer."""
        ...


class Recorded(ABC):
    """A layer that is a scope when it is called with symbolic values: it says itself what is recorded inside."""

    @property
    @abstractmethod
    def root(self) -> nn.Module:
        """Whose paths the paths of what it calls are."""

    @abstractmethod
    def inside(self, args: tuple[Any, ...], kwargs: dict[str, Any], root: nn.Module, path: str) -> Any:
        """Records the calls inside, at paths that begin with `path`, and gives the result."""


_scope: ContextVar[Scope | None] = ContextVar("scope", default=None)


def record(target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a layer or a function with symbolic values: the result is symbolic too."""
    frame = cast("RecordingFrame | None", current_frame())
    if not isinstance(target, nn.Module):
        return record_call(target, args, kwargs)
    if frame is not None and frame.takes(target):
        return frame.call(args, kwargs)
    root, path = (None, "") if frame is None else frame.path_beside(target)
    with standing_in(None):
        return record_layer(target, args, kwargs, root, path)


def record_layer(
    layer: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    root: nn.Module | None,
    path: str,
    earlier: Call | None = None,
) -> Any:
    """Calls a layer; without a `root` it is one of its own, if it holds others."""
    if isinstance(layer, Mount):
        # Nothing but the place of layers, which are called in its stead and keep their paths without it.
        args, context = layer.enter(args, kwargs)
        context.interceptor = Recorder(layer, path.rpartition(".")[0], layer if root is None else root)
        return call_module(layer, *args, context=context)
    if isinstance(layer, Composite):
        args, context = layer.enter(args, kwargs)
        context.interceptor = Recorder(layer, path, layer if root is None else root)
        return record_composite(layer, args, context, layer if root is None else root, path)
    if isinstance(layer, Recorded):
        around = layer.root if root is None else root
        return record_scope(
            layer, args, kwargs, around, path, {}, lambda inner: layer.inside(inner, kwargs, around, path)
        )
    return record_call(layer, args, kwargs, root, path, earlier)


def record_call(
    target: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    root: nn.Module | None = None,
    path: str = "",
    earlier: Call | None = None,
) -> Any:
    """Adds one call. What it gives is found on fakes; an error there is that of a call with wrong shapes.

    An `earlier` call of the same target with arguments that look the same gave what looks the same.
    """
    looks = examples_of((args, kwargs))
    if (
        earlier is not None
        and earlier.target is target
        and look_alike(looks, examples_of((earlier.args, earlier.kwargs)))
    ):
        example = earlier.whole.example
    else:
        try:
            example = run_on_examples(target, *looks)
        except Exception as error:
            _tell_what_was_called(error, target, args, kwargs)
            raise
    call = Call(target=target, args=args, kwargs=kwargs, path=path, root=root, parent=_scope.get())
    if call.parent is not None:
        call.parent.items.append(call)
    # The number of what is taken out of a structure is higher.
    call.whole = Value(example, origin=call)
    call.output = as_parts(call.whole)
    return call.output


def record_composite(composite: Composite, args: tuple[Any, ...], context: Context, root: nn.Module, path: str) -> Any:
    """Adds the call of a composite, whose children are called with values in their turn."""
    entries = {scope: dict(keys) for scope, keys in context.given.items()}

    def run(inner: tuple[Any, ...]) -> Any:
        return call_module(composite, *inner, context=context)

    return record_scope(composite, args, {}, root, path, entries, run)


def record_scope(
    layer: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    root: nn.Module,
    path: str,
    entries: dict[str, dict[str, Any]],
    run: Callable[[tuple[Any, ...]], Any],
) -> Any:
    """Adds a scope with what `run` records, given the arguments as they are seen inside."""
    scope = Scope(target=layer, args=args, kwargs=kwargs, path=path, root=root, parent=_scope.get(), entries=entries)
    if scope.parent is not None:
        scope.parent.items.append(scope)
    scope.parameters = alias(args, scope)
    token = _scope.set(scope)
    try:
        scope.result = run(scope.parameters)
    finally:
        _scope.reset(token)
    scope.output = alias(scope.result, scope)
    return scope.output


class Recorder(Interceptor):
    """What the composites of a tree hand the calls of their children to while the tree is recorded."""

    def __init__(self, tree: Composite, path: str, root: nn.Module) -> None:
        self.tree = tree
        self.path = path
        self.root = root

    def call_outermost(self, composite: Composite, args: tuple[Any, ...], context: Context) -> Any:
        return call_module(composite, *args, context=context)

    def call_slot(self, composite: Composite, slot: Slot, args: tuple[Any, ...], context: Context) -> Any:
        layer, path = slot.layer, self.path_of(composite, slot)
        if isinstance(layer, Composite):
            return record_composite(layer, args, context, self.root, path)
        if layer is None:
            return args
        arguments, keywords = slot.arguments(args, context)
        return record_layer(layer, arguments, keywords, self.root, path)

    def path_of(self, composite: Composite, slot: Slot) -> str:
        """Where the layer in a slot is owned; what is owned outside of the tree goes by its name alone."""
        home = composite if slot.home is None else slot.home
        names: list[str] = [slot.name]
        while home is not self.tree:
            owner = home.node.owner
            if owner is None:
                return ".".join(filter(None, [self.path, slot.name]))
            names.append(home.node.name)
            home = owner
        if isinstance(self.tree, Mount):
            names[-1] = self.tree.logical_name(names[-1])
        return ".".join(filter(None, [self.path, *reversed(names)]))


def _tell_what_was_called(error: Exception, target: object, args: Any, kwargs: Any) -> None:
    name = type(target).__name__ if isinstance(target, nn.Module) else getattr(target, "__name__", repr(target))
    received = ", ".join(map(describe, values_in((args, kwargs)))) or "nothing symbolic"
    error.add_note(f"While {name} was made a part of a graph, called with {received}.")
