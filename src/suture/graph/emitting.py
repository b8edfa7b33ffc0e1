"""The calls of a graph as a Python function: straight-line code, with its layers bound as locals."""

from __future__ import annotations

import itertools
import keyword
import linecache
import math
import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from suture.graph.calls import Call
from suture.graph.input import Input
from suture.graph.values import Value, bounds_of, values_in
from suture.layers.location import describe
from suture.layers.symbolic import inner_call

if TYPE_CHECKING:
    from suture.graph.graph import Graph

_programs = itertools.count(1)
_LINES_BEFORE = 3
"""The number of the first line that is a call."""
_INFIX: dict[Callable[..., Any], str] = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.truediv: "/",
    operator.floordiv: "//",
    operator.mod: "%",
    operator.pow: "**",
    operator.matmul: "@",
    operator.and_: "&",
    operator.or_: "|",
    operator.xor: "^",
    operator.eq: "==",
    operator.ne: "!=",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
}
_PREFIX: dict[Callable[..., Any], str] = {operator.neg: "-", operator.pos: "+", operator.invert: "~"}


@dataclass(frozen=True)
class Line:
    """One call: the name of its result, what gives it, and the names that nothing needs any more."""

    name: str
    expression: str
    call: Call
    dead: tuple[str, ...]


class Program:
    """The function that runs a graph: called with the value of every input, it gives the outputs."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._names: dict[Value, str] = {}
        self._taken: set[str] = set(keyword.kwlist) | {"torch", "forward"}
        self._bound: dict[str, Any] = {"torch": torch}
        self._layer_names: dict[str, str] = {}
        self._bound_names: dict[int, str] = {}
        self.parameters = [self._name(value, name) for name, value in graph.flat_inputs.items()]
        self.lines = self._lines()
        self.result = self._literal(graph.outputs)
        self.function = self._compile()

    @property
    def code(self) -> str:
        """The function as it reads."""
        values = self._graph.flat_inputs.values()
        parameters = [f"{name}{_default(value)}" for name, value in zip(self.parameters, values, strict=True)]
        body = [f"{line.name} = {line.expression}" for line in self.lines]
        return _function(parameters, [*body, f"return {self.result}"])

    def put(self, path: str, layer: nn.Module) -> None:
        """Calls another layer at a path from now on."""
        name = self._layer_names.get(path)
        if name is not None:
            cells = dict(zip(self.function.__code__.co_freevars, self.function.__closure__ or (), strict=True))
            cells[name].cell_contents = inner_call(layer)

    def locate(self, traceback: TracebackType | None) -> str | None:
        """What was called where an exception of the function came from."""
        while traceback is not None:
            if traceback.tb_frame.f_code is self.function.__code__:
                number = traceback.tb_lineno - _LINES_BEFORE
                if not 0 <= number < len(self.lines):
                    return None
                call, known = self.lines[number].call, traceback.tb_frame.f_locals
                received = (known.get(self._names_of(value)) for value in values_in(call.arguments))
                name = f"{self._graph.name_of(call)!r} ({call.name})" if call.is_layer else call.name
                return f"{name}, called with {', '.join(map(describe, received)) or 'nothing'}"
            traceback = traceback.tb_next
        return None

    # Making it

    def _lines(self) -> list[Line]:
        calls = list(self._graph.contents.needed)
        last_use: dict[str, int] = {}
        lines: list[tuple[str, str, Call]] = []
        for number, call in enumerate(calls):
            expression = self._expression(call)
            for value in values_in(call.arguments):
                last_use[self._names_of(value)] = number
            name = self._name(call.whole, self._wanted_name(call))
            last_use.setdefault(name, number)
            lines.append((name, expression, call))
        for value in values_in(self._graph.outputs):
            last_use.pop(self._names_of(value), None)
        dead: dict[int, list[str]] = {}
        for name, number in last_use.items():
            dead.setdefault(number, []).append(name)
        return [Line(*line, tuple(dead.get(number, ()))) for number, line in enumerate(lines)]

    def _wanted_name(self, call: Call) -> str:
        if call.is_layer:
            return self._graph.name_of(call).rpartition(".")[2]
        is_part = call.target is operator.getitem and isinstance(call.args[0], Value) and isinstance(call.args[1], int)
        return f"{self._names_of(call.args[0])}_{call.args[1]}" if is_part else call.name

    def _compile(self) -> Callable[..., Any]:
        body = [
            "; ".join([f"{line.name} = {line.expression}", *(f"{name} = None" for name in line.dead)])
            for line in self.lines
        ]
        inner = _function(self.parameters, [*body, f"return {self.result}"])
        bound = [name for name in self._bound if name != "torch"]
        # Made inside another function, so that what is bound are locals and not globals.
        maker = f"def make({', '.join(bound)}):\n{_indented(inner)}\n    return forward\n"
        filename = f"<graph {next(_programs)}>"
        linecache.cache[filename] = (len(maker), None, maker.splitlines(keepends=True), filename)
        namespace: dict[str, Any] = {"torch": torch}
        # The text is made here, of names made here; nothing that a file or a user names is in it but by binding.
        exec(compile(maker, filename, "exec"), namespace)
        return namespace["make"](**{name: self._bound[name] for name in bound})

    def _expression(self, call: Call) -> str:
        target = call.target
        arguments = [self._literal(each) for each in call.args]
        if not isinstance(target, nn.Module) and not call.kwargs:
            if target in _INFIX and len(arguments) == 2:
                return f"{_inner(arguments[0])} {_INFIX[target]} {_inner(arguments[1])}"
            if target in _PREFIX:
                return f"{_PREFIX[target]}{_inner(arguments[0])}"
            if target is operator.getitem:
                return f"{_inner(arguments[0])}[{self._index(call.args[1])}]"
            if target is getattr and str(call.args[1]).isidentifier():
                return f"{_inner(arguments[0])}.{call.args[1]}"
        arguments += [f"{name}={self._literal(each)}" for name, each in call.kwargs.items()]
        if isinstance(target, nn.Module):
            path = self._graph.name_of(call)
            return f"{self._bind_layer(path)}({', '.join(arguments)})"
        if _is_method(target) and call.args and isinstance(call.args[0], Value):
            return f"{arguments[0]}.{target.__name__}({', '.join(arguments[1:])})"
        return f"{self._function(target)}({', '.join(arguments)})"

    def _function(self, function: Callable[..., Any]) -> str:
        name = torch.overrides.resolve_name(function)
        if name is not None and _resolved(name) is function:
            return name
        return self._bind(function, getattr(function, "__name__", "function"))

    def _index(self, index: Any) -> str:
        if isinstance(index, tuple):
            parts = [self._index(each) for each in cast("tuple[Any, ...]", index)]
            return ", ".join(parts) + ("," if len(parts) == 1 else "")
        if isinstance(index, slice):
            start, stop, step = ("" if each is None else self._literal(each) for each in bounds_of(index))
            return f"{start}:{stop}{f':{step}' if step else ''}"
        return self._literal(index)

    def _literal(self, value: Any) -> str:
        """What stands for an argument in the code: a name, a literal, or a name that is bound to it."""
        if isinstance(value, Value):
            return self._names_of(value)
        kind: Any = type(cast("object", value))
        if kind in (tuple, list):
            parts = ", ".join(map(self._literal, value))
            return f"[{parts}]" if kind is list else f"({parts}{',' if len(value) == 1 else ''})"
        if kind is dict and all(isinstance(key, str | int) for key in value):
            return f"{{{', '.join(f'{key!r}: {self._literal(each)}' for key, each in value.items())}}}"
        if isinstance(value, slice):
            return f"slice({', '.join(map(self._literal, bounds_of(value)))})"
        if value is None or kind in (int, str, bool) or (kind is float and math.isfinite(value)):
            return repr(value)
        if value is Ellipsis:
            return "..."
        if kind is torch.dtype:
            return str(value)
        if isinstance(value, Tensor):
            holder, attribute = self._graph.holder_of(value)
            return f"{self._bind(holder, 'tensors')}.{attribute}"
        if values_in(value):
            leaves, spec = pytree.tree_flatten(value)
            return f"{self._bind(spec.unflatten, 'structure')}({self._literal(leaves)})"
        return self._bind(value, kind.__name__)

    # Names

    def _names_of(self, value: Value) -> str:
        while value not in self._names and value.alias_of is not None:
            value = value.alias_of
        return self._names[value]

    def _name(self, value: Value, wanted: str) -> str:
        self._names[value] = name = self._unused(wanted)
        return name

    def _bind_layer(self, path: str) -> str:
        """The name by which code calls the layer at a path."""
        if path not in self._layer_names:
            self._layer_names[path] = name = self._unused(path)
            self._bound[name] = inner_call(self._graph.get_submodule(path))
        return self._layer_names[path]

    def _bind(self, target: Any, wanted: str) -> str:
        """The name by which code calls what is bound to it: a function, an object."""
        if id(target) not in self._bound_names:
            self._bound_names[id(target)] = name = self._unused(wanted)
            self._bound[name] = target
        return self._bound_names[id(target)]

    def _unused(self, wanted: str) -> str:
        base = re.sub(r"\W+", "_", wanted).strip("_") or "value"
        base = f"layer_{base}" if base[0].isdigit() else base
        name, number = base, 1
        while name in self._taken:
            number += 1
            name = f"{base}_{number}"
        self._taken.add(name)
        return name


def _default(value: Value) -> str:
    return f"={value.default!r}" if isinstance(value, Input) and value.optional else ""


def _function(parameters: Iterable[str], body: list[str]) -> str:
    return f"def forward({', '.join(parameters)}):\n" + "\n".join(f"    {line}" for line in body)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _inner(expression: str) -> str:
    """An expression as an operand."""
    return expression if re.fullmatch(r"[A-Za-z_][\w.]*|\d+(\.\d+)?", expression) else f"({expression})"


def _is_method(function: Callable[..., Any]) -> bool:
    name = getattr(function, "__name__", "")
    return name.isidentifier() and getattr(Tensor, name, None) is function


def _resolved(name: str) -> object:
    found: Any = torch
    for part in name.split(".")[1:]:
        found = getattr(found, part, None)
    return found if name.startswith("torch.") else None
