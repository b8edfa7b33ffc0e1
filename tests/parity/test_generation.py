"""Generating beside transformers, on the same files: greedy tokens, and logits four ways."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from suture import CausalLM
from tests.parity.test_llama import PROMPT, VARIANTS, reference

LIBRARY = """\
A library is more than a place where books are kept. For many people in a small town it is the only warm room where \
nobody asks them to buy anything. Children come after school to do their homework, and older people come in the \
morning to read the newspaper. The librarian knows most of them by name. She helps one of them to write a letter and \
another to find a job, and in between she puts the returned books back on their shelves. When the council wanted to \
close the library last year, more than two thousand people signed a letter against it."""
ROWS = [[5, 9, 31], [7, 40, 12, 8, 99], [3, 17, 250, 61, 20, 33, 300, 44]]
NEW = 12


def greedy(model: Any, ids: Tensor, real: Tensor, new: int) -> Tensor:
    """What transformers continues with, whatever the checkpoint says about ends."""
    model.generation_config.eos_token_id = None
    made = model.generate(ids, attention_mask=real.long(), max_new_tokens=new, do_sample=False, pad_token_id=0)
    return cast("Tensor", made)[:, ids.shape[1] :]


def left_padded(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    real = torch.tensor([[False] * (width - len(row)) + [True] * len(row) for row in rows])
    return ids, real


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_tokens_equal_those_of_transformers(tiny_llama_folder: Callable[..., Path], variant: str) -> None:
    folder = tiny_llama_folder(**VARIANTS[variant])
    ids, real = left_padded(ROWS)
    lm = CausalLM.from_pretrained(folder)

    padded = lm.generate(ROWS, max_new_tokens=NEW, stop_ids=[], strip_prompt=True)
    alone = [lm.generate(row, max_new_tokens=NEW, stop_ids=[], strip_prompt=True) for row in ROWS]

    assert padded == greedy(reference(folder), ids, real, NEW).tolist()
    assert alone == padded
    assert len({token for row in padded for token in row}) > 3


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("pieces", [(8,), (3, 5), (1, 1, 1, 5), (7, 1)])
@pytest.mark.parametrize("variant", ["untied", "llama3 scaling", "four query heads for one key head"])
def test_logits_with_a_cache_equal_those_of_transformers(
    tiny_llama_folder: Callable[..., Path], variant: str, pieces: tuple[int, ...], padded: bool
) -> None:
    folder = tiny_llama_folder(**VARIANTS[variant])
    ids, real = left_padded(ROWS if padded else ROWS[2:])
    lm, model = CausalLM.from_pretrained(folder), cast("Any", reference(folder))
    cache = lm.init_cache(batch=len(ids), length=8)

    with torch.no_grad():
        theirs = model(ids, attention_mask=real.long(), position_ids=(real.cumsum(-1) - 1).clamp(min=0)).logits
        ends = list(itertools.accumulate(pieces))
        spans = [slice(end - piece, end) for end, piece in zip(ends, pieces, strict=True)]
        ours = torch.cat([lm(ids[:, at], padding_mask=real[:, at], cache=cache) for at in spans], dim=1)
        uncached = lm(ids, padding_mask=real)

    torch.testing.assert_close(ours[real], theirs[real], atol=1e-5, rtol=0)
    torch.testing.assert_close(uncached[real], theirs[real], atol=1e-5, rtol=0)


@pytest.fixture(scope="module")
def smollm2() -> CausalLM:
    return CausalLM.from_pretrained("smollm2")


def encoded(lm: CausalLM, text: str) -> list[int]:
    assert lm.tokenizer is not None
    return lm.tokenizer.encode(text)


def test_smollm2_knows_the_capital_of_france(smollm2: CausalLM) -> None:
    assert smollm2.generate("The capital of France is", max_new_tokens=1) == "The capital of France is Paris"


def test_the_perplexity_of_english_is_as_expected(smollm2: CausalLM) -> None:
    ids = torch.tensor([encoded(smollm2, LIBRARY)])
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(smollm2(ids)[0, :-1], ids[0, 1:])
    assert loss.exp().item() == pytest.approx(24.7, abs=0.5)


@pytest.mark.long
def test_smollm2_continues_with_the_tokens_of_transformers(smollm2: CausalLM, smollm2_path: Path) -> None:
    model = reference(smollm2_path.parent, gguf_file=smollm2_path.name, dtype=torch.float32)
    ids = torch.tensor([encoded(smollm2, PROMPT)[:64]])

    theirs = greedy(model, ids, torch.ones_like(ids).bool(), 64)

    assert torch.equal(smollm2.generate(ids, max_new_tokens=64, stop_ids=[], strip_prompt=True), theirs)
