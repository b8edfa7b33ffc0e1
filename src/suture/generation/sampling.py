"""How the next token is chosen from the logits.

A sampler does two things: it narrows the logits, and it draws from what is left. `Combined` lets several narrow in
turn before the last one draws:

    sampler = Combined(RepetitionPenalty(1.2), TopK(50), TopP(0.9, temperature=0.7))

Shapes: B rows, V the vocabulary, S the tokens seen so far.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from suture.generation.checks import ensure_integer, ensure_real

LIKELIEST = 1024
"""How many tokens a nucleus is looked for in before all are sorted, which takes thirty times as long."""


@dataclass(frozen=True)
class History:
    """The tokens that stand before the one to choose: `token_ids` (B, S), and `real` (B, S), False at padding."""

    token_ids: Tensor
    real: Tensor


class Sampler:
    """Chooses each row's next token. A sampler of your own overrides `narrow`.

    >>> class Never(Sampler):
    ...     def __init__(self, token_id):
    ...         self.token_id = token_id
    ...
    ...     def narrow(self, logits, history):
    ...         return logits.index_fill(-1, torch.tensor(self.token_id), -torch.inf)
    >>> nothing = History(torch.zeros(1, 0, dtype=torch.long), torch.zeros(1, 0, dtype=torch.bool))
    >>> Never(2).choose(torch.tensor([[0.0, 1.0, 99.0]]), nothing, torch.Generator()).item() in (0, 1)
    True
    """

    def narrow(self, logits: Tensor, history: History) -> Tensor:
        """The logits (B, V) of the distribution to draw from; a token that must not be drawn has minus infinity."""
        return logits

    def choose(self, logits: Tensor, history: History, generator: torch.Generator) -> Tensor:
        """The ids (B,) of the chosen tokens, drawn with random numbers of `generator` only."""
        return draw(self.narrow(logits.float(), history), generator)


def draw(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Ids (B,) drawn with the probabilities softmax(logits) of (B, V).

    One random number per row, looked up in the cumulative distribution: noise for every token of the vocabulary
    would cost more than all the rest.
    """
    cumulative = logits.softmax(-1).cumsum(-1, dtype=torch.float64)
    # Drawn in float32, the fraction stays so far below 1 that in float64 no product reaches the total. And a token of
    # probability zero is as high as the one before it: the first that is higher than the product is never one.
    fraction = torch.rand((logits.shape[0], 1), generator=generator, device=logits.device).double()
    return torch.searchsorted(cumulative, fraction * cumulative[:, -1:], right=True)[:, 0]


@dataclass(frozen=True)
class Greedy(Sampler):
    """Takes the most likely token.

    >>> nothing = History(torch.zeros(1, 0, dtype=torch.long), torch.zeros(1, 0, dtype=torch.bool))
    >>> Greedy().choose(torch.tensor([[0.0, 2.0, 1.0]]), nothing, torch.Generator()).tolist()
    [1]
    """

    def narrow(self, logits: Tensor, history: History) -> Tensor:
        return spread(*logits.max(-1, keepdim=True), like=logits)

    def choose(self, logits: Tensor, history: History, generator: torch.Generator) -> Tensor:
        return logits.argmax(-1)


