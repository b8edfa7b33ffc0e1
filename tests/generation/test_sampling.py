from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from suture.generation import sampling
from suture.generation.sampling import (
    Combined,
    Greedy,
    History,
    MinP,
    RepetitionPenalty,
    Sampler,
    Temperature,
    TopK,
    TopP,
)

LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0, 3.0], [0.5, 4.0, 3.5, -2.0, 0.0]])


def nothing(batch: int = 2) -> History:
    return History(torch.zeros(batch, 0, dtype=torch.long), torch.zeros(batch, 0, dtype=torch.bool))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def frequencies(sampler: Sampler, logits: Tensor, draws: int = 20_000) -> Tensor:
    chosen = sampler.choose(logits.expand(draws, -1), nothing(draws), generator())
    return torch.bincount(chosen, minlength=logits.shape[-1]) / draws


def kept(sampler: Sampler, logits: Tensor = LOGITS) -> list[list[int]]:
    narrowed = sampler.narrow(logits, nothing(len(logits)))
    return [row.isfinite().nonzero()[:, 0].tolist() for row in narrowed]


def test_greedy_takes_the_likeliest() -> None:
    assert Greedy().choose(LOGITS, nothing(), generator()).tolist() == [4, 1]


def test_draws_have_the_probabilities_of_the_softmax() -> None:
    probabilities = LOGITS[0].softmax(-1)
    assert torch.allclose(frequencies(Sampler(), LOGITS[0]), probabilities, atol=0.02)


def test_temperature_sharpens() -> None:
    probabilities = (LOGITS[0] / 0.5).softmax(-1)
    assert torch.allclose(frequencies(Temperature(0.5), LOGITS[0]), probabilities, atol=0.02)


@pytest.mark.parametrize("temperature", [0, 0.0, 1e-40, 1e-6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_vanishing_temperature_is_greedy(temperature: float, dtype: torch.dtype) -> None:
    logits = LOGITS.to(dtype)
    for sampler in (
        Temperature(temperature),
        TopK(3, temperature=temperature),
        TopP(0.9, temperature=temperature),
        MinP(0.1, temperature=temperature),
    ):
        assert sampler.choose(logits, nothing(), generator()).tolist() == [4, 1]


@pytest.mark.parametrize("temperature", [math.nan, math.inf, -1.0])
def test_temperatures_without_sense_are_refused(temperature: float) -> None:
    makers: list[Callable[[], Sampler]] = [
        lambda: Temperature(temperature),
        lambda: TopK(5, temperature),
        lambda: TopP(0.9, temperature),
        lambda: MinP(0.1, temperature),
    ]
    for make in makers:
        with pytest.raises(ValueError, match=f"temperature must be a finite number.*but is {temperature}"):
            make()


def test_top_k_keeps_k() -> None:
    assert kept(TopK(2)) == [[0, 4], [1, 2]]


def test_top_k_keeps_k_among_equals() -> None:
    assert [len(row) for row in kept(TopK(2), torch.zeros(1, 6))] == [2]


def test_top_k_above_the_vocabulary_keeps_all() -> None:
    assert kept(TopK(1000)) == [[0, 1, 2, 3, 4]] * 2


@pytest.mark.parametrize("k", [0, -1])
def test_top_k_below_one_is_refused(k: int) -> None:
    with pytest.raises(ValueError, match=f"k must be at least 1, but is {k}"):
        TopK(k)


def test_top_p_keeps_the_fewest_that_reach_p() -> None:
    logits = torch.tensor([[0.1, 0.5, 0.15, 0.25]]).log()
    assert kept(TopP(0.49), logits) == [[1]]
    assert kept(TopP(0.6), logits) == [[1, 3]]
    assert kept(TopP(0.8), logits) == [[1, 2, 3]]
    assert kept(TopP(1.0), logits) == [[0, 1, 2, 3]]


def test_top_p_of_zero_keeps_one() -> None:
    assert kept(TopP(0.0)) == [[4], [1]]


def test_top_p_applies_the_temperature_first() -> None:
    assert kept(TopP(0.9)) == [[0, 1, 4], [1, 2]]
    assert kept(TopP(0.9, temperature=0.2)) == [[4], [1]]


def test_top_p_finds_a_nucleus_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(3, 500)
    narrowed = TopP(0.95).narrow(logits, nothing(3))
    monkeypatch.setattr(sampling, "LIKELIEST", 20)
    assert torch.equal(TopP(0.95).narrow(logits, nothing(3)), narrowed)


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan])
def test_probabilities_outside_zero_to_one_are_refused(p: float) -> None:
    for make in (TopP, MinP):
        with pytest.raises(ValueError, match="p must be a finite number, between 0 and 1"):
            make(p)


