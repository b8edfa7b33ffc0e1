"""Random trees of all composites, and what a tree computes, said a second time without Suture.

Every layer takes any number of (B, `WIDTH`) tensors and gives tensors of that shape, so that any edit leaves a tree
that can be called or fails in a way that the wiring explains.
"""

# Hypothesis draws values that have no static type.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from suture import layers as sl
from suture.layers.context import Read

WIDTH = 4

Draw = Callable[[st.SearchStrategy[Any]], Any]


def total(*tensors: Tensor) -> Tensor:
    """One tensor of `WIDTH` columns made from any number of tensors of any multiple of `WIDTH` columns."""
    folded = [tensor.unflatten(-1, (-1, WIDTH)).sum(-2) for tensor in tensors]
    return reduce(operator.add, folded)


class Shift(nn.Module):
    """A leaf with a buffer, which reads an entry of the context if there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Buffer(torch.randn(WIDTH))
        self.reads = {"more": Read("side", "shift", default=0.0)}

    def forward(self, *args: Tensor, more: Any) -> Tensor:
        return total(*args) + self.shift + more


class Mix(nn.Linear):
    """A leaf with parameters that takes any number of arguments."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)

    def forward(self, *args: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward(total(*args))


class Plain(nn.Module):
    """A plain module with modules of its own: a leaf to the tree."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def forward(self, *args: Tensor) -> Tensor:
        return self.inner(total(*args))


class Drop(nn.Dropout):
    """A leaf that tells the two modes apart."""

    def forward(self, *args: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward(total(*args))


def joined() -> sl.Lambda:
    return sl.Lambda(total)


LEAVES: tuple[Callable[[], nn.Module], ...] = (
    Mix,
    Mix,
    Shift,
    Plain,
    Drop,
    joined,
    sl.Identity,
    lambda: sl.GetArg(0),
    lambda: sl.UseContext("side", "given", default=torch.ones(1, WIDTH)),
    lambda: sl.SetContext("side", "given"),
)
KINDS: tuple[type[sl.Composite], ...] = (
    sl.Chain,
    sl.Chain,
    sl.Stack,
    sl.Sum,
    sl.Product,
    sl.Residual,
    sl.Passthrough,
    sl.Parallel,
    sl.Concatenate,
    sl.Distribute,
)


def leaf(draw: Draw) -> nn.Module:
    return draw(st.sampled_from(LEAVES))()


def part(draw: Draw, depth: int, shared: list[nn.Module] | None = None) -> nn.Module:
    """A layer, with up to `depth` levels of composites. Leaves may stand at several places: `shared` collects them."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        if shared and draw(st.integers(0, 5)) == 0:
            return draw(st.sampled_from(shared))
        made = leaf(draw)
        if shared is not None and not isinstance(made, sl.Composite):
            shared.append(made)
        return made
    kind: type[sl.Composite] = draw(st.sampled_from(KINDS))
    children = [part(draw, depth - 1, shared) for _ in range(draw(st.integers(0, 3)))]
    if draw(st.booleans()) and kind is not sl.Stack:
        return kind({f"part{number}": child for number, child in enumerate(children)})
    return kind(*children)


def tree(draw: Draw) -> sl.Composite:
    """A root of two to four parts."""
    shared: list[nn.Module] = []
    kind: type[sl.Composite] = draw(st.sampled_from((sl.Chain, sl.Stack, sl.Sum)))
    model = kind(*(part(draw, 2, shared) for _ in range(draw(st.integers(2, 4)))))
    return model.train(draw(st.booleans()))


# What a tree computes


class WrongCallError(Exception):
    """A call that cannot be made; holds the type of what Suture raises."""


def evaluate(layer: nn.Module, args: tuple[Any, ...], entries: dict[tuple[str, str], Any]) -> Any:
    """The result of a tree by its definition: slow, and without any of Suture's own calling code."""
    if not isinstance(layer, sl.Composite):
        reads: dict[str, Read] = getattr(layer, "reads", {})
        values = {name: entries.get((read.scope, read.key), read.default) for name, read in reads.items()}
        return layer.forward(*args, **values)
    one = args[0] if len(args) == 1 else args
    match layer:
        case sl.SetContext():
            entries[layer.writes[0]] = one
            return one
        case sl.Residual():
            if not args:
                raise TypeError
            return combined(operator.add, [args[0], in_order(layer, args, entries)])
        case sl.Passthrough():
            in_order(layer, args, entries)
            return one
        case sl.Chain():
            return in_order(layer, args, entries)
        case sl.Distribute():
            if len(layer) != len(args):
                raise TypeError
            return tuple(evaluate(child, (arg,), entries) for child, arg in zip(layer, args, strict=True))
        case _:
            branches = [evaluate(child, args, entries) for child in layer]
    match layer:
        case sl.Parallel():
            return tuple(branches)
        case sl.Sum():
            return combined(operator.add, branches)
        case sl.Product():
            return combined(operator.mul, branches)
        case sl.Concatenate():
            return torch.cat(branches, dim=-1)
        case _:
            raise NotImplementedError(type(layer).__name__)


def in_order(layer: sl.Composite, args: tuple[Any, ...], entries: dict[tuple[str, str], Any]) -> Any:
    result: Any = args[0] if len(args) == 1 else args
    for child in layer:
        result = evaluate(child, args, entries)
        args = result if isinstance(result, tuple) else (result,)
    return result


def combined(operation: Callable[[Any, Any], Any], branches: list[Any]) -> Any:
    if not branches or any(isinstance(branch, tuple) for branch in branches):
        raise TypeError
    return reduce(operation, branches)
