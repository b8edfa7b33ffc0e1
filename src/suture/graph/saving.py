"""A graph as data, written: its structure as JSON, its weights as safetensors, both in one file.

The file holds names of registered classes and functions and what they are called with, and no code. What cannot be
named is refused.

* Values have numbers. A call says which it takes and which it gives.
* A layer that is called is described as it was made; that it stands at several paths is kept. Edits of the graph's
  layers are kept as the recipe that makes them.
* Composites are called no more, since their children are calls of the graph: of them the class is kept. So a graph that
  was read can be drawn, and rewired with a call function that asks for the classes of composites.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from suture.graph.calls import Call, Item, Scope
from suture.graph.contents import GraphError
from suture.graph.functions import name_function
from suture.graph.input import Input
from suture.graph.shells import tell
from suture.graph.values import Value, bounds_of, describe, values_in
from suture.layers.cache import Cache
from suture.layers.context import REQUIRED
from suture.layers.description import Described, Unknown, class_of, encoded
from suture.layers.description import describe as describe_layer
from suture.layers.functions import name_of
from suture.layers.mount import logical_keys
from suture.surgery.recipe import recipe
from suture.weights.safe_file import write_tensors

if TYPE_CHECKING:
    from suture.graph.graph import Graph

VERSION = 1
KEY = "suture.graph"
"""Under which the structure stands among what the file says about itself."""


def save(graph: Graph, path: Path | str) -> None:
    """Writes a graph to one file, whole or not at all.

    Raises:
        GraphError: A layer, a function or a constant has no name; the message says where, and what to do.
    """
    writing = _Writing(graph)
    structure = writing.structure()
    write_tensors(Path(path), writing.tensors, {KEY: json.dumps(structure, allow_nan=False)})


class _Writing:
    """Writes one graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._numbers = {value: number for number, value in enumerate(graph.flat_inputs.values())}
        self._composites: dict[int, tuple[int, nn.Module]] = {}
        self._tensors = _state(graph)
        self.tensors: dict[str, Tensor] = {}
        """What is written: every tensor once, by the first of its keys."""
        self._first: dict[int, str] = {}
        self._constants: dict[int, str] = {}

    def structure(self) -> dict[str, Any]:
        graph = self._graph
        inputs = [self._input(path, value) for path, value in graph.flat_inputs.items()]
        items = self._items(graph.contents.items)
        source = graph.source[0]
        return {
            "format": KEY,
            "version": VERSION,
            "inputs": {"each": inputs, "structure": self._encoded(graph.inputs, "the inputs")},
            "outputs": self._encoded(graph.outputs, "the outputs"),
            "reads": {
                name: {"scope": read.scope, "key": read.key}
                | ({} if read.required else {"default": self._encoded(read.default, f"the input {name!r}")})
                for name, read in graph.reads.items()
            },
            "init_cache": self._init_cache(),
            "layers": self._layers(),
            "edits": list(recipe(graph).edits),
            "items": items,
            "source": None if source is None else self._composite(source),
            "composites": [tell(layer) for _, layer in self._composites.values()],
            "training": graph.training,
            "other modes": [path for path, module in modules_of(graph) if module.training != graph.training],
            "tied": self._tied(),
            "parameters": [key for key, tensor in self._tensors.items() if isinstance(tensor, nn.Parameter)],
            "frozen": [key for key, tensor in self._tensors.items() if _is_frozen(tensor)],
        }

    # Inputs

    def _input(self, path: str, value: Value) -> dict[str, Any]:
        where = f"the input {path!r}"
        if isinstance(value, Input):
            content = {
                "name": value.name,
                "shape": None if value.shape_wanted is None else list(value.shape_wanted),
                "dtype": self._encoded(value.dtype_wanted, where),
                "device": None if value.device_wanted is None else str(value.device_wanted),
            }
            return content | ({"default": self._encoded(value.default, where)} if value.optional else {})
        example = value.example
        if not isinstance(example, Tensor):
            raise GraphError(f"The graph cannot be saved: {where} is a value on the way that is {describe(value)}.")
        return {"shape": list(example.shape), "dtype": encoded(example.dtype), "device": str(example.device)}

    def _init_cache(self) -> str | None:
        make = self._graph.init_cache
        if make is None:
            return None
        name = name_of(make)
        if name is None and type(make(1, 1)) is Cache:
            return "Cache"
        if name is None:
            raise GraphError("The graph cannot be saved: its init_cache is no function that has a name. Register it.")
        return name

    # Calls

    def _items(self, items: list[Item]) -> list[dict[str, Any]]:
        written: list[dict[str, Any]] = []
        for item in items:
            if isinstance(item, Scope) and self._is_used(item):
                written.append(self._scope(item))
            elif isinstance(item, Call) and item in self._graph.contents.replayed and not _is_part(item):
                written.append(self._call(item))
        return written

    def _is_used(self, item: Item) -> bool:
        contents = self._graph.contents
        if isinstance(item, Scope):
            return item in contents.whole or any(self._is_used(inner) for inner in item.items)
        return item in contents.replayed

    def _call(self, call: Call) -> dict[str, Any]:
        content: dict[str, Any]
        if call.is_layer:
            name = self._graph.name_of(call)
            content = {"layer": name, **self._place(call)}
        else:
            name = call.name
            function = name_function(cast("Callable[..., Any]", call.target))
            if function is None:
                around = call.around
                place = f" in {self._graph.name_of(around[-1]) or 'the outermost composite'!r}" if around else ""
                raise GraphError(
                    f"The graph cannot be saved: the function {name!r}{place} has no name that can be looked up. Make "
                    "it a layer of a registered class, or register it where it is defined: @suture.register_function."
                )
            content = {"function": function}
        content["args"] = self._encoded(list(call.args), repr(name))
        if call.kwargs:
            content["keywords"] = {key: self._encoded(value, repr(name)) for key, value in call.kwargs.items()}
        return content | {"gives": self._numbered(call.output)}

    def _scope(self, scope: Scope) -> dict[str, Any]:
        name = repr(self._graph.name_of(scope) or scope.name)
        content: dict[str, Any] = {
            "composite": self._composite(cast("nn.Module", scope.target)),
            "name": self._graph.name_of(scope),
            **self._place(scope),
            "args": self._encoded(list(scope.args), name),
            "entries": self._entries(scope, name),
            "parameters": self._numbered(scope.parameters),
        }
        content["items"] = self._items(scope.items)
        content["result"] = self._encoded(scope.result, name)
        return content | {"gives": self._numbered(scope.output)}

    def _place(self, item: Item) -> dict[str, Any]:
        return {"path": item.path, "root": None if item.root is None else self._composite(item.root)}

    def _entries(self, scope: Scope, where: str) -> dict[str, dict[str, Any]]:
        """The context entries that a composite begins with, those of which all values are in the graph."""
        return {
            name: {
                key: self._encoded(value, where)
                for key, value in keys.items()
                if all(self._number_of(each) is not None for each in values_in(value))
            }
            for name, keys in scope.entries.items()
        }

    def _numbered(self, structure: Any) -> list[int]:
        """New numbers for the values in a structure."""
        numbers = range(len(self._numbers), len(self._numbers) + len(values_in(structure)))
        self._numbers.update(zip(values_in(structure), numbers, strict=True))
        return list(numbers)

    def _number_of(self, value: Value) -> int | None:
        """The number of a value; None for one that is in no call of the graph."""
        known: Value | None = value
        while known is not None and known not in self._numbers:
            known = known.alias_of
        return None if known is None else self._numbers[known]

    def _composite(self, layer: nn.Module) -> int:
        return self._composites.setdefault(id(layer), (len(self._composites), layer))[0]

    # Layers and tensors

    def _layers(self) -> dict[str, Any]:
        described: dict[int, str] = {}
        layers: dict[str, Any] = {}
        for call in self._graph.contents.replayed:
            if call.is_layer and (name := self._graph.name_of(call)) not in layers:
                layer = cast("nn.Module", call.target)
                known = described.setdefault(id(layer), name)
                layers[name] = {"same as": known} if known != name else self._layer(name, layer)
        return layers

    def _layer(self, name: str, layer: nn.Module) -> Any:
        content = _told(describe_layer(layer), name)
        kind = class_of(content["class"])
        if kind is not type(layer):
            raise GraphError(
                f"The graph cannot be saved: the layer at {name!r} was made as a {content['class']}, and is now a "
                f"{type(layer).__name__}. Undo what changed its class, such as a parametrization."
            )
        return content

    def _tied(self) -> dict[str, str]:
        """Which tensor is which of those that are written, by key."""
        tied: dict[str, str] = {}
        for key, tensor in self._tensors.items():
            first = self._first.setdefault(id(tensor), key)
            if first == key:
                self.tensors[key] = tensor
            else:
                tied[key] = first
        return tied

    def _key_of(self, tensor: Tensor) -> dict[str, str]:
        path = self._graph.path_of(tensor)
        if path is not None:
            return {"weight": path}
        key = self._constants.setdefault(id(tensor), f"constants.{len(self._constants)}")
        self.tensors[key] = tensor
        return {"constant": key}

    # Structures

    def _encoded(self, structure: Any, where: str) -> Any:
        """A structure as JSON knows it, with numbers for values and keys for tensors."""
        kind: Any = type(cast("object", structure))
        if isinstance(structure, Value):
            return {"value": self._number_of(structure)}
        if isinstance(structure, Tensor):
            return self._key_of(structure)
        if structure is Ellipsis:
            return {"ellipsis": True}
        if kind is list:
            return [self._encoded(each, where) for each in structure]
        if kind in (tuple, torch.Size):
            return {"tuple": [self._encoded(each, where) for each in structure]}
        if kind is slice:
            return {"slice": [self._encoded(each, where) for each in bounds_of(structure)]}
        if kind is dict:
            return {"dict": [[encoded(key), self._encoded(each, where)] for key, each in structure.items()]}
        if structure is REQUIRED or values_in(structure):
            raise GraphError(f"The graph cannot be saved: {where} has a {kind.__name__}, which is no plain structure.")
        return _told(encoded(structure), where)