def test_min_p_keeps_what_is_near_the_likeliest() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    assert kept(MinP(0.29), logits) == [[0, 1, 2]]
    assert kept(MinP(0.0), logits) == [[0, 1, 2, 3]]
    assert kept(MinP(1.0), logits) == [[0]]


def test_repetition_penalty_makes_what_was_seen_less_likely() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0, -1.0]])
    seen = History(torch.tensor([[0, 1, 0]]), torch.ones(1, 3, dtype=torch.bool))
    assert RepetitionPenalty(2.0).narrow(logits, seen).tolist() == [[1.0, -4.0, 1.0, -1.0]]


def test_repetition_penalty_does_not_count_padding() -> None:
    logits = torch.tensor([[2.0, 1.0], [2.0, 1.0]])
    history = History(torch.tensor([[0, 0, 1], [0, 0, 1]]), torch.tensor([[False, False, True], [False, True, True]]))
    assert RepetitionPenalty(2.0).narrow(logits, history).tolist() == [[2.0, 0.5], [1.0, 0.5]]


def test_repetition_penalty_alone_takes_the_likeliest() -> None:
    seen = History(torch.tensor([[4]]), torch.ones(1, 1, dtype=torch.bool))
    assert RepetitionPenalty(2.0).choose(LOGITS[:1], seen, generator()).tolist() == [0]


def test_combined_narrows_in_turn_and_the_last_chooses() -> None:
    seen = History(torch.tensor([[4]]), torch.ones(1, 1, dtype=torch.bool))
    assert Combined(RepetitionPenalty(9.0), Greedy()).choose(LOGITS[:1], seen, generator()).tolist() == [0]
    assert kept(Combined(TopK(3), MinP(0.3))) == [[0, 4], [1, 2]]
    narrowed = Combined(Temperature(0.5), Temperature(0.5)).narrow(LOGITS, nothing())
    assert torch.allclose(narrowed.softmax(-1), (LOGITS / 0.25).softmax(-1))


def test_combined_refuses_what_is_no_sampler() -> None:
    with pytest.raises(TypeError, match="takes samplers, such as TopP"):
        Combined(TopK(3), "greedy")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="at least one sampler"):
        Combined()


def test_the_seed_decides() -> None:
    def draws(seed: int) -> list[int]:
        chosen = TopP(0.95).choose(torch.zeros(50, 100), nothing(50), generator(seed))
        return [int(token_id) for token_id in chosen]

    assert draws(0) == draws(0)
    assert draws(0) != draws(1)


def test_what_is_ruled_out_is_never_drawn() -> None:
    logits = torch.full((100_000, 3), -math.inf)
    logits[:, 1] = 0.0
    assert (Sampler().choose(logits, nothing(len(logits)), generator()) == 1).all()


@pytest.mark.parametrize(("fraction", "chosen"), [(0.0, 1), (1 - 2**-24, 3)])
def test_the_outermost_random_numbers_draw_a_possible_token(
    monkeypatch: pytest.MonkeyPatch, fraction: float, chosen: int
) -> None:
    def rand(shape: tuple[int, ...], **_: object) -> Tensor:
        return torch.full(shape, fraction)

    monkeypatch.setattr(torch, "rand", rand)
    logits = torch.tensor([[-math.inf, 0.3, 0.1, 2.7, -math.inf]])
    assert Sampler().choose(logits, nothing(1), generator()).tolist() == [chosen]
