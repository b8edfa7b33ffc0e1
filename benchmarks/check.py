"""How long a check takes: a Llama of 7 billion parameters on the meta device, without memory and arithmetic.

python -m benchmarks.check
"""

from __future__ import annotations

import time

import torch

from benchmarks.measure import duration, heading
from suture import check
from suture import layers as sl
from suture.models.llama import LlamaConfig, build

CONFIG = LlamaConfig(
    vocabulary_size=32_000,
    embedding_dim=4096,
    feedforward_dim=11_008,
    num_blocks=32,
    num_heads=32,
    num_key_value_heads=32,
    head_dim=128,
    max_positions=4096,
    norm_epsilon=1e-5,
    rotary_base=10_000.0,
    rotary_scaling=None,
    attention_bias=False,
    feedforward_bias=False,
    tied=False,
)
TOKENS = 2048


def main() -> None:
    with torch.device("meta"):
        backbone, head = build(CONFIG)
    model = sl.Chain(backbone=backbone, head=head)
    token_ids = torch.empty(1, TOKENS, dtype=torch.long, device="meta")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{parameters / 1e9:.1f} billion parameters, {len(list(model.places()))} layers, {TOKENS} tokens")
    for which in ("the first check of the process", "another"):
        start = time.perf_counter()
        checked = check(model, token_ids)
        print(f"{which:<32}{duration(time.perf_counter() - start):>10}")
    print(f"\nreturns {tuple(checked.output.shape)}, {checked.output.dtype}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(heading("What a check costs"))
    main()
