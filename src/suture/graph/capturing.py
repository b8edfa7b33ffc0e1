"""Looking at what layers give, and changing it, while a model runs.

On trees and graphs every call of a layer is seen, at the place where it is made; inside plain torch modules, hooks
see the calls of a module.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from suture.graph.graph import Graph
from suture.graph.intercepted import GraphPlace
from suture.layers.intercepting import current_place, intercept
from suture.surgery.criteria import Criteria
from suture.surgery.selection import select
from suture.surgery.survey import Match

Change = Callable[[Any], Any] | Tensor


class Captured(Mapping[str, Any]):
    """What layers gave, by path; any end of a path that is unique will do.

    What a layer gave in several calls of the model, as in generation, is joined along the tokens, which are the last
    dimension but one; `calls` has the results one by one.

    Raises `KeyError` for a path that was not captured, `ValueError` where results of several calls cannot be joined.
    """

    def __init__(self, paths: tuple[str, ...], gradients: bool) -> None:
        self._results: dict[str, list[Any]] = {path: [] for path in paths}
        self._gradients = gradients

    def calls(self, path: str) -> list[Any]:
        """What the layer gave in each call, in order."""
        found = [each for each in self._results if each == path or each.endswith(f".{path}")]
        if path in found or len(found) == 1:
            return self._results[path if path in found else found[0]]
        if found:
            raise KeyError(f"Several captured paths end in {path!r}: {', '.join(found[:4])}. Give more of it.")
        raise KeyError(f"{path!r} was not captured. Captured are: {', '.join(list(self._results)[:8])}.")

    def __getitem__(self, path: str) -> Any:
        results = self.calls(path)
        if not results:
            raise KeyError(f"{path!r} has not been called in this block.")
        if len(results) == 1:
            return results[0]
        if not all(isinstance(each, Tensor) and each.dim() > 1 for each in results):
            raise ValueError(
                f"{path!r} was called {len(results)} times and gave no tensors with tokens to join. "
                f"The results one by one: .calls({path!r})."
            )
        return torch.cat(results, dim=-2)

    def gradient(self, path: str) -> Tensor | None:
        """The gradient of what the layer gave, after a backward pass; for `capture(..., gradients=True)`."""
        if not self._gradients:
            raise ValueError("Gradients were not asked for: capture(model, ..., gradients=True).")
        result = self[path]
        return result.grad if isinstance(result, Tensor) else None

    def __iter__(self) -> Iterator[str]:
        return (path for path, results in self._results.items() if results)

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __repr__(self) -> str:
        lines = (
            f"{path!r}: {len(results)} x {_look(results[0])}" for path, results in self._results.items() if results
        )
        return f"Captured({{{', '.join(lines)}}})"

    def add(self, path: str, result: Any) -> None:
        """Takes down what a layer gave."""
        if self._gradients:
            for tensor in pytree.tree_leaves(result):
                if isinstance(tensor, Tensor) and tensor.requires_grad:
                    tensor.retain_grad()
        else:
            result = pytree.tree_map_only(Tensor, Tensor.detach, result)
        self._results[path].append(result)


@contextmanager
def capture(model: nn.Module, *criteria: Criteria, gradients: bool = False) -> Generator[Captured]:
    """Takes down what layers give in the calls of a block, also of `generate`.

    Args:
        model: A tree, a graph, or any torch module.
        criteria: Which layers, as in `select`.
        gradients: Whether the results are kept with their graph, to be differentiated through, and with their
            gradients after a backward pass. Otherwise they are detached.

    Raises `SelectionError` where nothing is selected. In a function compiled by torch it is an error: make the wanted
    values outputs of a graph instead, `Graph(inputs=g.inputs, outputs=(g.outputs, g["blocks.3"].output))`.

    Example:
        >>> from suture import layers as sl
        >>> from suture import capture
        >>> model = sl.Chain(up=sl.Linear(2, 4), down=sl.Linear(4, 2))
        >>> with capture(model, "up") as seen:
        ...     _ = model(torch.ones(3, 2))
        >>> seen["up"].shape
        torch.Size([3, 4])
    """
    matches = select(model, *criteria).matches
    captured = Captured(tuple(match.path for match in matches), gradients)

    def take_down(path: str, result: Any) -> Any:
        captured.add(path, result)
        return result

    with _seen(model, dict.fromkeys(matches, take_down)):
        yield captured


@contextmanager
def patch(model: nn.Module, changes: Mapping[str, Change]) -> Generator[None]:
    """Changes what layers give in the calls of a block.

    Args:
        model: A tree, a graph, or any torch module.
        changes: By a pattern of paths: a function of what the layer gives, or a tensor to be given instead.

    Raises `SelectionError` where a pattern selects nothing, `ValueError` where two select one layer.

    Example:
        >>> from suture import layers as sl
        >>> from suture import patch
        >>> model = sl.Chain(up=sl.Linear(2, 4), down=sl.Linear(4, 2, bias=False))
        >>> with patch(model, {"up": lambda y: y * 0}):
        ...     model(torch.ones(1, 2))
        tensor([[0., 0.]], grad_fn=<MmBackward0>)
    """
    wanted: dict[Match, Callable[[str, Any], Any]] = {}
    places: dict[int, str] = {}
    for pattern, change in changes.items():
        for match in select(model, pattern).matches:
            if match.span.start in places:
                raise ValueError(f"{match.path!r} is changed by {places[match.span.start]!r} and by {pattern!r}.")
            places[match.span.start] = pattern
            wanted[match] = _changing(change)
    with _seen(model, wanted):
        yield


def _changing(change: Change) -> Callable[[str, Any], Any]:
    def changed(path: str, result: Any) -> Any:
        if not isinstance(change, Tensor):
            return change(result)
        if isinstance(result, Tensor) and result.shape != change.shape:
            raise ValueError(
                f"{path!r} gives {tuple(result.shape)}. Received in its stead: a tensor of {tuple(change.shape)}."
            )
        return change

    return changed


@contextmanager
def _seen(model: nn.Module, wanted: Mapping[Match, Callable[[str, Any], Any]]) -> Generator[None]:
    """Has what each match gives go through its function, which is told the path."""
    modules = cast("Iterator[tuple[str, nn.Module]]", model.named_modules())
    graphs = [(name, module) for name, module in modules if isinstance(module, Graph)]
    by_place: dict[object, tuple[str, Callable[[str, Any], Any]]] = {}
    with ExitStack() as open_blocks:
        for match, function in wanted.items():
            place = match.slot or _in_graph(match.path, graphs)
            if place is not None:
                by_place[place] = (match.path, function)
            else:
                hook = match.layer.register_forward_hook(_hook(match.path, function))
                open_blocks.callback(hook.remove)

        def call(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
            path, function = by_place.get(current_place(), ("", None))
            result = layer(*args, **kwargs)
            return result if function is None else function(path, result)

        if by_place:
            open_blocks.enter_context(intercept(call))
        yield


def _in_graph(path: str, graphs: list[tuple[str, Graph]]) -> GraphPlace | None:
    for around, graph in graphs:
        if not around or path.startswith(f"{around}."):
            return GraphPlace(graph, path.removeprefix(f"{around}.") if around else path)
    return None


def _hook(path: str, function: Callable[[str, Any], Any]) -> Callable[..., Any]:
    def hook(module: nn.Module, args: Any, result: Any) -> Any:
        return function(path, result)

    return hook


def _look(result: Any) -> str:
    return f"{tuple(result.shape)}" if isinstance(result, Tensor) else type(cast("object", result)).__name__
