"""GGUF files of each family: the parameters of the folder they were made from, and the logits of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from suture import CausalLM
from suture.weights.checkpoint import CheckpointError
from tests.parity.families import Example, Reference
from tests.parity.gguf_models import convert

# No file says what attention scores are divided by, so the models have the width that readers take for granted.
WIDE: dict[str, Any] = {"head_dim": 256, "num_attention_heads": 2, "num_key_value_heads": 1}
# The only number of positions that transformers reads a GPT-2 file with.
POSITIONS: dict[str, Any] = {"n_positions": 1024}
CASES: dict[str, tuple[str, Example]] = {
    "GPT-2": ("gpt2", Example("GPT2", POSITIONS, head="LMHeadModel")),
    "GPT-2, untied": ("gpt2", Example("GPT2", POSITIONS | {"tie_word_embeddings": False}, head="LMHeadModel")),
    "Gemma": ("gemma", Example("Gemma", WIDE)),
    "Gemma 2": (
        "gemma2",
        Example(
            "Gemma2",
            WIDE
            | {"query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
            | {"sliding_window": 5},
        ),
    ),
    "Gemma 3": (
        "gemma3",
        Example(
            "Gemma3Text",
            WIDE | {"query_pre_attn_scalar": 256, "num_hidden_layers": 7, "layer_types": None, "sliding_window": 5},
        ),
    ),
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Path]:
    """The architecture, a folder, and the file made from it."""
    architecture, example = CASES[request.param]
    root = tmp_path_factory.mktemp("gguf")
    return architecture, example.save(root / "folder"), convert(root / "folder", root / "model.gguf", architecture)


def test_a_file_gives_the_parameters_of_the_folder(case: tuple[str, Path, Path]) -> None:
    _, folder, path = case
    expected, loaded = CausalLM.from_pretrained(folder), CausalLM.from_pretrained(path)

    assert expected.description is not None
    assert loaded.description is not None
    assert loaded.description.config == expected.description.config
    assert loaded.state_dict().keys() == expected.state_dict().keys()
    for key, tensor in loaded.state_dict().items():
        torch.testing.assert_close(tensor, expected.state_dict()[key], rtol=0, atol=2e-7)


def test_logits_of_a_file_equal_those_of_transformers(case: tuple[str, Path, Path]) -> None:
    architecture, folder, path = case
    if architecture == "gemma":
        reference = Reference(folder)  # which transformers reads from a folder only
    else:
        reference = Reference(path.parent, gguf_file=path.name, dtype=torch.float32)
    ids = torch.randint(3, 320, (2, 24), generator=torch.Generator().manual_seed(1))

    with torch.no_grad():
        ours = CausalLM.from_pretrained(path)(ids)

    torch.testing.assert_close(ours, reference.logits(ids), rtol=0, atol=1e-5)


def test_a_key_that_may_change_the_numbers_is_refused_by_name(case: tuple[str, Path, Path], tmp_path: Path) -> None:
    architecture, folder, _ = case
    path = convert(folder, tmp_path / "odd.gguf", architecture, logit_scale=0.5)

    with pytest.raises(CheckpointError, match=r"not understood: logit_scale = 0.5"):
        CausalLM.from_pretrained(path)


def test_the_largest_models_divide_their_scores_by_the_width_for_each_head(tmp_path: Path) -> None:
    tiny = {"num_hidden_layers": 46, "head_dim": 16, "query_pre_attn_scalar": 8, "sliding_window": 5}
    caps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    folder = Example("Gemma2", tiny | caps).save(tmp_path / "folder")

    loaded = CausalLM.from_pretrained(convert(folder, tmp_path / "model.gguf", "gemma2"))

    assert loaded.description is not None
    assert getattr(loaded.description.config, "attention_divisor", None) == 8
