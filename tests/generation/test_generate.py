from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from suture.generation import CausalLM, History, RepetitionPenalty, Sampler, Temperature, Tokenizer, TopP
from suture.generation.chat import Message
from suture.layers import Chain, GetArg, Identity, Lambda, Parallel, SetContext, UseContext
from tests.generation.fakes import CachedRecurrent, Recurrent, continued, one_hot, reciter, rolled

ROWS = [[3, 1, 4], [1, 5, 9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3]]


def cached() -> CausalLM:
    return CachedRecurrent().lm()


# Exactness


def test_greedy_equals_the_plainest_loop() -> None:
    lm = Recurrent().lm()
    assert lm.generate(ROWS[1], max_new_tokens=8) == continued(lm, ROWS[1], 8)


def test_cached_equals_uncached() -> None:
    assert cached().generate(ROWS, max_new_tokens=8) == Recurrent().lm().generate(ROWS, max_new_tokens=8)


@pytest.mark.parametrize("make", [cached, lambda: Recurrent().lm()])
def test_a_padded_row_equals_the_row_alone(make: Any) -> None:
    lm: CausalLM = make()
    assert lm.generate(ROWS, max_new_tokens=8) == [lm.generate(row, max_new_tokens=8) for row in ROWS]


def test_padding_is_told_once_and_each_step_brings_one_token() -> None:
    backbone = CachedRecurrent()
    backbone.lm().generate(ROWS, max_new_tokens=4)
    assert backbone.calls == [8, 1, 1, 1]
    assert backbone.caches == [(3, 11)]


def test_only_the_last_position_goes_through_the_head() -> None:
    recurrent = Recurrent()
    shapes: list[tuple[int, ...]] = []

    def head(hidden: Tensor) -> Tensor:
        shapes.append(tuple(hidden.shape))
        return recurrent.logits(hidden)

    CausalLM(recurrent, head).generate(ROWS[:1], max_new_tokens=3)
    assert shapes == [(1, 1, 16)] * 3


def test_positions_are_given_to_a_function_that_asks_for_them() -> None:
    lm = reciter(range(100, 120))
    assert lm.generate([[5], [5, 5, 5]], max_new_tokens=3) == [[5, 101, 102, 103], [5, 5, 5, 103, 104, 105]]


# The forms of prompts


def test_a_tensor_gives_a_tensor() -> None:
    lm = Recurrent().lm()
    prompt = torch.tensor([ROWS[0]] * 2, dtype=torch.int32)
    result = lm.generate(prompt, max_new_tokens=4)
    assert result.dtype == torch.int32
    assert result.tolist() == lm.generate([ROWS[0]] * 2, max_new_tokens=4)
    assert lm.generate(prompt[0], max_new_tokens=4).tolist() == lm.generate(ROWS[0], max_new_tokens=4)
    assert lm.generate(prompt, max_new_tokens=4, strip_prompt=True).tolist() == result[:, 3:].tolist()


def test_a_tensor_with_left_padding_equals_its_rows() -> None:
    lm = Recurrent().lm()
    prompt = torch.tensor([[0, 0, 3, 1, 4], [1, 5, 9, 2, 6]])
    mask = torch.tensor([[False, False, True, True, True], [True] * 5])
    result = lm.generate(prompt, padding_mask=mask, max_new_tokens=4)
    assert result[0].tolist() == [0, 0, *lm.generate(ROWS[0], max_new_tokens=4)]
    assert result[1].tolist() == lm.generate(ROWS[1], max_new_tokens=4)


def test_text_gives_text(byte_level: Tokenizer) -> None:
    lm = reciter(byte_level.encode("Once upon a time"), byte_level)
    prompt = byte_level.decode(byte_level.encode("Once upon a time")[:3])
    result = lm.generate(prompt, max_length=len(byte_level.encode("Once upon a time")))
    assert result == "Once upon a time"
    assert lm.generate([prompt], max_new_tokens=2, strip_prompt=True) == [
        byte_level.decode(byte_level.encode("Once upon a time")[3:5])
    ]


def test_a_reply_to_text_goes_on_after_it(byte_fallback: Tokenizer) -> None:
    big, cat = 4, 5
    assert reciter([0, 0, cat], byte_fallback).generate("\u2581big", max_new_tokens=1).endswith("big cat")
    assert byte_fallback.decode([big, cat]) == "big cat"


def test_a_chat_gives_the_reply_alone(byte_level: Tokenizer) -> None:
    template = "{% for m in messages %}{{ m.content }}:{% endfor %}"
    tokenizer = Tokenizer(replace(byte_level.vocabulary, chat_template=template))
    chat: list[Message] = [{"role": "user", "content": "Hi"}]
    start = len(tokenizer.encode("Hi:"))
    lm = reciter([0] * start + [*tokenizer.encode("Hello."), 2], tokenizer)
    assert lm.generate(chat) == "Hello."
    assert lm.generate([chat, chat]) == ["Hello.", "Hello."]


