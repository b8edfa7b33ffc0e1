"""Llama beside transformers, on the same files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from suture import layers as sl
from suture import models
from suture.models import LoadedModel

PROMPT = """\
The old lighthouse keeper had climbed the same one hundred and ninety-nine steps every evening for forty years, and he \
still counted them aloud. At the top he lit the lamp, wiped the glass, and looked out over the dark water, where the \
fishing boats were coming home one after another, like beads on a string.
"""

VARIANTS: dict[str, dict[str, Any]] = {
    "untied": {},
    "tied": {"tie_word_embeddings": True},
    "one query head for each key head": {"num_key_value_heads": 4},
    "four query heads for one key head": {"num_key_value_heads": 1},
    "llama3 scaling": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 1000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    },
    "linear scaling": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0}},
    "attention bias": {"attention_bias": True},
    "feed-forward bias": {"mlp_bias": True},
    "wide heads": {"head_dim": 16},
}


def reference(folder: Path, **options: Any) -> LlamaForCausalLM:
    loaded = cast("Any", AutoModelForCausalLM).from_pretrained(folder, **options)
    return cast("LlamaForCausalLM", loaded.eval())


def reference_logits(model: LlamaForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return cast("torch.Tensor", model(ids).logits)


def logits(model: LoadedModel, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model.head(model.backbone(ids))


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> LoadedModel:
    return models.load(smollm2_path)


@pytest.fixture(scope="module")
def smollm2_reference(smollm2_path: Path) -> LlamaForCausalLM:
    return reference(smollm2_path.parent, gguf_file=smollm2_path.name, dtype=torch.float32)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_of_a_folder_equal_those_of_transformers(tiny_llama_folder: Callable[..., Path], variant: str) -> None:
    folder = tiny_llama_folder(**VARIANTS[variant])
    ids = torch.randint(3, 300, (2, 48))

    ours, theirs = logits(models.load(folder), ids), reference_logits(reference(folder), ids)

    assert theirs.std(dim=1).mean() > 0.1  # a model that says the same whatever it sees would prove nothing
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_saved_model_is_loaded_by_transformers_with_equal_logits(
    tiny_llama_folder: Callable[..., Path], tmp_path: Path, variant: str
) -> None:
    model = models.load(tiny_llama_folder(**VARIANTS[variant]))
    ids = torch.randint(3, 300, (2, 48))

    models.save(tmp_path, model.backbone, model.head, model.description)

    torch.testing.assert_close(reference_logits(reference(tmp_path), ids), logits(model, ids), atol=1e-5, rtol=0)


def test_a_bfloat16_model_is_saved_and_loaded_by_transformers_as_such(
    tiny_llama_folder: Callable[..., Path], tmp_path: Path
) -> None:
    model = models.load(tiny_llama_folder(), dtype=torch.bfloat16)

    models.save(tmp_path, model.backbone, model.head, model.description)
    saved = reference(tmp_path)

    assert saved.dtype == torch.bfloat16
    assert torch.equal(saved.model.embed_tokens.weight, model.backbone.layer("embedding", torch.nn.Embedding).weight)


@pytest.mark.parametrize("edit", ["drop the first", "repeat the second", "turn round"])
def test_a_model_with_other_blocks_is_loaded_by_transformers_with_equal_logits(
    tiny_llama_folder: Callable[..., Path], tmp_path: Path, edit: str
) -> None:
    model = models.load(tiny_llama_folder())
    blocks = model.backbone.layer("blocks", sl.Stack)
    if edit == "drop the first":
        blocks.pop(0)
    elif edit == "repeat the second":
        blocks.insert(2, blocks.layer("1", models.TransformerBlock).structural_copy())
    else:
        blocks.insert(2, cast("Any", blocks.pop(0).layers[0]))
    ids = torch.randint(3, 300, (2, 48))

    models.save(tmp_path, model.backbone, model.head, model.description)

    torch.testing.assert_close(reference_logits(reference(tmp_path), ids), logits(model, ids), atol=1e-5, rtol=0)


def test_a_saved_tokenizer_is_loaded_by_transformers(tiny_llama_folder: Callable[..., Path], tmp_path: Path) -> None:
    model = models.load(tiny_llama_folder())
    models.save(tmp_path, model.backbone, model.head, model.description)

    saved = cast("Any", AutoTokenizer).from_pretrained(tmp_path)

    original = cast("Any", AutoTokenizer).from_pretrained(tiny_llama_folder())
    assert saved(PROMPT)["input_ids"] == original(PROMPT)["input_ids"]
    assert saved.eos_token == original.eos_token == "</s>"


@pytest.mark.long
def test_logits_of_a_quantised_gguf_file_equal_those_of_transformers(
    smollm2: LoadedModel, smollm2_reference: LlamaForCausalLM
) -> None:
    vocabulary = smollm2.description.vocabulary
    assert vocabulary is not None
    ids = torch.tensor([vocabulary.tokenizer.encode(PROMPT).ids[:64]])
    assert ids.shape == (1, 64)

    ours, theirs = logits(smollm2, ids), reference_logits(smollm2_reference, ids)

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
    torch.testing.assert_close(reference_logits(reference(tmp_path), ids), logits(smollm2, ids), atol=2e-3, rtol=0)
