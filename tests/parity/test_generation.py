"""What the embedded model says. (Generating with small models of every family: `test_families.py`.)"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from suture import CausalLM
from tests.parity.families import Reference
from tests.parity.test_llama import PROMPT

LIBRARY = """\
A library is more than a place where books are kept. For many people in a small town it is the only warm room where \
nobody asks them to buy anything. Children come after school to do their homework, and older people come in the \
morning to read the newspaper. The librarian knows most of them by name. She helps one of them to write a letter and \
another to find a job, and in between she puts the returned books back on their shelves. When the council wanted to \
close the library last year, more than two thousand people signed a letter against it."""


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
    model = Reference(smollm2_path.parent, gguf_file=smollm2_path.name, dtype=torch.float32)
    ids = torch.tensor([encoded(smollm2, PROMPT)[:64]])

    theirs = model.greedy(ids, torch.ones_like(ids).bool(), 64)

    assert torch.equal(smollm2.generate(ids, max_new_tokens=64, stop_ids=[], strip_prompt=True), theirs)