def test_an_empty_prompt_begins_with_the_start_token(byte_level: Tokenizer) -> None:
    lm = reciter(range(100, 120), byte_level)
    assert lm.generate([[]], max_new_tokens=2) == [[101, 102]]
    assert lm.generate("", max_new_tokens=2) == byte_level.decode([101, 102])


def test_an_empty_prompt_without_a_start_token_is_refused() -> None:
    with pytest.raises(ValueError, match="The prompt is empty, and the model has no start token"):
        Recurrent().lm().generate([[]])


# Ends


def test_a_row_that_ended_is_padded_and_the_other_is_not_touched(byte_level: Tokenizer) -> None:
    script = [0, 101, 102, 2, 104, 105, 106, 2, 108]
    prompts = torch.tensor([[9, 9], [9, 9]])
    lm = reciter(script, byte_level)
    mask = torch.tensor([[True, True], [False, True]])
    result = lm.generate(prompts, padding_mask=mask, stop_ids=[102, 104, 2])
    assert result.tolist() == [[9, 9, 102, 0], [9, 9, 101, 102]]


def test_a_row_that_ended_is_fed_the_pad_id(byte_level: Tokenizer) -> None:
    tokenizer = Tokenizer(replace(byte_level.vocabulary, pad_id=7))
    backbone = CachedRecurrent()
    lm = backbone.lm(tokenizer)
    first, second = lm.generate(ROWS[:2], max_new_tokens=4, stop_ids=[])
    backbone.received.clear()
    lm.generate(ROWS[:2], max_new_tokens=4, stop_ids=[first[3]])
    assert second[5] != first[3]
    assert backbone.received == [[4, 6], [7, second[5]], [7, second[6]], [7, second[7]]]


def test_the_loop_ends_when_all_rows_have_ended() -> None:
    backbone = CachedRecurrent()
    lm = backbone.lm()
    first, second = (row[-3] for row in lm.generate(ROWS[:2], max_new_tokens=3))
    backbone.calls.clear()
    assert [len(row) for row in lm.generate(ROWS[:2], max_new_tokens=50, stop_ids=[first, second])] == [4, 6]
    assert backbone.calls == [5]


def test_lists_are_as_long_as_their_rows_became() -> None:
    lm = reciter([0, 0, 0, 7, 8, 9, 7, 8, 9])
    assert lm.generate([[1, 1], [1, 1, 1, 1]], stop_ids=[7], max_new_tokens=9) == [[1, 1, 0, 7], [1, 1, 1, 1, 8, 9, 7]]


def test_a_pad_id_that_is_an_end_id_ends_nothing(byte_level: Tokenizer) -> None:
    tokenizer = Tokenizer(replace(byte_level.vocabulary, pad_id=2, eos_ids=(2,)))
    script = [0, 101, 102, 2, 104, 105, 2]
    lm = reciter(script, tokenizer)
    assert lm.generate([[9], [9, 9, 9, 9]]) == [[9, 101, 102, 2], [9, 9, 9, 9, 104, 105, 2]]
    prompts = torch.tensor([[2, 2, 9], [9, 9, 9]])
    mask = torch.tensor([[False, False, True], [True, True, True]])
    assert lm.generate(prompts, padding_mask=mask).tolist() == [[2, 2, 9, 101, 102, 2], [9, 9, 9, 2, 2, 2]]


def test_stop_ids_can_be_none_at_all(byte_level: Tokenizer) -> None:
    lm = reciter([0, 2], byte_level)
    assert lm.generate([0], stop_ids=[], max_new_tokens=4) == [0, 2, 0, 2, 0]
    assert lm.generate([0], max_new_tokens=4) == [0, 2]


def test_a_stop_string_ends_each_row_for_itself(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("one. two, three. four")
    lm = reciter(ids, byte_level)
    start = len(byte_level.encode("one. two,"))
    prompts = [ids[:1], ids[:start]]
    for row in lm.generate(prompts, stop=[".", ","]):
        assert byte_level.decode(row) in ("one.", "one. two, three.")


def test_a_stop_string_is_not_looked_for_in_the_prompt(byte_level: Tokenizer) -> None:
    lm = reciter(byte_level.encode("a.b.c"), byte_level)
    assert lm.generate("a.", stop=".") == "a.b"


# Limits


def test_no_new_tokens_give_the_prompt_back(byte_level: Tokenizer) -> None:
    lm = reciter([5], byte_level)
    assert lm.generate("Once", max_new_tokens=0) == "Once"
    assert lm.generate(torch.tensor([[1, 2]]), max_new_tokens=0).tolist() == [[1, 2]]


def test_max_length_counts_the_prompt_of_each_row() -> None:
    assert [len(row) for row in reciter([7]).generate(ROWS, max_length=10)] == [10, 10, 10]


def test_max_length_not_above_the_prompt_is_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match="max_length is 5, but the prompt has 5 tokens already"):
        reciter([7]).generate(ROWS[1], max_length=5)


