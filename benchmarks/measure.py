"""How the benchmarks measure: candidates take turns, and what is compared was measured in the same round.

A shared machine is sometimes fast and sometimes slow for seconds at a time. Ratios within a round hardly notice, and
the median of the rounds drops those that were disturbed in the middle.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping

import torch

Times = dict[str, list[float]]


def take_turns(candidates: Mapping[str, Callable[[], object]], rounds: int, calls: int = 1) -> Times:
    """Seconds per call of each candidate in each round. The order turns round by round; one more round warms up."""
    times: Times = {name: [] for name in candidates}
    names = list(candidates)
    for number in range(rounds + 1):
        start_with = number % len(names)
        for name in names[start_with:] + names[:start_with]:
            start = time.perf_counter()
            for _ in range(calls):
                candidates[name]()
            seconds = (time.perf_counter() - start) / calls
            if number > 0:
                times[name].append(seconds)
    return times


def ratio(times: Times, name: str, to: str) -> float:
    """The median over the rounds of what `name` took for each second of `to`."""
    return statistics.median(mine / other for mine, other in zip(times[name], times[to], strict=True))


def duration(seconds: float) -> str:
    """`0.0000123` is `'12.3 us'`."""
    for factor, unit in ((1, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.2f} {unit}"
    return f"{seconds * 1e6:.1f} us"


def heading(title: str) -> str:
    """A title, with the versions and the machine that the numbers below it belong to."""
    threads = f"{torch.get_num_threads()} of {os.cpu_count()} CPUs"
    machine = f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, {threads}"
    return f"\n{title}\n{'=' * len(title)}\n{machine}\n"
