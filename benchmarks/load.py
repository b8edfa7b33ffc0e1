"""Loading SmolLM2 from its GGUF file: seconds beside transformers, and the peak of memory beside the model's size.

    python -m benchmarks.load

Each load is measured in a process of its own. Time is that of the call, without the import of the library. Memory is
the most the process ever held, imports included, less what an interpreter holds that has imported torch and nothing
else; it is given in sizes of the model in fp32.
"""

from __future__ import annotations

import functools
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks import smollm2
from benchmarks.measure import duration, heading, ratio

ROUNDS = 3
LOADERS: dict[str, Callable[[], Callable[[], Any]]] = {
    "suture, fp32": smollm2.with_suture,
    "suture, bf16": functools.partial(smollm2.with_suture, torch.bfloat16),
    "transformers, fp32": smollm2.with_transformers,
    "transformers, fp32, no tokenizer": functools.partial(smollm2.with_transformers, tokenizer=False),
}
BARE = "bare interpreter with torch"


def measure_here(name: str) -> dict[str, float]:
    """One load, in the process that is measured."""
    seconds, parameters = 0.0, 0
    if name != BARE:
        load = LOADERS[name]()
        start = time.perf_counter()
        model = load()
        seconds = time.perf_counter() - start
        parameters = sum(parameter.numel() for parameter in model.parameters())
    return {"seconds": seconds, "bytes": peak_memory(), "parameters": parameters}


def peak_memory() -> int:
    """The most bytes this process ever held. Linux counts in KiB, macOS in bytes."""
    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def measure_elsewhere(name: str) -> dict[str, float]:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.load", name]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main() -> None:
    print(heading("Loading SmolLM2-135M from its GGUF file (Q4_1, 93 MB)"))
    names = [BARE, *LOADERS]
    rounds: list[dict[str, dict[str, float]]] = []
    for number in range(ROUNDS):
        print(f"round {number + 1} of {ROUNDS} ...", file=sys.stderr)
        rounds.append({name: measure_elsewhere(name) for name in (names if number % 2 == 0 else names[::-1])})
    times = {name: [results[name]["seconds"] for results in rounds] for name in LOADERS}
    size = 4 * rounds[0]["suture, fp32"]["parameters"]
    print(f"{'':<34}{'time':>10}{'to transformers':>17}{'memory':>10}{'to size':>9}")
    for name in LOADERS:
        above = statistics.median(results[name]["bytes"] - results[BARE]["bytes"] for results in rounds)
        print(
            f"{name:<34}{duration(statistics.median(times[name])):>10}{ratio(times, name, 'transformers, fp32'):>17.2f}"
            f"{above / 1e6:>7.0f} MB{above / size:>9.2f}"
        )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure_here(sys.argv[1])))
    else:
        main()
