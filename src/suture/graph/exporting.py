"""A graph as a program of torch.export, or of ONNX, which runs without Suture."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram

from suture.graph.examples import FIRST
from suture.graph.fx import to_fx
from suture.graph.input import Input
from suture.graph.values import Value, describe, map_values
from suture.layers.node import children_of

if TYPE_CHECKING:
    from suture.graph.graph import Graph


def export(
    graph: Graph,
    inputs: Collection[str] = (),
    dynamic: Mapping[str, Any] | None = None,
    examples: Mapping[str, Any] | None = None,
) -> ExportedProgram:
    """The program of a graph, with those of its optional inputs that are named in `inputs`.

    Args:
        graph: What is exported, in the mode that it is in.
        inputs: The optional inputs that are a part of the program; without the others it is as if they were left out.
        dynamic: For inputs by name, which dimensions are open, as torch.export takes it. By default those that the
            input leaves open: equal names are equal sizes.
        examples: For inputs by name, something like what they will be. It is needed where an input says no shape.

    Returns:
        A program that is called with the inputs in their order, and with entries of the context by keyword.

    Raises:
        ValueError: There is no such input, or one has no shape and no example.
    """
    examples, dynamic = dict(examples or {}), dict(dynamic or {})
    takes = graph.takes
    named = {*inputs, *examples}
    if unknown := [name for name in (*named, *dynamic) if name not in takes.by_name]:
        raise ValueError(f"The graph has no input {unknown[0]!r}. It takes: {', '.join(takes.by_name)}.")
    present = [name for name in takes.by_name if name in named or not takes.is_optional(name)]
    if not present:
        raise ValueError(
            f"Every input of this graph is optional, and a program has those that are named: "
            f"export(inputs=[{next(iter(takes.by_name))!r}]). It takes: {', '.join(takes.by_name)}."
        )
    given = {name: examples[name] if name in examples else _example(name, takes.by_name[name]) for name in present}
    sizes = {name: dynamic.get(name, _sizes(takes.by_name[name], given[name])) for name in present}
    args = tuple(value for name, value in given.items() if name not in graph.reads)
    kwargs = {name: value for name, value in given.items() if name in graph.reads}
    module = _Plain(to_fx(graph, present))
    # What has no gradient here has none in the program either.
    with torch.no_grad():
        return torch.export.export(module, args, kwargs, dynamic_shapes=sizes)


def write_onnx(program: ExportedProgram, path: Path | str, options: Mapping[str, Any]) -> None:
    """Writes a program as ONNX, with torch's own exporter.

    Raises:
        ImportError: onnx and onnxscript are not installed.
    """
    if find_spec("onnxscript") is None:
        raise ImportError("ONNX is written with the libraries onnx and onnxscript: pip install suture[onnx].")
    torch.onnx.export(program, f=path, dynamo=True, **options)


class _Plain(nn.Module):
    """A graph module as any other module: torch interprets its own, and gives lists and dictionaries of other types."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__()
        self.training = module.training
        kept = module.state_dict()
        for name, child in children_of(module).items():
            self.add_module(name, child)
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            self.register_parameter(name, parameter)
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
            self.register_buffer(name, buffer, persistent=name in kept)
        self.forward = MethodType(type(module).forward, self)


def _example(name: str, structure: Any) -> Any:
    """Something like each input of a structure, with values."""

    def example(value: Value) -> Tensor:
        like = value.example_of(FIRST) if isinstance(value, Input) else value.example
        if not isinstance(like, Tensor):
            raise ValueError(
                f"The input {name!r} says no shape, so there is nothing to export the graph with. Give something like "
                f"what it will be: graph.export(examples={{{name!r}: ...}}). It is {describe(value)} here."
            )
        # Ids that are in every vocabulary, and masks that leave nothing out.
        fill = torch.ones if like.dtype == torch.bool else torch.zeros
        return fill(like.shape, dtype=like.dtype, device=like.device)

    return map_values(example, structure)


def _sizes(structure: Any, example: Any) -> Any:
    """Which dimensions of each tensor in an example are open, in the structure of it."""
    if isinstance(structure, Value):
        if not isinstance(example, Tensor):
            return None
        shape = structure.shape_wanted if isinstance(structure, Input) else None
        if shape is None:
            # Nothing is said of it, so torch finds out what the graph asks.
            return dict.fromkeys(range(example.dim()), Dim.AUTO)
        return {
            number: Dim(size) if isinstance(size, str) else Dim.DYNAMIC
            for number, size in enumerate(shape)
            if not isinstance(size, int)
        }
    if isinstance(structure, Mapping):
        inner = cast("Mapping[Any, Any]", structure)
        return {key: _sizes(inner[key], part) for key, part in cast("Mapping[Any, Any]", example).items()}
    parts = [_sizes(each, part) for each, part in zip(structure, example, strict=True)]
    return tuple(parts) if isinstance(structure, tuple) else parts
