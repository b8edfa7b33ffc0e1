"""A language model as the decoding loop sees it: all tokens so far in, the logits of the next one out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from suture.generation.checks import ensure_integer
from suture.generation.function_backbone import FunctionBackbone, positions_of
from suture.layers import Read

if TYPE_CHECKING:
    from suture.generation.causal_lm import CausalLM


class LastPositions(nn.Module):
    """Keeps the last `("outputs", "last_positions")` positions of hidden states (B, T, D), or all of them.

    Only the last position predicts the next token, and the head that follows is as large as several blocks.

    >>> LastPositions()(torch.zeros(2, 5, 3), last_positions=1).shape
    torch.Size([2, 1, 3])
    """

    def __init__(self) -> None:
        super().__init__()
        self.reads = {"last_positions": Read("outputs", "last_positions", default=None)}

    def forward(self, hidden: Tensor, last_positions: int | None = None) -> Tensor:
        if last_positions is None:
            return hidden
        ensure_integer("last_positions", last_positions, least=1)
        return hidden[..., -last_positions:, :]


class NextToken:
    """The logits (B, V) of the next token, with a cache where the model takes one.

    Of the model's inputs it gives those that are needed: a padding mask where there is padding, a cache where the
    model takes one, and positions to a function that asks for them.

    Args:
        lm: The model.
        batch: B, the rows.
        length: The most tokens that a row is ever given, padding included.
        padded: Whether any row is padded.
    """

    def __init__(self, lm: CausalLM, batch: int, length: int, padded: bool) -> None:
        inputs = {read.key for read in lm.context_inputs if read.scope == "inputs"}
        if padded and "padding_mask" not in inputs:
            raise ValueError(
                "The prompts differ in length, so they must be padded, but the backbone takes no padding_mask. "
                "Give prompts of one length, or one prompt at a time."
            )
        self._lm = lm
        # A tree that has caches somewhere inside and nothing that starts them runs without: slower, and the same.
        self._cache = lm.init_cache(batch, length) if "cache" in inputs and hasattr(lm.backbone, "init_cache") else None
        # A backbone of a model counts positions itself. A function cannot, for it does not see what came before. And
        # short rows may go on for so long that, with their padding, they have more tokens than there are positions.
        positions: int | None = getattr(lm.backbone, "max_positions", None)
        crowded = positions is not None and length > positions
        self._gives_positions = "positions" in inputs and (crowded or isinstance(lm.backbone, FunctionBackbone))
        self._seen = 0

    def __call__(self, token_ids: Tensor, real: Tensor | None) -> Tensor:
        """The logits after `token_ids` (B, S), all so far; `real` (B, S) is False at padding, None: there is none."""
        start = self._seen
        inputs: dict[str, Any] = {}
        # Padding stands before the prompts only: a model that remembers is told of it once.
        if real is not None and start == 0:
            inputs["padding_mask"] = real
        if self._gives_positions:
            counted = torch.ones_like(token_ids) if real is None else real
            inputs["positions"] = positions_of(counted)[:, start:]
        if self._cache is not None:
            inputs["cache"] = self._cache
            self._seen = token_ids.shape[1]
        logits = self._lm(token_ids[:, start:], context={"inputs": inputs, "outputs": {"last_positions": 1}})
        return last_of(logits, batch=token_ids.shape[0])


def last_of(logits: object, batch: int) -> Tensor:
    """The logits (B, V) of the last position. Raises `TypeError` where the model gave something else."""
    if not (isinstance(logits, Tensor) and logits.dim() == 3 and logits.shape[0] == batch):
        received = f"a tensor of shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else repr(type(logits))
        raise TypeError(
            f"A language model returns logits of shape (batch, length, vocabulary), here ({batch}, ..., ...), but this "
            f"one returned {received}."
        )
    return logits[:, -1]