@dataclass(frozen=True)
class Temperature(Sampler):
    """Draws from softmax(logits / temperature): below 1 the likely tokens gain, at 0 the likeliest is certain.

    Raises `ValueError` for a temperature that is negative, infinite or not a number.
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        ensure_real("temperature", self.temperature, least=0.0)

    def narrow(self, logits: Tensor, history: History) -> Tensor:
        if self.temperature == 1.0:
            return logits
        # A temperature below the smallest normal number of float32 would divide zero by zero.
        if self.temperature < torch.finfo(torch.float32).tiny:
            return Greedy().narrow(logits, history)
        # The largest logit becomes zero first: then no division overflows upwards.
        return (logits - logits.amax(-1, keepdim=True)) / self.temperature


@dataclass(frozen=True)
class TopK(Sampler):
    """Draws from the `k` most likely tokens (Fan et al. 2018, arXiv:1805.04833).

    A `k` above the vocabulary keeps it all. Raises `ValueError` for a `k` below 1.
    """

    k: int
    temperature: float = 1.0

    def __post_init__(self) -> None:
        ensure_integer("k", self.k, least=1)
        ensure_real("temperature", self.temperature, least=0.0)

    def narrow(self, logits: Tensor, history: History) -> Tensor:
        logits = Temperature(self.temperature).narrow(logits, history)
        if self.k >= logits.shape[-1]:
            return logits
        return spread(*logits.topk(self.k), like=logits)


@dataclass(frozen=True)
class TopP(Sampler):
    """Draws from the nucleus: the fewest likeliest tokens that together reach probability `p`.

    The temperature is applied first. At least one token stays, also for `p` of 0 (Holtzman et al. 2019,
    arXiv:1904.09751). Raises `ValueError` for a `p` outside 0 to 1.
    """

    p: float
    temperature: float = 1.0

    def __post_init__(self) -> None:
        ensure_real("p", self.p, least=0.0, most=1.0)
        ensure_real("temperature", self.temperature, least=0.0)

    def narrow(self, logits: Tensor, history: History) -> Tensor:
        logits = Temperature(self.temperature).narrow(logits, history)
        if self.p == 1.0:
            return logits
        probabilities = logits.softmax(-1)
        ordered, indices = probabilities.topk(min(LIKELIEST, logits.shape[-1]))
        if bool((ordered.sum(-1) < self.p).any()):
            ordered, indices = probabilities.sort(descending=True)
        outside = ordered.cumsum(-1) - ordered >= self.p
        outside[:, 0] = False
        return spread(logits.gather(-1, indices).masked_fill(outside, -math.inf), indices, like=logits)


@dataclass(frozen=True)
class MinP(Sampler):
    """Draws from the tokens at least `p` times as likely as the likeliest (Nguyen et al. 2024, arXiv:2407.01082).

    The temperature is applied first. Raises `ValueError` for a `p` outside 0 to 1.
    """

    p: float
    temperature: float = 1.0

    def __post_init__(self) -> None:
        ensure_real("p", self.p, least=0.0, most=1.0)
        ensure_real("temperature", self.temperature, least=0.0)

    def narrow(self, logits: Tensor, history: History) -> Tensor:
        logits = Temperature(self.temperature).narrow(logits, history)
        if self.p == 0.0:
            return logits
        return logits.masked_fill(logits < logits.amax(-1, keepdim=True) + math.log(self.p), -math.inf)


@dataclass(frozen=True)
class RepetitionPenalty(Sampler):
    """Makes every token that was seen before less likely, and takes the likeliest.

    A positive logit is divided by `penalty`, a negative one multiplied with it (Keskar et al. 2019, arXiv:1909.05858).
    Tokens of the prompt count, padding does not. To draw instead, combine it:
    `Combined(RepetitionPenalty(1.2), TopP(0.9))`. Raises `ValueError` for a penalty below 1, which would reward
    repetition.
    """

    penalty: float

    def __post_init__(self) -> None:
        ensure_real("penalty", self.penalty, least=1.0)

    def narrow(self, logits: Tensor, history: History) -> Tensor:
        vocabulary = logits.shape[-1]
        # Padding is marked in a column of its own, behind the vocabulary, whatever token it is made of.
        marked = history.token_ids.where(history.real, vocabulary)
        seen = logits.new_zeros((logits.shape[0], vocabulary + 1), dtype=torch.bool).scatter_(-1, marked, True)
        penalised = torch.where(logits > 0, logits / self.penalty, logits * self.penalty)
        return torch.where(seen[:, :-1], penalised, logits)

    def choose(self, logits: Tensor, history: History, generator: torch.Generator) -> Tensor:
        return self.narrow(logits.float(), history).argmax(-1)


class Combined(Sampler):
    """Lets several samplers narrow the logits in turn; the last one also chooses.

    Their temperatures multiply. Raises `TypeError` where one is not a sampler, `ValueError` where there is none.
    """

    def __init__(self, *samplers: Sampler) -> None:
        if not samplers:
            raise ValueError("Combined needs at least one sampler, such as Combined(TopK(50), TopP(0.9)).")
        for sampler in samplers:
            ensure_sampler("Combined", sampler)
        self.samplers = samplers

    def narrow(self, logits: Tensor, history: History) -> Tensor:
        for sampler in self.samplers:
            logits = sampler.narrow(logits, history)
        return logits

    def choose(self, logits: Tensor, history: History, generator: torch.Generator) -> Tensor:
        logits = logits.float()
        for sampler in self.samplers[:-1]:
            logits = sampler.narrow(logits, history)
        return self.samplers[-1].choose(logits, history, generator)

    def __repr__(self) -> str:
        return f"Combined({', '.join(map(repr, self.samplers))})"


def spread(values: Tensor, indices: Tensor, like: Tensor) -> Tensor:
    """A tensor like `like` (B, V) with `values` (B, K) at `indices` (B, K), and minus infinity everywhere else."""
    return torch.full_like(like, -math.inf).scatter(-1, indices, values)


def random_numbers(seed: int | None, device: torch.device) -> torch.Generator:
    """The random numbers of one call, apart from torch's own; other ones with each call where `seed` is None."""
    generator = torch.Generator(device)
    if seed is None:
        generator.seed()
    else:
        if ensure_integer("seed", seed, least=0) >= 2**64:
            raise ValueError(f"seed must be below 2**64, but is {seed}.")
        generator.manual_seed(seed)
    return generator


def ensure_sampler(where: str, sampler: object) -> None:
    """Refuses what is not a sampler, and says what one is."""
    if not isinstance(sampler, Sampler):
        raise TypeError(
            f"{where} takes samplers, such as TopP(0.9, temperature=0.7), but received {sampler!r}. "
            f"Write a sampler of your own as a subclass of suture.generation.Sampler with a method `narrow`."
        )
