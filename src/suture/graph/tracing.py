"""From a tree, or any function of symbolic values, to a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import nn

from suture.graph.graph import Graph
from suture.graph.input import Input
from suture.graph.values import Value, values_in
from suture.layers.composite import Composite
from suture.layers.context import REQUIRED, Context, Entries, Read, as_read, sources
from suture.layers.frames import standing_in
from suture.layers.inputs import inputs_of
from suture.layers.symbolic import seeing_plain_calls


def trace(
    model: nn.Module | Callable[..., Any],
    *inputs: Any,
    context: Entries | None = None,
    written: tuple[tuple[str, str], ...] = (),
) -> Graph:
    """The graph of what `model` does with `inputs`.

    Every call of a leaf is one step of it. Context entries that the tree reads are inputs, named by their key: those
    with a default are optional, for others an `Input` is given in `context`.

    Args:
        model: A tree, a layer, or a function of symbolic values.
        inputs: What it is called with: `Input`s, or structures of them. A model that knows, such as a backbone, need
            not be told.
        context: What entries are: `{"scope": {"key": Input(...)}}`, or a value that is the same in every call.
        written: Entries (scope, key) that the tree writes, to be returned as well: the outputs are then the result and
            a dictionary of them by key; with the scope in front, `<scope>_<key>`, where two have one key.

    Raises:
        TypeError: no input is given, or an entry is missing that has no default; the message names it.
        ValueError: the tree does not write an entry of `written`.

    Example:
        >>> from suture import layers as sl
        >>> shift = sl.Sum(sl.Identity(), sl.UseContext("side", "shift", default=0.0))
        >>> model = sl.Chain(up=sl.Linear(2, 4), shift=shift)
        >>> graph = trace(model, Input("x", shape=(None, 2)))
        >>> list(graph.state_dict()), list(graph.flat_inputs)
        (['up.weight', 'up.bias'], ['x', 'shift'])
    """
    inputs = inputs or (known_inputs(model) or ())
    named = {value.name: value for value in values_in(inputs) if isinstance(value, Input)}
    if not values_in((inputs, context)):
        raise TypeError(
            "A graph is traced from symbolic inputs: trace(model, Input('x', shape=(None, 64))). Received none."
        )
    entries, reads = _entries(model, dict(context or {}), named) if isinstance(model, Composite | Graph) else ({}, {})
    _refuse_unwritten(model, written)
    # A context of our own can be read afterwards.
    running = Context(entries)
    keywords = {"context": running} if entries or written else {}
    with standing_in(None), seeing_plain_calls():
        outputs = model(*inputs, **keywords)
    if written:
        outputs = (outputs, {name: running.get(*entry) for name, entry in _named(written).items()})
    source = model if isinstance(model, nn.Module) else None
    given = {**_parameters(inputs), **{name: entries[read.scope][read.key] for name, read in reads.items()}}
    graph = Graph(inputs=given, outputs=outputs, source=source)
    graph.reads = reads
    graph.init_cache = _method(model, "init_cache")
    return graph


def as_graph(model: nn.Module, inputs: Any = None) -> Graph:
    """A graph as it is; a tree traced, with its own inputs or those that are given."""
    if isinstance(model, Graph):
        return model
    inputs = known_inputs(model) if inputs is None else inputs
    if inputs is None:
        raise TypeError(
            f"A {type(model).__name__} does not say what it is called with. "
            f"Give it: inputs=Input('x', shape=(None, 64)), or a tuple of several."
        )
    return trace(model, *(inputs if isinstance(inputs, tuple | list) else (inputs,)))


def known_inputs(model: object) -> tuple[Any, ...] | None:
    """What a model says that a graph of it is called with; None where it does not."""
    known = _method(model, "graph_inputs")
    return None if known is None else known()


def _method(model: object, name: str) -> Callable[..., Any] | None:
    """A method of a model; not a layer that happens to have its name."""
    found: Any = getattr(model, name, None)
    return None if isinstance(found, nn.Module) else found


def _parameters(inputs: tuple[Any, ...]) -> dict[str, Any]:
    """The inputs by name: an input by its own, a structure by its number."""
    return {
        each.name if isinstance(each, Input) else f"input_{number}": each
        for number, each in enumerate(inputs)
        if values_in(each)
    }


def _refuse_unwritten(model: object, written: tuple[tuple[str, str], ...]) -> None:
    known = model.context_outputs if isinstance(model, Composite) else ()
    for scope, key in written:
        if (scope, key) not in known:
            writes = ", ".join(".".join(entry) for entry in known) or "nothing"
            raise ValueError(
                f"{type(model).__name__} does not write the context entry {scope}.{key}. It writes: {writes}."
            )


def _named(written: tuple[tuple[str, str], ...]) -> dict[str, tuple[str, str]]:
    keys = [key for _, key in written]
    return {key if keys.count(key) == 1 else f"{scope}_{key}": (scope, key) for scope, key in written}


def _named_reads(model: Composite | Graph) -> list[tuple[str, Read]]:
    """What a model reads, by the name by which it takes it as a keyword, where that says which entry is meant."""
    if isinstance(model, Graph):
        return list(model.reads.items())
    own = {source.identity for read in model.reads.values() for source in sources(as_read(read))}
    keys = [read.key for read in model.context_inputs]
    return [
        (read.key if read.identity in own or keys.count(read.key) == 1 else f"{read.scope}_{read.key}", read)
        for read in model.context_inputs
    ]


def _entries(
    model: Composite | Graph, context: dict[str, Any], taken: Mapping[str, Value]
) -> tuple[dict[str, dict[str, Any]], dict[str, Read]]:
    """What every entry is that the tree reads, and which of them are inputs, by the name of the input."""
    initial = inputs_of(model).initial
    entries = {scope: dict(cast("Mapping[str, Any]", keys)) for scope, keys in context.items()}
    reads: dict[str, Read] = {}
    missing: list[Read] = []
    for name, read in _named_reads(model):
        given = entries.setdefault(read.scope, {})
        if read.key not in given:
            default = initial.get(read.scope, {}).get(read.key, read.default)
            if default is REQUIRED:
                missing.append(read)
                continue
            name = name if name not in taken else f"{read.scope}_{read.key}"
            given[read.key] = Input(name, optional=True, default=default)
        if isinstance(entry := given[read.key], Input):
            reads[entry.name] = read
    if missing:
        wanted = ", ".join(f"{read.scope!r}: {{{read.key!r}: Input({read.key!r}, shape=(...))}}" for read in missing)
        raise TypeError(
            f"{type(model).__name__} reads {', '.join(read.identity for read in missing)} from the context, which "
            f"has no default, so it is an input of the graph: trace(model, ..., context={{{wanted}}})."
        )
    return {scope: keys for scope, keys in entries.items() if keys}, reads
