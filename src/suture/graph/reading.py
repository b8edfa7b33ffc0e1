"""A graph as data, read: its calls are recorded again, as the file tells them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from suture.graph.examples import fake_tensor
from suture.graph.functions import is_attribute, named_function
from suture.graph.graph import Graph
from suture.graph.input import Input
from suture.graph.recording import record_call, record_scope
from suture.graph.saving import KEY, VERSION, modules_of
from suture.graph.shells import shell
from suture.graph.values import Value, values_in
from suture.layers.building import DescriptionError, build
from suture.layers.cache import Cache
from suture.layers.context import REQUIRED, Read
from suture.layers.frames import standing_in
from suture.layers.functions import function_of
from suture.layers.mount import logical_keys
from suture.surgery.recipe import Recipe
from suture.weights.checkpoint import CheckpointError
from suture.weights.safe_file import read_tensors


def load(path: Path | str) -> Graph:
    """Reads what `save` wrote.

    Raises:
        MissingFileError: There is no such file.
        CheckpointError: It is not a graph, was cut short, is of another version, or names what is not registered.
    """
    tensors, metadata = read_tensors(Path(path))
    if KEY not in metadata:
        raise CheckpointError(f"{path} holds tensors and no graph. Was it written by graph.save?")
    try:
        structure = json.loads(metadata[KEY])
        if structure["version"] != VERSION:
            raise CheckpointError(
                f"{path} is a graph of version {structure['version']!r}, where {VERSION} can be read. Update Suture."
            )
        return _Reading(structure, tensors).graph()
    except CheckpointError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, LookupError) as error:
        raise CheckpointError(f"{path} cannot be read as a graph: {error}") from error


class _Reading:
    """Reads one graph."""

    def __init__(self, structure: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self._told = structure
        self._values: dict[int, Value] = {}
        self._tensors = self._all_tensors(tensors)
        self._composites = [shell(each) for each in cast("list[dict[str, Any]]", structure["composites"])]
        self._layers: dict[str, nn.Module] = {}

    def graph(self) -> Graph:
        told = self._told
        for number, each in enumerate(told["inputs"]["each"]):
            self._values[number] = self._input(each)
        for name, described in told["layers"].items():
            same: str | None = described.get("same as")
            self._layers[name] = self._layer(name, described) if same is None else self._layers[same]
        with standing_in(None):
            self._record(told["items"])
        source: int | None = told["source"]
        graph = Graph(
            inputs=self._decoded(told["inputs"]["structure"]),
            outputs=self._decoded(told["outputs"]),
            source=None if source is None else self._composites[source],
        )
        graph.reads = {name: self._read(read) for name, read in told["reads"].items()}
        make: str = told["init_cache"] or ""
        graph.init_cache = Cache if make == "Cache" else function_of(make)
        if told["edits"]:
            Recipe(told["edits"]).apply(graph)
        self._fill(graph)
        others = set(told["other modes"])
        for path, module in modules_of(graph):
            module.training = told["training"] != (path in others)
        return graph

    # Inputs

    def _input(self, told: Mapping[str, Any]) -> Value:
        shape, device = told["shape"], told["device"]
        dtype = self._decoded(told["dtype"])
        if "name" not in told:
            return Value(fake_tensor(tuple(shape), dtype, device))
        optional = "default" in told
        return Input(
            told["name"],
            None if shape is None else tuple(shape),
            dtype,
            optional=optional,
            default=self._decoded(told["default"]) if optional else None,
            device=device,
        )

    def _read(self, told: Mapping[str, Any]) -> Read:
        return Read(told["scope"], told["key"], self._decoded(told["default"]) if "default" in told else REQUIRED)

    # Calls

    def _record(self, items: list[dict[str, Any]]) -> None:
        for told in items:
            if "composite" in told:
                self._record_scope(told)
                continue
            args, keywords = tuple(self._decoded(told["args"])), self._decoded_each(told.get("keywords", {}))
            if "layer" in told:
                layer = self._layers[told["layer"]]
                output = record_call(layer, args, keywords, self._root(told), told["path"])
            else:
                output = record_call(self._function(told["function"], args), args, keywords)
            self._number(told["gives"], output)

    def _record_scope(self, told: Mapping[str, Any]) -> None:
        number: int = told["composite"]
        composite = self._composites[number]
        self._own_tensors(composite, told)
        args = tuple(self._decoded(told["args"]))
        entries = {scope: self._decoded_each(keys) for scope, keys in told["entries"].items()}

        def run(parameters: tuple[Any, ...]) -> Any:
            self._number(told["parameters"], parameters)
            self._record(told["items"])
            return self._decoded(told["result"])

        output = record_scope(composite, args, {}, cast("nn.Module", self._root(told)), told["path"], entries, run)
        self._number(told["gives"], output)

    def _root(self, told: Mapping[str, Any]) -> nn.Module | None:
        number: int | None = told["root"]
        return None if number is None else self._composites[number]

    def _function(self, name: str, args: tuple[Any, ...]) -> Any:
        function = named_function(name)
        if function is None:
            raise CheckpointError(
                f"The graph calls the function {name!r}, which is not known. A function of yours is registered where "
                "it is defined, with @suture.register_function; import that module first."
            )
        if function is getattr and not (len(args) == 2 and is_attribute(args[1])):
            raise CheckpointError(f"The graph asks for the attribute {args[1:]!r:.60}, which is no value of a tensor.")
        return function

    def _number(self, numbers: list[int], structure: Any) -> None:
        self._values.update(zip(numbers, values_in(structure), strict=True))

    # Layers and tensors

    def _layer(self, name: str, described: Any) -> nn.Module:
        try:
            layer = build(described, _find_nothing, _edit_nothing)
        except DescriptionError as error:
            raise CheckpointError(f"The layer at {name!r} cannot be made: {error}") from error
        if not isinstance(layer, nn.Module):
            raise CheckpointError(f"What stands at {name!r} is no layer, but {layer!r:.60}.")
        self._put(layer, {key: f"{name}.{key}" for key in _tensor_names(layer)})
        return layer

    def _own_tensors(self, composite: nn.Module, told: Mapping[str, Any]) -> None:
        """Gives a composite the tensors of its own that functions in it are called with."""
        for call in told["items"]:
            for key in _weights_in((call.get("args"), call.get("keywords"))):
                around, _, name = key.rpartition(".")
                if around != told["name"] or name in _tensor_names(composite):
                    continue
                tensor = self._tensor(key)
                if isinstance(tensor, nn.Parameter):
                    composite.register_parameter(name, tensor)
                else:
                    composite.register_buffer(name, tensor)

    def _fill(self, graph: Graph) -> None:
        """Gives the graph, as it is after its edits, every tensor that the file has for it."""
        keys = logical_keys(graph)
        self._put(graph, keys)
        read = set(self._told["layers"])
        spare = [key for key in self._tensors if key not in keys.values() and not _is_of(key, read)]
        if spare:
            raise CheckpointError(f"The file has the tensor {spare[0]!r}, for which the graph has no place.")

    def _put(self, module: nn.Module, keys: Mapping[str, str]) -> None:
        for physical, key in keys.items():
            around, _, name = physical.rpartition(".")
            holder, tensor = module.get_submodule(around), self._tensor(key)
            there = cast("Tensor", getattr(holder, name))
            if there is tensor:
                continue
            if there.shape != tensor.shape:
                raise CheckpointError(
                    f"{key!r} has the shape {tuple(tensor.shape)} in the file, and {tuple(there.shape)} in its layer."
                )
            setattr(holder, name, tensor)

    def _tensor(self, key: str) -> Tensor:
        if key not in self._tensors:
            raise CheckpointError(f"The file has no tensor {key!r}, which the graph needs.")
        return self._tensors[key]

    def _all_tensors(self, written: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors by each of their keys; those that a layer has as its parameter are parameters."""
        tied: dict[str, str] = self._told["tied"]
        parameters = set(self._told["parameters"])
        frozen = set(self._told["frozen"])
        made: dict[str, Tensor] = {
            key: nn.Parameter(tensor, requires_grad=key not in frozen) if key in parameters else tensor
            for key, tensor in written.items()
        }
        return made | {key: made[first] for key, first in tied.items()}

    # Structures

    def _decoded(self, content: Any) -> Any:
        match content:
            case {"value": None}:
                # It is in no call of the graph, so that what takes it is none either.
                return Input("absent")
            case {"value": int(number)}:
                return self._values[number]
            case {"weight": str(key)} | {"constant": str(key)}:
                return self._tensor(key)
            case {"ellipsis": True}:
                return ...
            case list():
                return [self._decoded(each) for each in cast("list[Any]", content)]
            case {"tuple": list()}:
                return tuple(self._decoded(content["tuple"]))
            case {"slice": list()}:
                return slice(*self._decoded(content["slice"]))
            case {"dict": list()}:
                return {self._decoded(key): self._decoded(each) for key, each in content["dict"]}
            case _:
                return build(content, _find_nothing, _edit_nothing)

    def _decoded_each(self, content: Mapping[str, Any]) -> dict[str, Any]:
        return {key: self._decoded(value) for key, value in content.items()}


def _weights_in(content: Any) -> list[str]:
    match content:
        case {"weight": str(key)}:
            return [key]
        case dict():
            return [key for each in cast("dict[str, Any]", content).values() for key in _weights_in(each)]
        case list() | tuple():
            return [key for each in cast("list[Any]", content) for key in _weights_in(each)]
        case _:
            return []


def _tensor_names(module: nn.Module) -> list[str]:
    named = (module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
    return [name for each in named for name, _ in each]


def _is_of(key: str, layers: set[str]) -> bool:
    """Whether a key is that of a tensor in one of the layers, or of a constant."""
    around = key
    while around:
        around = around.rpartition(".")[0]
        if around in layers or around == "constants":
            return True
    return False


def _find_nothing(path: str, number: int | None) -> nn.Module:
    raise DescriptionError(f"it names the layer at {path!r} of another tree.")


def _edit_nothing(layer: nn.Module, edits: Any) -> None:
    raise DescriptionError(f"the {type(layer).__name__} was edited, which is told in no graph.")