def test_without_limits_there_are_128_new_tokens() -> None:
    assert len(reciter([7]).generate([1])) == 129


# Sampling


def test_the_seed_decides_and_torchs_own_random_numbers_are_left_alone() -> None:
    lm = cached()
    before = torch.get_rng_state()
    sampler = TopP(0.99, temperature=3.0)

    def texts(seed: int | None) -> list[list[int]]:
        return lm.generate(ROWS, sampler=sampler, seed=seed, max_new_tokens=12)

    assert texts(1) == texts(1)
    assert texts(1) != texts(2)
    assert texts(None) != texts(None)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_row_that_ends_leaves_the_draws_of_the_others_alone() -> None:
    lm = cached()
    whole = lm.generate(ROWS, sampler=Temperature(2.0), seed=5, max_new_tokens=10)
    end = whole[0][3]
    cut = lm.generate(ROWS, sampler=Temperature(2.0), seed=5, max_new_tokens=10, stop_ids=[end])
    assert len(cut[0]) == 4
    for row, full in zip(cut, whole, strict=True):
        assert row == full[: len(row)]


def test_the_sampler_sees_the_prompt_without_its_padding() -> None:
    class Record(Sampler):
        def __init__(self) -> None:
            self.seen: list[list[int]] = []

        def narrow(self, logits: Tensor, history: Any) -> Tensor:
            self.seen += [ids[real].tolist() for ids, real in zip(history.token_ids, history.real, strict=True)]
            return logits * 100

    record = Record()
    reciter([7]).generate(ROWS[:2], sampler=record, max_new_tokens=2)
    assert record.seen == [*ROWS[:2], [*ROWS[0], 7], [*ROWS[1], 7]]


def test_a_repetition_penalty_leads_away_from_what_was_said() -> None:
    lm = Recurrent().lm()
    plain = lm.generate(ROWS[0], max_new_tokens=15)
    penalised = lm.generate(ROWS[0], max_new_tokens=15, sampler=RepetitionPenalty(50.0))
    assert len(set(penalised)) > len(set(plain))


# Contexts, modes and errors


def test_contexts_hold_for_the_whole_call() -> None:
    lm = Recurrent().lm()
    shifted = Parallel(Identity(), UseContext("side", "shift"))
    lm.append(Chain(shifted, Lambda(rolled)))
    with lm.context(side={"shift": 1}):
        in_a_block = lm.generate(ROWS[0], max_new_tokens=4)
    lm.set_context("side", {"shift": 1})
    assert lm.generate(ROWS[0], max_new_tokens=4) == in_a_block
    with lm.context(side={"shift": 0}):
        assert lm.generate(ROWS[0], max_new_tokens=4) != in_a_block
    with pytest.raises(LookupError, match="shift"):
        lm.generate(ROWS[0], max_new_tokens=4)


def test_a_block_wins_over_what_was_set_for_the_next_call() -> None:
    lm = Recurrent().lm()
    lm.append(Chain(Parallel(Identity(), UseContext("side", "shift", default=0)), Lambda(rolled)))
    plain = lm.generate(ROWS[0], max_new_tokens=4)
    lm.set_context("side", {"shift": 1})
    with lm.context(side={"shift": 0}):
        assert lm.generate(ROWS[0], max_new_tokens=4) == plain


def test_a_context_is_consumed_by_a_call_that_fails() -> None:
    lm = Recurrent().lm()
    lm.append(Chain(Parallel(Identity(), UseContext("side", "shift")), GetArg(0)))
    lm.set_context("side", {"shift": 1})
    with pytest.raises(ValueError, match="max_length"):
        lm.generate(ROWS[0], max_length=1)
    with pytest.raises(LookupError, match="shift"):
        lm.generate(ROWS[0])


def test_what_the_backbone_writes_the_head_can_read() -> None:
    backbone = Chain(SetContext("side", "ids"), Lambda(Recurrent()))
    head = Chain(UseContext("side", "ids"), Lambda(one_hot))
    assert CausalLM(backbone, head).generate([3, 4], max_new_tokens=3) == [3, 4, 4, 4, 4]