def _told(content: Any, where: str) -> Any:
    """A description as plain JSON."""
    match content:
        case Unknown():
            raise GraphError(f"The graph cannot be saved: at {where}, {content.reason}.")
        case Described():
            return _told(content.content, where)
        case dict():
            return {key: _told(each, where) for key, each in cast("dict[str, Any]", content).items()}
        case list() | tuple():
            return [_told(each, where) for each in cast("list[Any]", content)]
        case _:
            return content


def _is_part(call: Call) -> bool:
    """Whether a call takes out a part of what another gave, which is recorded with that one."""
    if call.name != "getitem" or call.is_layer:
        return False
    whole = call.args[0]
    return isinstance(whole, Value) and isinstance(whole.example, tuple | list | dict)


def _state(graph: Graph) -> dict[str, Tensor]:
    """Every tensor by the key that it has without the edits; what no state holds, such as tables, among them."""
    state: Mapping[str, Any] = graph.state_dict(keep_vars=True)
    for key, tensor in state.items():
        if not isinstance(tensor, Tensor):
            raise GraphError(f"The graph cannot be saved: {key!r} is a {type(tensor).__name__}, and no tensor.")
    logical = logical_keys(graph)
    tensors = {logical[key]: cast("Tensor", tensor) for key, tensor in state.items()}
    for call in graph.contents.replayed:
        if call.is_layer:
            layer = cast("nn.Module", call.target)
            for name, buffer in layer.named_buffers(remove_duplicate=False):
                tensors.setdefault(f"{graph.name_of(call)}.{name}", buffer)
    return tensors


def _is_frozen(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) and not tensor.requires_grad


def modules_of(graph: Graph) -> Iterator[tuple[str, nn.Module]]:
    """Every module of a graph, by path."""
    # torch does not say what the names and modules are when it shall give all of them.
    yield from graph.named_modules(remove_duplicate=False)
