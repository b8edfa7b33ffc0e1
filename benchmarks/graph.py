"""What a graph costs: the emitted function beside the same model written by hand, and the time to trace a model.

    python -m benchmarks.graph

A traced graph takes at most 1.05 times the hand-written module, on layers so small that nearly all the time is spent
between them, and a model of 30 blocks is traced in less than 1.5 seconds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.measure import duration, heading, ratio, take_turns
from suture import layers as sl
from suture.graph import Graph, Input, trace
from suture.models.backbone import Backbone
from suture.models.llama import LlamaConfig, build

WIDTH = 16
LAYERS = 200
BLOCKS = 30
ROUNDS = 60


class ByHand(nn.Module):
    """A list of layers and a loop in `forward`."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def compare_calls() -> None:
    layers = [sl.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    tree = sl.Chain(blocks=sl.Stack(*(sl.Chain(*layers[start : start + 10]) for start in range(0, LAYERS, 10))))
    graph = trace(tree, Input("x", shape=(None, WIDTH)))
    module = graph.to_fx()
    x = torch.randn(1, WIDTH)
    by_hand = ByHand(*layers)
    candidates: dict[str, Callable[[], object]] = {
        "by hand": lambda: by_hand(x),
        "by hand again": lambda: by_hand(x),
        "tree": lambda: tree(x),
        "graph": lambda: graph(x),
        "torch.fx": lambda: module(x),
    }
    with torch.inference_mode():
        times = take_turns(candidates, ROUNDS, calls=2)
    print(f"one call of {LAYERS} linear layers")
    for name, seconds in times.items():
        print(f"  {name:<16}{duration(statistics.median(seconds)):>10}{ratio(times, name, 'by hand'):>8.3f}")


def measure_tracing() -> None:
    config = LlamaConfig(320, 64, 128, BLOCKS, 4, 2, 16, 128, 1e-5, 1e4, None, False, False, tied=True)
    backbone, _ = build(config)
    first = seconds_to_trace(backbone)
    again = [seconds_to_trace(backbone) for _ in range(5)]
    graph = of(backbone)
    print(f"\na model of {BLOCKS} blocks, {len(graph.calls)} calls")
    print(f"  traced, first   {duration(first):>10}")
    print(f"  traced, warm    {duration(statistics.median(again)):>10}")
    start = time.perf_counter()
    _ = graph.program
    print(f"  code emitted    {duration(time.perf_counter() - start):>10}")
    start = time.perf_counter()
    _ = graph.to_fx()
    print(f"  torch.fx        {duration(time.perf_counter() - start):>10}")


def of(backbone: Backbone) -> Graph:
    return trace(backbone, *backbone.graph_inputs())


def seconds_to_trace(backbone: Backbone) -> float:
    start = time.perf_counter()
    _ = of(backbone)
    return time.perf_counter() - start


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(heading("What a graph costs"))
    compare_calls()
    measure_tracing()
