"""A steered graph as a program of torch.export: saved, loaded and run without Suture."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from suture import Input, check, rewire
from suture import layers as sl


def model() -> sl.Chain:
    """Two small blocks of a transformer, on hidden states (B, T, 16)."""
    return sl.Chain(
        blocks=sl.Stack(
            *(
                sl.Chain(
                    attention=sl.Residual(norm=sl.RMSNorm(16), heads=sl.SelfAttention(16, num_heads=2, causal=True)),
                    feedforward=sl.Residual(norm=sl.RMSNorm(16), gated=sl.GatedFeedForward(16, 32)),
                )
                for _ in range(2)
            )
        ),
        head=sl.Linear(16, 4),
    )


@torch.no_grad()
def main() -> None:
    """Rewires a model, exports the graph with open sizes, and runs the file that was saved."""
    torch.manual_seed(0)
    tree = model().eval()
    print(check(tree, (2, 5, 16)).output)

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        y = layer(*args, **kwargs)
        return y + 0.5 if isinstance(layer, sl.GatedFeedForward) else y

    graph = rewire(tree, call, inputs=Input("x", shape=("rows", "tokens", 16), dtype=torch.float32))
    print(graph.code)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "steered.pt2"
        torch.export.save(graph.export(), path)
        program: Any = torch.export.load(path).module()
        x = torch.randn(3, 7, 16)
        received: Tensor = program(x)
        print(f"the program differs from the graph by {(received - graph(x)).abs().max().item():.0e} at most")


if __name__ == "__main__":
    main()
