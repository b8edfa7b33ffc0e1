"""The forms a prompt comes in, and the form its result goes out in.

Inside, a prompt is a list of ids, one per row of the batch; nothing after this module knows what the user wrote.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from types import UnionType
from typing import Any, cast

import torch
from torch import Tensor

from suture.generation.chat import Message
from suture.generation.stopping import Reply
from suture.generation.text import Detokenizer, Tokenizer

CONTEXT = 8
"""How many ids before a reply its decoder sees: the first token of a text is written otherwise than one within it."""

FORMS = (
    "a string, a list of strings, chat messages (a list of dictionaries) or a list of such lists, "
    "a tensor of ids (batch, length) or (length,), a list of ids or a list of such lists"
)


class Prompts(ABC):
    """The prompts of one call: `rows` of ids, and how their replies are given back."""

    wants_text = False
    """Whether the result holds the replies' text."""

    def __init__(self, rows: list[list[int]], single: bool) -> None:
        for index, row in enumerate(rows):
            if row and min(row) < 0:
                raise ValueError(f"The prompt {index} holds the token id {min(row)}. Token ids are not negative.")
        self.rows = rows
        self._single = single

    def detokenizer(self, row: int, tokenizer: Tokenizer | None) -> Detokenizer:
        """What writes the reply of a row as text."""
        return Detokenizer(ensure_tokenizer(tokenizer), self.rows[row][-CONTEXT:])

    def result(self, replies: Sequence[Reply], strip_prompt: bool, pad_id: int) -> Any:
        """The replies in the form of the prompt, with it or without it."""
        results = self._results(replies, strip_prompt, pad_id)
        return results[0] if self._single else results

    @abstractmethod
    def _results(self, replies: Sequence[Reply], strip_prompt: bool, pad_id: int) -> Any: ...


class TextPrompts(Prompts):
    """Strings; a result is the prompt followed by the text of the reply."""

    wants_text = True

    def __init__(self, texts: Sequence[str], tokenizer: Tokenizer, single: bool) -> None:
        super().__init__([tokenizer.encode(text) for text in texts], single)
        self._texts = texts

    def _results(self, replies: Sequence[Reply], strip_prompt: bool, pad_id: int) -> list[str]:
        if strip_prompt:
            return [reply.text for reply in replies]
        return [text + reply.text for text, reply in zip(self._texts, replies, strict=True)]


class ChatPrompts(Prompts):
    """Conversations; a result is the text of the reply alone, for a template's text is nobody's prompt."""

    wants_text = True

    def __init__(self, chats: Sequence[Sequence[Message]], tokenizer: Tokenizer, single: bool) -> None:
        super().__init__([tokenizer.encode_chat(chat) for chat in chats], single)

    def detokenizer(self, row: int, tokenizer: Tokenizer | None) -> Detokenizer:
        return Detokenizer(ensure_tokenizer(tokenizer))  # a reply is a text of its own

    def _results(self, replies: Sequence[Reply], strip_prompt: bool, pad_id: int) -> list[str]:
        return [reply.text for reply in replies]


class IdPrompts(Prompts):
    """Lists of ids; a result is a list as long as its row became."""

    def __init__(self, rows: Sequence[Sequence[int]], single: bool) -> None:
        super().__init__([[operator.index(token_id) for token_id in row] for row in rows], single)

    def _results(self, replies: Sequence[Reply], strip_prompt: bool, pad_id: int) -> list[list[int]]:
        return [([] if strip_prompt else row) + reply.ids for row, reply in zip(self.rows, replies, strict=True)]


