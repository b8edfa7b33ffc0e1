"""Language models made of plain functions: small enough to know what they must say."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from suture.generation.causal_lm import CausalLM
from suture.generation.text import Tokenizer


def reciter(script: Sequence[int], tokenizer: Tokenizer | None = None, vocabulary: int = 320) -> CausalLM:
    """After n tokens of whatever prompt it says token n of the script, over and over."""
    lines = torch.tensor(script)

    def recite(token_ids: Tensor, positions: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        return functional.one_hot(lines[(positions + 1) % len(lines)], vocabulary).float()

    return CausalLM(recite, nn.Identity(), tokenizer)


class Recurrent:
    """Each state is half the one before plus the token's embedding, so that every token and its place matter."""

    def __init__(self, vocabulary: int = 20, dim: int = 16) -> None:
        generator = torch.Generator().manual_seed(3)
        self.embedding = torch.randn(vocabulary, dim, generator=generator)
        self.head = torch.randn(dim, vocabulary, generator=generator)

    def states(self, token_ids: Tensor, padding_mask: Tensor | None, state: Tensor) -> Tensor:
        states: list[Tensor] = []
        for step in range(token_ids.shape[1]):
            new = state * 0.5 + self.embedding[token_ids[:, step]]
            state = new if padding_mask is None else torch.where(padding_mask[:, step, None], new, state)
            states.append(state)
        return torch.stack(states, dim=1)

    def __call__(self, token_ids: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        return self.states(token_ids, padding_mask, torch.zeros(len(token_ids), self.embedding.shape[1]))

    def lm(self, tokenizer: Tokenizer | None = None) -> CausalLM:
        return CausalLM(self, self.logits, tokenizer)

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.head


class Memory:
    """The cache of `CachedRecurrent`: the last state of each row."""

    def __init__(self, state: Tensor) -> None:
        self.state = state


class CachedRecurrent(Recurrent):
    """The same with a cache; it writes down how many tokens each call brought, and the last of them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []
        self.received: list[list[int]] = []
        self.caches: list[tuple[int, int]] = []

    def init_cache(self, batch: int, length: int) -> Memory:
        self.caches.append((batch, length))
        return Memory(torch.zeros(batch, self.embedding.shape[1]))

    def __call__(self, token_ids: Tensor, padding_mask: Tensor | None = None, cache: Memory | None = None) -> Tensor:
        if cache is None:
            return super().__call__(token_ids, padding_mask)
        self.calls.append(token_ids.shape[1])
        self.received.append([int(token_id) for token_id in token_ids[:, -1]])
        states = self.states(token_ids, padding_mask, cache.state)
        cache.state = states[:, -1]
        return states


def continued(lm: CausalLM, prompt: list[int], count: int) -> list[int]:
    """Greedy tokens by the plainest loop there is: the whole sequence through the model, again and again."""
    ids = list(prompt)
    for _ in range(count):
        logits: Tensor = lm(torch.tensor([ids]))
        ids.append(int(logits[0, -1].argmax()))
    return ids


def one_hot(token_ids: Tensor) -> Tensor:
    """A backbone that sees the token alone."""
    return functional.one_hot(token_ids, 20).float()


def rolled(logits: Tensor, by: int) -> Tensor:
    """Other logits, for which the next token is another."""
    return logits.roll(by, -1)
