"""The embedded model, and tokenizers, beside transformers. (Small models of every family: `test_families.py`.)"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import AutoTokenizer

from suture import models
from suture.models import LoadedModel
from tests.parity.families import Reference

PROMPT = """\
The old lighthouse keeper had climbed the same one hundred and ninety-nine steps every evening for forty years, and he \
still counted them aloud. At the top he lit the lamp, wiped the glass, and looked out over the dark water, where the \
fishing boats were coming home one after another, like beads on a string.
"""


def logits(model: LoadedModel, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model.head(model.backbone(ids))


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> LoadedModel:
    return models.load(smollm2_path)


@pytest.fixture(scope="module")
def smollm2_reference(smollm2_path: Path) -> Reference:
    return Reference(smollm2_path.parent, gguf_file=smollm2_path.name, dtype=torch.float32)


def test_a_saved_tokenizer_is_loaded_by_transformers(tiny_llama_folder: Callable[..., Path], tmp_path: Path) -> None:
    model = models.load(tiny_llama_folder())
    models.save(tmp_path, model.backbone, model.head, model.description)

    saved = cast("Any", AutoTokenizer).from_pretrained(tmp_path)

    original = cast("Any", AutoTokenizer).from_pretrained(tiny_llama_folder())
    assert saved(PROMPT)["input_ids"] == original(PROMPT)["input_ids"]
    assert saved.eos_token == original.eos_token == "</s>"


@pytest.mark.long
def test_logits_of_a_quantised_gguf_file_equal_those_of_transformers(
    smollm2: LoadedModel, smollm2_reference: Reference
) -> None:
    vocabulary = smollm2.description.vocabulary
    assert vocabulary is not None
    ids = torch.tensor([vocabulary.tokenizer.encode(PROMPT).ids[:64]])
    assert ids.shape == (1, 64)

    ours, theirs = logits(smollm2, ids), smollm2_reference.logits(ids)

    torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=0)


@pytest.mark.long
def test_a_gguf_model_saved_as_a_folder_gives_transformers_equal_logits_and_tokens(
    smollm2: LoadedModel, smollm2_path: Path, tmp_path: Path
) -> None:
    vocabulary = smollm2.description.vocabulary
    assert vocabulary is not None
    models.save(tmp_path, smollm2.backbone, smollm2.head, smollm2.description)

    tokenizer = cast("Any", AutoTokenizer).from_pretrained(tmp_path)
    ids = torch.tensor([tokenizer(PROMPT)["input_ids"][:64]])

    assert ids.tolist() == [vocabulary.tokenizer.encode(PROMPT).ids[:64]]
    assert tokenizer.chat_template == vocabulary.chat_template
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    torch.testing.assert_close(Reference(tmp_path).logits(ids), logits(smollm2, ids), atol=2e-3, rtol=0)
