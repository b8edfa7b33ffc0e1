"""What structure costs: trees beside the same models written by hand, in `nn.Sequential` and in Refiners; and edits.

    python -m benchmarks.composition

Law 10: a tree call costs no more than the hand-written module, an edit costs what it touches. The layers are so small
that nearly all the time is spent between them. Refiners is compared where it can be imported: its package installed
without its dependencies, and beside it pillow and jaxtyping, in a folder on `PYTHONPATH`.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measure import duration, heading, ratio, take_turns
from suture import layers as sl

WIDTH = 16
LAYERS = 200
BLOCK = 10
DEPTH = 80
ROUNDS = 150


# The ways of writing a model


class Suture:
    """Trees."""

    linear = sl.Linear
    chain = chain_with_side = sl.Chain
    sum, residual = sl.Sum, sl.Residual

    def block_with_side(self, layers: list[nn.Module], reader: nn.Module, *inner: nn.Module) -> nn.Module:
        return sl.Chain(*layers, reader, *inner)

    def parallel(self, one: nn.Module, other: nn.Module) -> nn.Module:
        return sl.Chain(sl.Parallel(one, other), Join())

    def with_side(self, one: nn.Module, other: nn.Module) -> nn.Module:
        return sl.Sum(one, sl.Chain(sl.UseContext("side", "x"), other))

    def call(self, model: nn.Module, x: Tensor, side: Tensor | None) -> object:
        return model(x) if side is None else model(x, context={"side": {"x": side}})


class ByHand:
    """Modules with a `forward`; a side input is an argument from the top to the bottom."""

    linear = nn.Linear

    def chain(self, *layers: nn.Module) -> nn.Module:
        return Loop(layers)

    def chain_with_side(self, *layers: nn.Module) -> nn.Module:
        return LoopWithSide(layers)

    def block_with_side(self, layers: list[nn.Module], reader: nn.Module, *inner: nn.Module) -> nn.Module:
        return BlockWithSide(layers, reader, *inner)

    def sum(self, one: nn.Module, other: nn.Module) -> nn.Module:
        return AddTwo(one, other)

    def residual(self, inner: nn.Module) -> nn.Module:
        return AddInput(inner)

    def parallel(self, one: nn.Module, other: nn.Module) -> nn.Module:
        return JoinTwo(one, other)

    def with_side(self, one: nn.Module, other: nn.Module) -> nn.Module:
        return AddSide(one, other)

    def call(self, model: nn.Module, x: Tensor, side: Tensor | None) -> object:
        return model(x) if side is None else model(x, side)


class Sequential(ByHand):
    """torch's own loop around modules written by hand; it has no side inputs."""

    def chain(self, *layers: nn.Module) -> nn.Module:
        return nn.Sequential(*layers)


class Refiners:
    """https://github.com/finegrain-ai/refiners, whose layers stand in its trees only."""

    def __init__(self, layers: ModuleType) -> None:
        self._layers: Any = layers
        self.linear, self.chain, self.chain_with_side = self._layers.Linear, self._layers.Chain, self._layers.Chain
        self.sum, self.residual = self._layers.Sum, self._layers.Residual

        class TheirJoin(layers.Module):
            def forward(self, one: Tensor, other: Tensor) -> Tensor:
                return one + other

        self._join = TheirJoin

    def block_with_side(self, layers: list[Any], reader: Any, *inner: Any) -> Any:
        return self._layers.Chain(*layers, reader, *inner)

    def parallel(self, one: Any, other: Any) -> Any:
        return self._layers.Chain(self._layers.Parallel(one, other), self._join())

    def with_side(self, one: Any, other: Any) -> Any:
        return self._layers.Sum(one, self._layers.Chain(self._layers.UseContext("side", "x"), other))

    def call(self, model: Any, x: Tensor, side: Tensor | None) -> object:
        if side is not None:
            model.set_context("side", {"x": side})
        return model(x)


def refiners() -> Refiners | None:
    """None where it cannot be imported."""
    try:
        with warnings.catch_warnings(action="ignore"):
            import refiners.fluxion.layers as layers  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    return Refiners(layers)


class Loop(nn.Module):
    """What a `Chain` is without Suture: a list of layers and a loop in `forward`."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class LoopWithSide(nn.Module):
    """The same for layers that take a side input."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, side: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, side)
        return x


