"""The calls of a graph as a `torch.fx.GraphModule`, for what torch's ecosystem does with one: passes, export."""

from __future__ import annotations

import inspect
import math
import operator
import re
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from suture.graph.calls import Call
from suture.graph.input import Input
from suture.graph.values import Value, bounds_of, values_in
from suture.layers.node import children_of

if TYPE_CHECKING:
    from suture.graph.graph import Graph

_LITERALS = (str, bool, int, torch.dtype, torch.device, type(None), type(Ellipsis))


def to_fx(graph: Graph, present: Collection[str] | None = None) -> fx.GraphModule:
    """The graph as torch's own, with the layers of this one at their paths.

    Its parameters are those of the graph, the required ones first. A structure is given as one argument and returned as
    one.

    Args:
        graph: What is emitted: its calls, in their order, as they are in `graph.code`.
        present: The inputs that are given in every call. Then there are no other parameters, and these are in the order
            that they have in the graph; inputs that are not among them are what they are when they are left out.
    """
    return _Emission(graph).module(present)


class _Emission:
    """Builds one graph module."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._tensors: dict[str, Tensor] = {}
        """Defaults that are tensors, by the name under which the module holds them."""
        self._fx = fx.Graph()
        self._nodes: dict[Value, Any] = {}
        self._bound: dict[int, tuple[object, Callable[..., Any]]] = {}

    def module(self, present: Collection[str] | None) -> fx.GraphModule:
        if present is None:
            self._add_all_inputs()
        else:
            self._add_inputs(present)
        for call in self._graph.contents.needed:
            self._nodes[call.whole] = self._call(call)
        self._fx.output(self._argument(self._graph.outputs))
        root = _Root(self._graph, self._tensors)
        module = fx.GraphModule(root, self._fx, class_name="Graph")
        for name, tensor in self._tensors.items():
            # Not among the weights: it is a default and no more.
            module.register_buffer(name, tensor, persistent=False)
        self._fx.lint()
        return module

    # Inputs

    def _add_all_inputs(self) -> None:
        takes = self._graph.takes
        for name in sorted(takes.by_name, key=takes.is_optional):
            structure = takes.by_name[name]
            if not takes.is_optional(name):
                self._add_parts(self._fx.placeholder(name), structure)
            elif isinstance(structure, Input):
                self._nodes[structure] = self._optional(name, structure.default)
            else:
                self._add_parts(self._fx.placeholder(name, default_value=None), structure)

    def _add_inputs(self, present: Collection[str]) -> None:
        for name, structure in self._graph.takes.by_name.items():
            if name in present:
                self._add_parts(self._fx.placeholder(name), structure)
                continue
            for value in values_in(structure):
                self._nodes[value] = self._argument(cast("Input", value).default)

    def _optional(self, name: str, default: Any) -> fx.Node:
        if _is_literal(default):
            return self._fx.placeholder(name, default_value=default)
        given = self._fx.placeholder(name, default_value=None)
        return self._fx.call_function(given_or, (given, self._argument(default)))

    def _add_parts(self, node: fx.Node, structure: Any) -> None:
        """Takes the values out of a structure that is given as one argument."""
        if isinstance(structure, Value):
            self._nodes[structure] = node
            return
        parts: Any = structure
        for key in list(parts) if isinstance(structure, Mapping) else range(len(parts)):
            inner = parts[key]
            if all(isinstance(value, Input) and value.optional for value in values_in(inner)):
                default = self._argument(inner.default) if isinstance(inner, Input) else None
                self._add_parts(self._fx.call_function(part_or, (node, key, default)), inner)
            else:
                self._add_parts(self._fx.call_function(operator.getitem, (node, key)), inner)

    # Calls

    def _call(self, call: Call) -> fx.Node:
        target: Any = call.target
        args, kwargs = self._argument(tuple(call.args)), self._argument(dict(call.kwargs))
        if isinstance(target, nn.Module):
            path = self._graph.name_of(call)
            return self._named(self._fx.call_module(path, args, kwargs), path.rpartition(".")[2])
        if _is_method(target) and args and isinstance(args[0], fx.Node):
            return self._fx.call_method(target.__name__, args, kwargs)
        return self._fx.call_function(self._function(target), args, kwargs)

    def _named(self, node: fx.Node, name: str) -> fx.Node:
        if not name[:1].isdigit():
            node._rename(re.sub(r"\W+", "_", name))  # pyright: ignore[reportPrivateUsage]
        return node

    def _function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that the code of fx can name."""
        name = getattr(function, "__name__", "")
        if name.isidentifier() and not inspect.ismethod(function) and getattr(function, "__module__", None):
            return function
        return self._bind(function, name, lambda *args, **kwargs: function(*args, **kwargs))

    def _argument(self, value: Any) -> Any:
        """An argument as fx has it: a node, a literal, or a structure of such."""
        if isinstance(value, Value):
            return self._node_of(value)
        kind: Any = type(cast("object", value))
        if kind in (tuple, list):
            arguments = [self._argument(each) for each in cast("list[Any]", value)]
            return arguments if kind is list else tuple(arguments)
        if kind is dict and all(isinstance(key, str | int) for key in value):
            return {key: self._argument(each) for key, each in value.items()}
        if isinstance(value, slice):
            return slice(*map(self._argument, bounds_of(value)))
        if isinstance(value, Tensor):
            return self._fx.get_attr(self._path_of(value))
        if _is_literal(value):
            return value
        leaves, spec = pytree.tree_flatten(value)
        if values_in(value):
            structure = self._bind(spec, f"as_{kind.__name__}", spec.unflatten)
            return self._fx.call_function(structure, ([self._argument(leaf) for leaf in leaves],))
        return self._fx.call_function(self._bind(value, kind.__name__, lambda: value), ())

    def _node_of(self, value: Value) -> Any:
        while value not in self._nodes and value.alias_of is not None:
            value = value.alias_of
        return self._nodes[value]

    def _path_of(self, tensor: Tensor) -> str:
        path = self._graph.path_of(tensor)
        if path is not None:
            return path
        known = [name for name, other in self._tensors.items() if other is tensor]
        name = known[0] if known else f"default_{len(self._tensors)}"
        self._tensors[name] = tensor
        return name

    def _bind(self, key: object, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function for something that has no name of its own, always the same for the same thing."""
        if id(key) not in self._bound:

            def bound(*args: Any, **kwargs: Any) -> Any:
                return function(*args, **kwargs)

            bound.__name__ = bound.__qualname__ = re.sub(r"\W+", "_", name).strip("_") or "function"
            self._bound[id(key)] = key, bound
        return self._bound[id(key)][1]


class _Root(nn.Module):
    """What a graph module takes its layers and tensors from: all that the graph holds, at the same paths."""

    def __init__(self, graph: Graph, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.training = graph.training
        for name, child in children_of(graph).items():
            self.add_module(name, child)
        for name, parameter in graph.named_parameters(recurse=False, remove_duplicate=False):
            self.register_parameter(name, parameter)
        for name, buffer in (*graph.named_buffers(recurse=False, remove_duplicate=False), *tensors.items()):
            self.register_buffer(name, buffer)


def given_or(given: Any, default: Any) -> Any:
    """An argument, or its default where it was left out."""
    return default if given is None else given


def part_or(structure: Any, key: Any, default: Any) -> Any:
    """A part of a structure, or its default where the part or the structure was left out."""
    if structure is None:
        return default
    return cast("Any", structure).get(key, default) if isinstance(structure, Mapping) else structure[key]


def _is_literal(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, _LITERALS)


def _is_method(function: Callable[..., Any]) -> bool:
    name = getattr(function, "__name__", "")
    return name.isidentifier() and getattr(Tensor, name, None) is function
