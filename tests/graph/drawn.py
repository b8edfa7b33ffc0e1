"""Models whose pictures are tested, small ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from suture import layers as sl
from suture.graph import Graph, Input, trace
from suture.graph.drawing.picture import Box, Picture
from suture.models.backbone import Backbone, TokenEmbedding

DIM = 8
TOKENS = Input("token_ids", shape=(None, None), dtype=torch.long)


class Scale(nn.Module):
    """Multiplies by a number of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        return input * self.factor


def block(window: int | None = None) -> sl.Chain:
    """A block of a decoder."""
    attend = sl.ScaledDotProductAttention(causal=True, window=window)
    heads = sl.SelfAttention(DIM, num_heads=2, causal=True, attend=attend)
    return sl.Chain(
        attention=sl.Residual(norm=sl.LayerNorm(DIM), heads=heads),
        feedforward=sl.Residual(norm=sl.LayerNorm(DIM), dense=sl.FeedForward(DIM, 4 * DIM)),
    )


def decoder(blocks: int = 12, windows: tuple[int | None, ...] = (None,)) -> Backbone:
    """A decoder in the manner of GPT-2; `windows` come in turn."""
    each = [block(windows[number % len(windows)]) for number in range(blocks)]
    return Backbone(embedding=TokenEmbedding(32, DIM), blocks=sl.Stack(*each), norm=sl.LayerNorm(DIM))


def traced(model: nn.Module) -> Graph:
    return trace(model, TOKENS)


def box_at(picture: Picture, path: str) -> Box:
    """The one box of the layer at a path."""
    (found,) = [box for box in picture.boxes if box.path == path and box.role != "repeat"]
    return found


def ends(picture: Picture, role: str) -> dict[str, Box]:
    return {box.name: box for box in picture.boxes if box.role == role}


def labels(picture: Picture, source: str, target: str) -> list[str]:
    """What the edges between two boxes say, known by their names."""
    return [edge.label for edge in picture.edges if (edge.source.name, edge.target.name) == (source, target)]


def names(boxes: Any) -> list[str]:
    return [box.name for box in boxes]
