"""Generating with SmolLM2 in fp32, one row: Suture beside transformers, on the same weights, and beside the floor.

    python -m benchmarks.decode

The floor of one decoded token is what no implementation can go below: the model's weight matrices multiplied one
after another with one row, and nothing else.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import smollm2
from benchmarks.measure import Times, duration, heading, ratio, take_turns

PROMPT = 64
NEW = 32
LONG_PROMPT = 512
ROUNDS = 7


def floor(model: nn.Module) -> Callable[[], None]:
    """Each weight matrix times one row, for as many tokens as the others decode."""
    weights = [layer.weight for layer in model.modules() if isinstance(layer, nn.Linear)]
    rows = {weight.shape[1]: torch.randn(1, weight.shape[1]) for weight in weights}

    def multiply() -> None:
        for _ in range(NEW):
            for weight in weights:
                F.linear(rows[weight.shape[1]], weight)

    return multiply


def candidates(lm: Any, reference: Any) -> dict[str, Callable[[], Tensor]]:
    vocabulary = reference.config.vocab_size
    reference.generation_config.eos_token_id = None
    prompt = torch.randint(3, vocabulary, (1, PROMPT))
    long_prompt = torch.randint(3, vocabulary, (1, LONG_PROMPT))

    def by_suture(ids: Tensor, new: int) -> Tensor:
        return lm.generate(ids, max_new_tokens=new, stop_ids=[])

    def by_transformers(ids: Tensor, new: int) -> Tensor:
        return reference.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new,
            do_sample=False,
            pad_token_id=0,
        )

    made: dict[str, Callable[[], Tensor]] = {}
    for name, generate in (("suture", by_suture), ("transformers", by_transformers)):
        made[f"{name}, first"] = lambda generate=generate: generate(prompt, 1)
        made[f"{name}, all"] = lambda generate=generate: generate(prompt, 1 + NEW)
        made[f"{name}, prefill"] = lambda generate=generate: generate(long_prompt, 1)
    return made


def per_token(times: Times) -> Times:
    """Seconds of one decoded token in each round: what all tokens took, less the prompt and the first."""
    return {
        name: [
            (whole - first) / NEW for whole, first in zip(times[f"{name}, all"], times[f"{name}, first"], strict=True)
        ]
        for name in ("suture", "transformers")
    } | {"floor": [seconds / NEW for seconds in times["floor"]]}


def report(title: str, times: Times, tokens: int) -> None:
    print(f"{title:<36}{'one token':>11}{'tokens/s':>10}{'to transformers':>17}")
    for name, seconds in times.items():
        median = statistics.median(seconds)
        line = f"  {name:<34}{duration(median / tokens):>11}{tokens / median:>10.1f}"
        print(f"{line}{ratio(times, name, 'transformers'):>17.3f}")


def main() -> None:
    torch.manual_seed(0)
    print(heading("Generating with SmolLM2-135M, fp32, one row"))
    print("loading both ...", file=sys.stderr)
    lm, reference = smollm2.with_suture()(), smollm2.with_transformers()()
    with torch.inference_mode():
        made: dict[str, Callable[[], object]] = {**candidates(lm, reference), "floor": floor(reference)}
        same = torch.equal(*(made[f"{name}, all"]() for name in ("suture", "transformers")))  # pyright: ignore[reportArgumentType]
        print("measuring ...", file=sys.stderr)
        times = take_turns(made, ROUNDS)
    print(f"The {NEW} greedy tokens of both are {'the same' if same else 'DIFFERENT'}.\n")
    decode = per_token(times)
    report(f"decode, {NEW} tokens after {PROMPT}", decode, 1)
    print(f"  suture to the floor: {ratio(decode, 'suture', 'floor'):.3f}\n")
    prefill = {name: times[f"{name}, prefill"] for name in ("suture", "transformers")}
    report(f"prefill, {LONG_PROMPT} tokens", prefill, LONG_PROMPT)


if __name__ == "__main__":
    main()
