"""A graph as one compiled function, which follows the edits of its layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from suture.graph.input import Input

if TYPE_CHECKING:
    from suture.graph.graph import Graph

_EDITS = 64
"""How many structures of one graph are kept compiled. torch keeps 8 unless told otherwise, and then gives up."""


def compiled(graph: Graph, options: dict[str, Any]) -> Callable[..., Any]:
    """The function that runs a graph, compiled, with the value of every single input as its arguments.

    It is compiled at the first call, and again when a layer of another structure stands at a path. Sizes that the
    inputs leave open are dynamic from the start, so that no length of a prompt is compiled for itself.
    """
    # The compiler takes seconds to import, and most calls of graphs are not compiled.
    from torch._dynamo.decorators import maybe_mark_dynamic

    chosen: dict[str, Any] = {"fullgraph": True, "recompile_limit": _EDITS} | options
    function: Callable[..., Any] = torch.compile(graph.program.function, **chosen)
    dynamic = [_open_dimensions(value) for value in graph.flat_inputs.values()]
    if options.get("dynamic") is not None:
        return function

    def run(*given: Any) -> Any:
        for value, dimensions in zip(given, dynamic, strict=True):
            if isinstance(value, Tensor) and dimensions != []:
                maybe_mark_dynamic(value, list(range(value.dim())) if dimensions is None else dimensions)
        return function(*given)

    return run


def _open_dimensions(value: object) -> list[int] | None:
    """Which dimensions of an input are open; None for all, where it says no shape."""
    shape = value.shape_wanted if isinstance(value, Input) else None
    return None if shape is None else [number for number, size in enumerate(shape) if not isinstance(size, int)]
