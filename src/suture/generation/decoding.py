"""The loop: run the model, choose a token for each row, see who has ended.

Shapes: B rows, W the longest prompt, N the most new tokens, V the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

import torch
from torch import Tensor

from suture.generation.sampling import History, Sampler
from suture.generation.stopping import Reply


class NextTokenLogits(Protocol):
    """A language model as the loop sees it.

    Given all tokens so far (B, S), and (B, S) False where they are padding, or None where there is none, it returns the
    logits (B, V) of the next one.
    """

    def __call__(self, token_ids: Tensor, real: Tensor | None) -> Tensor: ...


class Decoding:
    """The replies to a batch of prompts, one token for each row with every `step`.

    Prompts of unequal length are padded on the left. Rows that have ended are given the pad id, and what the model
    makes of it is not looked at.

    Args:
        model: Gives the logits of the next token.
        rows: The ids of each prompt, at least one each.
        replies: One for each row; they say when a row has ended.
        limit: N, the most new tokens of any row.
        sampler: Chooses the tokens.
        generator: The source of its random numbers.
        pad_id: A valid id.
    """

    def __init__(
        self,
        model: NextTokenLogits,
        rows: Sequence[Sequence[int]],
        replies: Sequence[Reply],
        limit: int,
        sampler: Sampler,
        generator: torch.Generator,
        pad_id: int,
    ) -> None:
        width = max(map(len, rows))
        padding = [width - len(row) for row in rows]
        device = generator.device
        padded = [[pad_id] * count + list(row) + [pad_id] * limit for count, row in zip(padding, rows, strict=True)]
        # Made outside inference mode, so that a stream that began in it can be continued outside.
        with torch.inference_mode(False):
            self._token_ids = torch.tensor(padded, device=device)
            self._real = torch.arange(width + limit, device=device) >= torch.tensor(padding, device=device)[:, None]
        self._is_padded = any(padding)
        self._model = model
        self.replies = replies
        self._sampler = sampler
        self._generator = generator
        self._pad_id = pad_id
        self._width = width
        self._ended: Tensor | None = None
        self._mark_ended()

    @property
    def done(self) -> bool:
        """Whether every row has ended."""
        return all(reply.ended for reply in self.replies)

    @torch.no_grad()
    def step(self) -> list[str]:
        """Adds a token to every row that has not ended, and returns the text that it made certain, row by row.

        Raises `ArithmeticError` where a row's logits are not numbers, and `ValueError` where its sampler leaves no
        token to choose.
        """
        width = self._width
        token_ids, real = self._token_ids[:, :width], self._real[:, :width]
        logits = self._model(token_ids, real if self._is_padded else None)
        chosen = ensure_ids(self._sampler.choose(logits, History(token_ids, real), self._generator), len(token_ids))
        chosen = chosen.masked_fill(logits.amax(-1).isnan(), NOT_A_NUMBER)
        if self._ended is not None:
            chosen = chosen.masked_fill(self._ended, self._pad_id)
        self._token_ids[:, width] = chosen
        self._width = width + 1
        return self._advance(cast("list[int]", chosen.tolist()), logits.shape[-1])

    def _advance(self, chosen: list[int], vocabulary: int) -> list[str]:
        pieces: list[str] = []
        some_ended = False
        for row, (reply, token_id) in enumerate(zip(self.replies, chosen, strict=True)):
            if reply.ended:
                pieces.append("")
                continue
            ensure_chosen(row, token_id, vocabulary)
            pieces.append(reply.push(token_id))
            some_ended = some_ended or reply.ended
        if some_ended:
            self._mark_ended()
        return pieces

    def _mark_ended(self) -> None:
        ended = [reply.ended for reply in self.replies]
        if any(ended):
            self._ended = torch.tensor(ended, device=self._token_ids.device)


NOT_A_NUMBER = -1
"""Stands for a choice among logits that are NaN, so that the host learns of it with the ids, in one transfer."""


def ensure_ids(chosen: object, rows: int) -> Tensor:
    """What a sampler chose. Raises `TypeError` where it is not one id for each row."""
    if isinstance(chosen, Tensor) and chosen.shape == (rows,) and not chosen.is_floating_point():
        return chosen
    received = f"a tensor {tuple(chosen.shape)} of {chosen.dtype}" if isinstance(chosen, Tensor) else repr(chosen)
    raise TypeError(
        f"A sampler's choose returns one id for each row, here a tensor ({rows},), but returned {received}."
    )


def ensure_chosen(row: int, token_id: int, vocabulary: int) -> None:
    """Refuses an id that no sound logits and no sound sampler give."""
    if token_id == NOT_A_NUMBER:
        raise ArithmeticError(
            f"The model's logits for row {row} are not numbers (NaN). Look for the first layer whose output is not "
            f"finite; half precision overflows at 65504, and float32 does not."
        )
    if not 0 <= token_id < vocabulary:
        raise ValueError(
            f"The sampler left no token for row {row} to choose from, or chose {token_id} of a vocabulary of "
            f"{vocabulary}. At least one token of each row must keep a finite logit, and none may be infinite."
        )
