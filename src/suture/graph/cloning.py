"""Copies of trees and graphs with weights of their own, and with other layers where that is wanted."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from suture.graph.calls import Call, Item
from suture.graph.graph import Graph
from suture.graph.rewiring import Again, settled
from suture.graph.running import Running
from suture.layers.composite import Composite
from suture.layers.frames import standing_in
from suture.layers.symbolic import seeing_plain_calls
from suture.surgery.selection import select
from suture.surgery.survey import Match

Replacement = Callable[[nn.Module], nn.Module | None]


def clone(model: nn.Module, replace: Replacement | Mapping[nn.Module, nn.Module] | None = None) -> Any:
    """A copy of a tree or a graph with weights of its own. Each layer is copied once, however often it is called.

    Args:
        model: A tree or a graph.
        replace: What stands in the copy in the place of a layer: a dictionary, or a function that gives None for
            layers that are copied as they are. Only layers that are one step of the graph are asked about.

    Returns:
        A graph for a graph. For a tree a tree, a deep copy; with `replace`, edited.

    Raises `ValueError` for a layer in the dictionary that is not one of the model, or is a composite.
    """
    chosen = _as_function(replace)
    model = settled(model) if isinstance(model, Graph) else model
    if isinstance(replace, Mapping):
        _refuse_unknown(model, cast("Mapping[nn.Module, nn.Module]", replace))
    if not isinstance(model, Graph):
        return _cloned_tree(model, chosen)
    given = {value: value for value in model.flat_inputs.values()}
    with standing_in(None), seeing_plain_calls():
        return model.like(Running(model, given, _Clone(model, chosen)).outputs())


def _as_function(replace: Replacement | Mapping[nn.Module, nn.Module] | None) -> Replacement:
    if isinstance(replace, Mapping):
        found = cast("Mapping[nn.Module, nn.Module]", replace)
        return lambda layer: found.get(layer)
    return (lambda layer: None) if replace is None else replace


def _refuse_unknown(model: nn.Module, replaced: Mapping[nn.Module, nn.Module]) -> None:
    layers = model.layers.values() if isinstance(model, Graph) else model.modules()
    known = {id(layer) for layer in layers if not isinstance(layer, Composite)}
    for layer in replaced:
        if id(layer) not in known:
            raise ValueError(
                f"clone(model, replace={{...}}) replaces layers of the model that are one step of it. Received, to be "
                f"replaced, another {type(layer).__name__}: {layer!r:.80}."
            )


def _cloned_tree(model: nn.Module, replace: Replacement) -> nn.Module:
    memo: dict[int, Any] = {}
    copied = copy.deepcopy(model, memo)
    replacements: dict[int, nn.Module] = {}
    for layer in model.modules():
        new = None if isinstance(layer, Composite) else replace(layer)
        if new is not None:
            replacements[id(memo[id(layer)])] = new

    def is_replaced(match: Match) -> bool:
        return id(match.layer) in replacements

    if replacements:
        select(copied, is_replaced).replace(lambda layer: replacements[id(layer)])
    return copied


class _Clone(Again):
    """Calls a copy of every layer, made once, or what replaces it."""

    def __init__(self, graph: Graph, replace: Replacement) -> None:
        super().__init__(graph)
        self.replace = replace
        self.copies: dict[int, nn.Module] = {}
        self.memo: dict[int, Any] = {}

    def layer_of(self, item: Item) -> nn.Module:
        layer = super().layer_of(item)
        if not isinstance(item, Call):
            return layer
        if id(layer) not in self.copies:
            new = self.replace(layer)
            # One memo, so that layers that share a tensor share one in the copy.
            self.copies[id(layer)] = copy.deepcopy(layer, self.memo) if new is None else new
        return self.copies[id(layer)]

    def call(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not call.is_layer:
            args, kwargs = pytree.tree_map_only(Tensor, lambda each: copy.deepcopy(each, self.memo), (args, kwargs))
        return super().call(call, args, kwargs)