class BlockWithSide(nn.Module):
    """Layers, one that takes the side input, and perhaps a block inside that does so too."""

    def __init__(self, layers: Iterable[nn.Module], reader: nn.Module, *inner: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.reader = reader
        self.inner = nn.ModuleList(inner)

    def forward(self, x: Tensor, side: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        x = self.reader(x, side)
        for block in self.inner:
            x = block(x, side)
        return x


class AddTwo(nn.Module):
    """A sum."""

    def __init__(self, one: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.one = one
        self.other = other

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) + self.other(x)


class AddInput(nn.Module):
    """A residual branch."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Join(nn.Module):
    """A leaf that takes two arguments, to come after a `Parallel`."""

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        return one + other


class Both(nn.Module):
    """Two branches, side by side."""

    def __init__(self, one: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.one = one
        self.other = other

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.one(x), self.other(x)


class JoinTwo(nn.Module):
    """Two branches and what joins them."""

    def __init__(self, one: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.both = Both(one, other)
        self.join = Join()

    def forward(self, x: Tensor) -> Tensor:
        return self.join(*self.both(x))


class AddSide(nn.Module):
    """A sum with a branch that sees the side input."""

    def __init__(self, one: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.one = one
        self.branch = SideBranch(other)

    def forward(self, x: Tensor, side: Tensor) -> Tensor:
        return self.one(x) + self.branch(x, side)


class SideBranch(nn.Module):
    """A branch of a layer that sees the side input instead."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, side: Tensor) -> Tensor:
        return self.inner(side)


# The models, each written once for all ways


def layers(way: Any, kind: str, count: int) -> list[Any]:
    """So many layers of a kind; each holds one linear layer, or two."""
    if kind == "linear":
        return [way.linear(WIDTH, WIDTH) for _ in range(count)]
    inner = 1 if kind == "residual" else 2
    return [getattr(way, kind)(*(way.linear(WIDTH, WIDTH) for _ in range(inner))) for _ in range(count)]


def flat(way: Any, kind: str) -> Any:
    return (way.chain_with_side if kind == "with_side" else way.chain)(*layers(way, kind, LAYERS))


def nested(way: Any) -> Any:
    return way.chain(*(way.chain(*layers(way, "linear", BLOCK)) for _ in range(LAYERS // BLOCK)))


def deep(way: Any) -> Any:
    model = way.chain(*layers(way, "linear", PER_LEVEL[0]))
    for count in PER_LEVEL[1:]:
        model = way.chain(*layers(way, "linear", count), model)
    return model


def nested_with_context(way: Any) -> Any:
    """Two of the linear layers of each block are added up, and one of them is given the side input."""
    blocks = LAYERS // BLOCK
    return way.chain_with_side(*(way.block_with_side(*with_reader(way, BLOCK)) for _ in range(blocks)))


def deep_with_context(way: Any) -> Any:
    """The same for each level."""
    model = way.block_with_side(*with_reader(way, PER_LEVEL[0]))
    for count in PER_LEVEL[1:]:
        model = way.block_with_side(*with_reader(way, count), model)
    return model


def with_reader(way: Any, linears: int) -> tuple[list[Any], Any]:
    return layers(way, "linear", linears - 2), *layers(way, "with_side", 1)


PER_LEVEL = [LAYERS * (level + 1) // DEPTH - LAYERS * level // DEPTH for level in range(DEPTH)]
"""As many linear layers as elsewhere, spread over the levels."""
NESTED, DEEP = f"nested {BLOCK} x {LAYERS // BLOCK}", f"at depth {DEPTH}"
ROWS: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "Linear, flat": (lambda way: flat(way, "linear"), False),
    f"Linear, {NESTED}": (nested, False),
    f"Linear, {DEEP}": (deep, False),
    f"Linear, {NESTED}, a context": (nested_with_context, True),
    f"Linear, {DEEP}, a context": (deep_with_context, True),
    "Sum": (lambda way: flat(way, "sum"), False),
    "Residual": (lambda way: flat(way, "residual"), False),
    "Parallel": (lambda way: flat(way, "parallel"), False),
    "UseContext": (lambda way: flat(way, "with_side"), True),
}
"""How the model of a row is built, and whether it reads a context: in each block, on each level, or in each layer."""


def compare_calls() -> None:
    ways: dict[str, Any] = {"by hand": ByHand(), "Suture": Suture(), "Sequential": Sequential(), "Refiners": refiners()}
    x, side = torch.randn(1, WIDTH), torch.randn(1, WIDTH)
    print(f"{f'one call of {LAYERS}':<34}" + "".join(f"{name:>12}" for name in ways))
    for row, (build, reads_context) in ROWS.items():
        given = side if reads_context else None
        present = {name: way for name, way in ways.items() if way and not (reads_context and name == "Sequential")}
        with torch.inference_mode():
            times = take_turns({name: caller(way, build(way), x, given) for name, way in present.items()}, ROUNDS)
        shown = [duration(statistics.median(times["by hand"]))]
        shown += [f"{ratio(times, name, 'by hand'):.2f}" if name in times else "-" for name in list(ways)[1:]]
        print(f"{row:<34}" + "".join(f"{each:>12}" for each in shown))
    if ways["Refiners"] is None:
        print("Refiners is not present.")


def caller(way: Any, model: Any, x: Tensor, side: Tensor | None) -> Callable[[], object]:
    return lambda: way.call(model, x, side)


# Edits


def compare_edits() -> None:
    sizes = (100, 1_000, 10_000)
    print(f"\n{'one edit of a tree of':<22}" + "".join(f"{size:>9} layers" for size in sizes) + "  last / first")
    trees = [tree(size) for size in sizes]
    for name, edit in (("insert and undo", insert_and_undo), ("replace and undo", replace_and_undo)):
        seconds = [seconds_per_edit(edit, model) for model in trees]
        print(f"{name:<22}" + "".join(f"{duration(s):>16}" for s in seconds) + f"{seconds[-1] / seconds[0]:>14.2f}")


def tree(size: int) -> sl.Chain:
    blocks = sl.Stack(*(sl.Chain(*(nn.Linear(1, 1) for _ in range(BLOCK))) for _ in range(size // BLOCK)))
    return sl.Chain(blocks=blocks)


def insert_and_undo(block: sl.Chain) -> None:
    block.insert(3, nn.Identity()).undo()


def replace_and_undo(block: sl.Chain) -> None:
    block.replace(block[3], nn.Identity()).undo()


def seconds_per_edit(edit: Callable[[sl.Chain], None], model: sl.Chain) -> float:
    """The median of many: an edit and its undo, in the block in the middle."""
    middle = len(model.layer("blocks", sl.Stack)) // 2
    block = model.layer(f"blocks.{middle}", sl.Chain)
    seconds: list[float] = []
    for _ in range(200):
        start = time.perf_counter()
        edit(block)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(heading("What structure costs"))
    compare_calls()
    compare_edits()
