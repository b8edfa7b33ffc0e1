"""What structure costs: calls of a `Chain` beside the same model written by hand, and edits of small and large trees.

    python -m benchmarks.call

Law 10: a tree call costs no more than the hand-written module, an edit costs what it touches.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from benchmarks.measure import Times, duration, heading, ratio, take_turns
from suture import layers as sl

WIDTH = 16
LAYERS = 200
BLOCK = 10


class HandWritten(nn.Module):
    """What a `Chain` is without Suture: a list of layers and a loop in `forward`."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def in_blocks(layers: list[nn.Linear]) -> list[list[nn.Linear]]:
    return [layers[start : start + BLOCK] for start in range(0, len(layers), BLOCK)]


def row(name: str, times: Times, candidate: str, to: str) -> str:
    mine, other = statistics.median(times[candidate]), statistics.median(times[to])
    return f"{name:<42}{duration(mine):>11}{duration(other):>11}{ratio(times, candidate, to):>9.3f}"


def compare_calls() -> None:
    linears = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    own = [sl.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    x = torch.randn(1, WIDTH)
    models: dict[str, nn.Module] = {
        "flat": sl.Chain(*linears),
        "flat, own": sl.Chain(*own),
        "flat by hand": HandWritten(linears),
        "nested": sl.Chain(*(sl.Chain(*block) for block in in_blocks(linears))),
        "nested by hand": HandWritten(HandWritten(block) for block in in_blocks(linears)),
        "deep": deep_chain(linears[:80]),
        "deep by hand": deep_by_hand(linears[:80]),
    }
    with torch.inference_mode():
        times = take_turns({name: (lambda model=model: model(x)) for name, model in models.items()}, 60, calls=3)
    print(f"{'one call':<42}{'Chain':>11}{'by hand':>11}{'ratio':>9}")
    print(row(f"{LAYERS} nn.Linear({WIDTH}, {WIDTH}), flat", times, "flat", "flat by hand"))
    print(row(f"{LAYERS} sl.Linear({WIDTH}, {WIDTH}), flat", times, "flat, own", "flat by hand"))
    print(row(f"the first in {LAYERS // BLOCK} blocks of {BLOCK}", times, "nested", "nested by hand"))
    print(row("80 of them, each one level deeper", times, "deep", "deep by hand"))


def deep_chain(linears: list[nn.Linear]) -> nn.Module:
    model = sl.Chain(linears[0])
    for linear in linears[1:]:
        model = sl.Chain(linear, model)
    return model


def deep_by_hand(linears: list[nn.Linear]) -> nn.Module:
    model = HandWritten([linears[0]])
    for linear in linears[1:]:
        model = HandWritten([linear, model])
    return model


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