def test_generation_leaves_the_mode_alone_and_makes_no_gradients() -> None:
    lm = CausalLM(torch.nn.Embedding(10, 4), torch.nn.Linear(4, 10)).train()
    lm.append(Lambda(without_gradients))
    result = lm.generate(torch.tensor([[1, 2]]), max_new_tokens=2)
    assert lm.training
    assert not result.is_inference()
    assert torch.is_grad_enabled()


def without_gradients(logits: Tensor) -> Tensor:
    assert not logits.requires_grad
    return logits


def not_a_number(hidden: Tensor) -> Tensor:
    return hidden * torch.nan


def test_logits_that_are_not_numbers_are_an_error() -> None:
    lm = CausalLM(Recurrent(), not_a_number)
    with pytest.raises(ArithmeticError, match="logits for row 0 are not numbers"):
        lm.generate([1], sampler=Temperature(1.0))


def test_a_sampler_that_leaves_nothing_is_an_error() -> None:
    class Nothing(Sampler):
        def narrow(self, logits: Tensor, history: Any) -> Tensor:
            return torch.full_like(logits, -torch.inf)

    with pytest.raises(ValueError, match="left no token for row 0"):
        Recurrent().lm().generate([1], sampler=Nothing())


def test_padding_for_a_backbone_that_takes_no_mask_is_refused() -> None:
    lm = CausalLM(one_hot, torch.nn.Identity())
    assert lm.generate([[1], [2]], max_new_tokens=1) == [[1, 1], [2, 2]]
    with pytest.raises(ValueError, match="takes no padding_mask"):
        lm.generate([[1], [2, 3]])


def test_a_backbone_that_returns_no_hidden_states_is_an_error() -> None:
    def ids(token_ids: Tensor) -> Tensor:
        return token_ids.float()

    lm = CausalLM(ids, torch.nn.Identity())
    with pytest.raises(TypeError, match=r"returned a tensor of shape \(1,"):
        lm.generate([1, 2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 2.5}, "max_new_tokens must be a whole number"),
        ({"max_new_tokens": -1}, "max_new_tokens must be at least 0, but is -1"),
        ({"max_length": True}, "max_length must be a whole number"),
        ({"sampler": TopP}, "sampler takes samplers"),
        ({"seed": "0"}, "seed must be a whole number"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"seed": 2**64}, "seed must be below"),
        ({"stop": "END"}, "no tokenizer"),
        ({"stop": None}, "stop takes a list of strings, \\[\\] for none"),
        ({"stop_ids": 2}, "stop_ids takes a list of ids"),
        ({"stop_ids": "</s>"}, "stop_ids takes a list of ids"),
        ({"stop_ids": ["</s>"]}, "A stop id must be a whole number"),
        ({"stop_ids": [-1]}, "A stop id must be at least 0"),
        ({"padding_mask": torch.ones(1)}, "the prompt is not a tensor"),
        ({"temperature": 1.0}, "unexpected keyword argument 'temperature'"),
    ],
)
def test_options_without_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Recurrent().lm().generate([1], **options)


@pytest.mark.parametrize("choice", [5, [5], torch.tensor([[5]]), torch.tensor([5, 5]), torch.tensor([5.0])])
def test_a_sampler_that_does_not_choose_an_id_for_each_row_is_an_error(choice: Any) -> None:
    class Other(Sampler):
        def choose(self, logits: Tensor, history: History, generator: torch.Generator) -> Any:
            return choice

    with pytest.raises(TypeError, match=r"one id for each row, here a tensor \(1,\), but returned"):
        Recurrent().lm().generate([1], sampler=Other())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_a_prompt_of_small_integers_may_be_answered_with_large_ids(dtype: torch.dtype) -> None:
    result = reciter([300, 301]).generate(torch.tensor([[5, 6]], dtype=dtype), max_new_tokens=2)
    assert result.tolist() == [[5, 6, 300, 301]]


@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_the_last_positions_are_counted_along_the_tokens(shape: tuple[int, ...]) -> None:
    lm = CausalLM(Chain(Lambda(one_hot)), Identity())
    token_ids = torch.randint(20, shape)
    assert torch.equal(lm(token_ids, last_positions=2), lm(token_ids)[..., -2:, :])


@pytest.mark.parametrize("last_positions", [0, -1])
def test_last_positions_are_at_least_one(last_positions: int) -> None:
    with pytest.raises(ValueError, match="last_positions must be at least 1"):
        CausalLM(Chain(Lambda(one_hot)), Identity())(torch.tensor([[1, 2]]), last_positions=last_positions)


def test_a_model_without_values_is_refused() -> None:
    lm = CausalLM(Chain(Lambda(one_hot)), torch.nn.Linear(20, 20, device="meta"))
    with pytest.raises(ValueError, match="meta device"):
        lm.generate([1])
