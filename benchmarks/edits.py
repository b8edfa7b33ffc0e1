"""What an edit costs in a large tree: as many edits as there are leaves, and the undo of all.

    python -m benchmarks.edits

Law 10: an edit costs what it touches. So the time for each is to be the same at every size.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from benchmarks.measure import duration, heading
from suture import Edit
from suture import layers as sl
from suture.layers.recording import borrowing

SIZES = (1_000, 10_000)
ROUNDS = 1

EDITS: dict[str, Callable[[sl.Composite, nn.Module], Edit]] = {
    "replace": lambda parent, leaf: parent.replace(leaf, nn.Identity()),
    "insert": lambda parent, leaf: parent.insert_before(leaf, nn.Identity()),
    "wrap": lambda parent, leaf: parent.replace(leaf, sl.Chain(leaf)),
    "remove": lambda parent, leaf: parent.remove(leaf),
}


def flat(size: int) -> sl.Composite:
    return sl.Stack(*(nn.Linear(1, 1) for _ in range(size)))


def nested(size: int) -> sl.Composite:
    width = round(size**0.5)
    return sl.Stack(*(sl.Stack(*(nn.Linear(1, 1) for _ in range(width))) for _ in range(size // width)))


def seconds_each(model: sl.Composite, edit: Callable[[sl.Composite, nn.Module], Edit]) -> tuple[float, float]:
    """Seconds for each edit of every leaf, and for each undo."""
    leaves = [(parent, layer) for layer, parent in model.walk() if not isinstance(layer, sl.Composite)]
    gc.collect()
    gc.disable()  # it goes through all objects that live, of the tree as of everything else
    start = time.process_time()
    with borrowing():
        edits = [edit(parent, layer) for parent, layer in leaves]
    made = time.process_time()
    for each in edits:
        each.undo()
    undone = time.process_time()
    gc.enable()
    return (made - start) / len(leaves), (undone - made) / len(leaves)


def compare(name: str, make: Callable[[int], sl.Composite], edit: Callable[[sl.Composite, nn.Module], Edit]) -> None:
    models = [make(size) for size in SIZES]
    rounds = [[seconds_each(model, edit) for model in models] for _ in range(ROUNDS)]
    for what, which in (("", 0), (", undo", 1)):
        seconds = [statistics.median(taken[size][which] for taken in rounds) for size in range(len(SIZES))]
        growth = statistics.median(taken[-1][which] / taken[0][which] for taken in rounds)
        print(f"{name + what:<26}" + "".join(f"{duration(each):>14}" for each in seconds) + f"{growth:>14.2f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(heading("What an edit costs where every leaf is edited"))
    print(f"{'each of':<26}" + "".join(f"{size:>7} leaves" for size in SIZES) + "  last / first")
    for kind in (flat, nested):
        for operation, function in EDITS.items():
            compare(f"{operation}, {kind.__name__}", kind, function)
