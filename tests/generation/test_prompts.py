from __future__ import annotations

from typing import Any

import pytest
import torch

from suture.generation.prompts import read_prompts
from suture.generation.text import Tokenizer


@pytest.mark.parametrize(
    "prompt",
    [
        ["a", ["b"]],
        ["a", 3],
        [[1], "b"],
        [1.5],
        [[1, 2.5]],
        [True],
        [[[1]]],
        b"bytes",
        {"role": "user"},
        3,
        None,
        [torch.tensor([1])],
    ],
)
def test_other_forms_are_refused(byte_level: Tokenizer, prompt: Any) -> None:
    with pytest.raises(TypeError, match="A prompt is a string, a list of strings, chat messages"):
        read_prompts(prompt, byte_level)


def test_an_empty_list_is_refused(byte_level: Tokenizer) -> None:
    with pytest.raises(ValueError, match="The prompt is an empty list"):
        read_prompts([], byte_level)


@pytest.mark.parametrize("prompt", ["a", ["a"], [{"role": "user", "content": "a"}], [[{"role": "user"}]]])
def test_text_without_a_tokenizer_is_refused(prompt: Any) -> None:
    with pytest.raises(ValueError, match="This model has no tokenizer, so it cannot be given text"):
        read_prompts(prompt, None)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (torch.tensor([[0.5]]), "its dtype is torch.float32"),
        (torch.tensor([[True]]), "its dtype is torch.bool"),
        (torch.zeros(1, 1, 1, dtype=torch.long), r"but received \(1, 1, 1\)"),
        (torch.zeros(0, 4, dtype=torch.long), r"but received \(0, 4\)"),
        (torch.tensor(3), r"but received \(\)"),
    ],
)
def test_tensors_that_are_no_batch_of_ids_are_refused(prompt: torch.Tensor, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        read_prompts(prompt, None)


def test_negative_ids_are_refused() -> None:
    with pytest.raises(ValueError, match="prompt 1 holds the token id -100"):
        read_prompts([[1], [2, -100]], None)


@pytest.mark.parametrize("row", [[True, True, False], [True, False, True]])
def test_padding_that_is_not_on_the_left_is_refused(row: list[bool]) -> None:
    mask = torch.tensor([[True, True, True], row])
    with pytest.raises(ValueError, match="In row 1 of padding_mask, padding stands behind a real token"):
        read_prompts(torch.ones(2, 3, dtype=torch.long), None, mask)


def test_a_mask_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the shape of the prompt, \(2, 3\), but has \(3,\)"):
        read_prompts(torch.ones(2, 3, dtype=torch.long), None, torch.ones(3))


def test_a_mask_of_ones_and_zeros_will_do() -> None:
    prompts = read_prompts(torch.tensor([[0, 5], [6, 7]]), None, torch.tensor([[0, 1], [1, 1]]))
    assert prompts.rows == [[5], [6, 7]]