class TensorPrompts(Prompts):
    """Ids (B, T), left-padded where `padding_mask` (B, T) is False. Rows that end early are filled with the pad id."""

    def __init__(self, token_ids: Tensor, padding_mask: Tensor | None) -> None:
        ensure_token_ids(token_ids)
        self._token_ids = token_ids if token_ids.dim() == 2 else token_ids[None]
        ids = cast("list[list[int]]", self._token_ids.tolist())
        if padding_mask is not None:
            real = ensure_left_padding(padding_mask, token_ids)
            ids = [row[len(row) - sum(mask) :] for row, mask in zip(ids, real, strict=True)]
        super().__init__(ids, single=token_ids.dim() == 1)

    def _results(self, replies: Sequence[Reply], strip_prompt: bool, pad_id: int) -> Tensor:
        longest = max(len(reply.ids) for reply in replies)
        filled = [reply.ids + [pad_id] * (longest - len(reply.ids)) for reply in replies]
        prompt = self._token_ids
        # Small integers hold the ids of a prompt, and maybe not those of its reply.
        dtype = prompt.dtype if prompt.dtype in (torch.int64, torch.int32) else torch.int64
        answer = torch.tensor(filled, dtype=dtype, device=prompt.device).view(len(replies), longest)
        return answer if strip_prompt else torch.cat((prompt, answer), dim=1)


def read_prompts(prompt: object, tokenizer: Tokenizer | None, padding_mask: Tensor | None = None) -> Prompts:
    """The prompts in whatever form they were given. Raises `TypeError` for any other, `ValueError` for empty ones."""
    if isinstance(prompt, Tensor):
        return TensorPrompts(prompt, padding_mask)
    if padding_mask is not None:
        raise TypeError("padding_mask says which ids of a tensor are real, but the prompt is not a tensor.")
    if isinstance(prompt, str):
        return TextPrompts([prompt], ensure_tokenizer(tokenizer), single=True)
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
        raise TypeError(f"A prompt is {FORMS}, but received {prompt!r:.80}.")
    items = cast("Sequence[Any]", prompt)
    if not items:
        raise ValueError(f"The prompt is an empty list. A prompt is {FORMS}.")
    if every(items, str):
        return TextPrompts(items, ensure_tokenizer(tokenizer), single=False)
    if every(items, Mapping):
        return ChatPrompts([items], ensure_tokenizer(tokenizer), single=True)
    if every(items, int):
        return IdPrompts([items], single=True)
    if every(items, list | tuple):
        if all(item and every(item, Mapping) for item in items):
            return ChatPrompts(items, ensure_tokenizer(tokenizer), single=False)
        if all(every(item, int) for item in items):
            return IdPrompts(items, single=False)
    kinds = ", ".join(sorted({type(item).__name__ for item in items}))
    raise TypeError(f"A prompt is {FORMS}, but received a list of {kinds}.")


def every(items: Iterable[object], kind: type | UnionType) -> bool:
    """Whether all items are of a kind; True and False are no ids."""
    return all(isinstance(item, kind) and not isinstance(item, bool) for item in items)


def ensure_tokenizer(tokenizer: Tokenizer | None) -> Tokenizer:
    """Refuses text where there is nothing to encode it with."""
    if tokenizer is None:
        raise ValueError(
            "This model has no tokenizer, so it cannot be given text. Give it ids (a tensor or lists), or make it "
            "with one: CausalLM(backbone, head, tokenizer)."
        )
    return tokenizer


def ensure_token_ids(token_ids: Tensor) -> None:
    """Refuses a tensor that is no batch of ids."""
    if token_ids.dtype not in (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8):
        raise TypeError(f"A tensor prompt holds token ids, which are integers, but its dtype is {token_ids.dtype}.")
    if token_ids.dim() not in (1, 2) or (token_ids.dim() == 2 and token_ids.shape[0] == 0):
        raise ValueError(
            f"A tensor prompt has the shape (batch, length) or (length,), but received {tuple(token_ids.shape)}."
        )


def ensure_left_padding(padding_mask: Tensor, token_ids: Tensor) -> list[list[bool]]:
    """The mask as rows of booleans. Raises `ValueError` where padding stands anywhere but before the real tokens."""
    if padding_mask.shape != token_ids.shape:
        raise ValueError(
            f"padding_mask must have the shape of the prompt, {tuple(token_ids.shape)}, "
            f"but has {tuple(padding_mask.shape)}."
        )
    rows = cast("list[list[bool]]", padding_mask.bool().view(-1, padding_mask.shape[-1]).tolist())
    for index, row in enumerate(rows):
        if row != sorted(row):
            raise ValueError(
                f"In row {index} of padding_mask, padding stands behind a real token. Generation continues a row from "
                f"its end, so padding must stand on the left. Pad there, or pass the prompts as lists of ids without "
                f"any padding: then generate pads them itself."
            )
    return rows
