from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, LlamaForCausalLM

from suture import layers as sl
from suture.generation import CausalLM
from suture.weights.checkpoint import CheckpointError

PROMPTS = ["Once upon a time", "The", "A surgeon reads before she cuts"]


@pytest.fixture(scope="module")
def folder(tiny_llama_folder: Callable[..., Path]) -> Path:
    return tiny_llama_folder()


@pytest.fixture(scope="module")
def lm(folder: Path) -> CausalLM:
    return CausalLM.from_pretrained(folder)


def test_texts_equal_those_of_transformers(folder: Path, lm: CausalLM) -> None:
    tokenizer = cast("Any", AutoTokenizer).from_pretrained(folder)
    reference = cast("Any", LlamaForCausalLM).from_pretrained(folder).eval()
    batch = tokenizer(PROMPTS, return_tensors="pt", padding=True, return_token_type_ids=False)
    theirs = reference.generate(**batch, max_new_tokens=20, do_sample=False)
    assert not lm.training
    assert lm.generate(PROMPTS, max_new_tokens=20) == tokenizer.batch_decode(theirs, skip_special_tokens=True)
    mask = batch["attention_mask"]
    assert lm.generate(batch["input_ids"], padding_mask=mask, max_new_tokens=20).tolist() == theirs.tolist()


def test_the_checkpoints_own_end_ids_stop(lm: CausalLM) -> None:
    assert lm.special_ids.eos_ids == (2,)
    with torch.no_grad():
        logits: Tensor = lm(torch.tensor([[5, 6]]))
        likeliest = int(logits[0, -1].argmax())
    ends = copy.deepcopy(lm)
    ends.special_ids = type(lm.special_ids)(eos_ids=(likeliest,), pad_id=0)
    assert ends.generate([5, 6]) == [5, 6, likeliest]


def test_a_cut_model_is_saved_and_loaded(lm: CausalLM, tmp_path: Path) -> None:
    cut = copy.deepcopy(lm)
    cut.layer("backbone.blocks", sl.Stack).pop(1)
    cut.save_pretrained(tmp_path)
    again = CausalLM.from_pretrained(tmp_path)
    assert again.generate(PROMPTS, max_new_tokens=8) == cut.generate(PROMPTS, max_new_tokens=8)
    assert again.generate(PROMPTS, max_new_tokens=8) != lm.generate(PROMPTS, max_new_tokens=8)


def insert_first(lm: CausalLM) -> None:
    lm.insert(0, nn.Identity())


def insert_between(lm: CausalLM) -> None:
    lm.insert(1, nn.Identity())


def append(lm: CausalLM) -> None:
    lm.append(nn.Identity())


def replace_last(lm: CausalLM) -> None:
    lm.replace(lm[1], nn.Dropout())


def wrap_head(lm: CausalLM) -> None:
    lm.replace(lm.head, sl.Sum(lm.head, nn.Linear(32, 320)))


@pytest.mark.parametrize("edit", [insert_first, insert_between, append, replace_last, wrap_head])
def test_what_a_checkpoint_has_no_place_for_is_not_dropped(
    lm: CausalLM, tmp_path: Path, edit: Callable[[CausalLM], None]
) -> None:
    edited = copy.deepcopy(lm)
    edit(edited)
    with pytest.raises(CheckpointError, match="Something stands beside or around the backbone and the head"):
        edited.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_model_from_no_checkpoint_is_not_saved_as_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="this one came from none"):
        CausalLM(nn.Embedding(4, 4), nn.Linear(4, 4)).save_pretrained(tmp_path)


def test_copies_share_what_describes_the_model(lm: CausalLM) -> None:
    copied = copy.deepcopy(lm)
    assert copied.description is lm.description
    assert copied.tokenizer is lm.tokenizer
