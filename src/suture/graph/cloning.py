"""Copies of trees and graphs with weights of their own, and with other layers where that is wanted."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import nn

from suture.graph.graph import Graph
from suture.graph.rewiring import again, settled
from suture.layers.composite import Composite
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
    copied = copy.deepcopy(model)
    for path, new in _replacements(model.layers, chosen).items():
        around, _, name = path.rpartition(".")
        copied.get_submodule(around).register_module(name, new)
    # With the inputs that the model has, which belong to whoever made them.
    given = dict(zip(copied.flat_inputs.values(), model.flat_inputs.values(), strict=True))
    return copied.like(again(copied, given), model.inputs)


def _replacements(layers: Mapping[str, nn.Module], replace: Replacement) -> dict[str, nn.Module]:
    """What stands at paths in the copy; each layer is asked about once, however often it is there."""
    each = {id(layer): layer for layer in layers.values()}
    new = {key: replacement for key, layer in each.items() if (replacement := replace(layer)) is not None}
    return {path: new[id(layer)] for path, layer in layers.items() if id(layer) in new}


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
