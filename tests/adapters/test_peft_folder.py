from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import LlamaForCausalLM

from suture import CausalLM, SelectionError
from suture.adapters import LoRA
from suture.weights.checkpoint import CheckpointError, MissingFileError
from suture.weights.safe_file import read_tensors, write_tensors
from tests.adapters.trained import facts
from tests.plain_models import ImageClassifier, tiny_gpt2

# PEFT asks transformers for something by its old name.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

TOKENS = torch.tensor([[3, 1, 4, 1, 5]])

KINDS: dict[str, dict[str, Any]] = {
    "attention": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]},
    "everything": {"r": 3, "lora_alpha": 5, "target_modules": "all-linear", "lora_dropout": 0.1},
    "by rank": {
        "r": 4,
        "lora_alpha": 4,
        "target_modules": ["q_proj", "o_proj", "down_proj"],
        "rank_pattern": {"o_proj": 2, "layers.1.self_attn.q_proj": 5},
        "alpha_pattern": {"down_proj": 16},
        "use_rslora": True,
    },
}


def trained(model: Any, folder: Path, arguments: dict[str, Any]) -> Tensor:
    """Saves a LoRA of PEFT with random weights, and gives the logits of PEFT."""
    torch.manual_seed(0)
    adapted: Any = get_peft_model(model, LoraConfig(**arguments)).eval()
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.3)
        adapted.save_pretrained(folder)
        return adapted(TOKENS).logits


@pytest.mark.parametrize("kind", KINDS)
def test_a_tree_gives_the_logits_of_peft(tiny_llama_folder: Callable[..., Path], tmp_path: Path, kind: str) -> None:
    folder = tiny_llama_folder()
    model: Any = LlamaForCausalLM.from_pretrained(folder)
    wanted = trained(model, tmp_path, KINDS[kind])
    lm = CausalLM.from_pretrained(folder)
    before, bare = facts(lm), lm(TOKENS)
    group = LoRA.load(lm, tmp_path)
    torch.testing.assert_close(lm(TOKENS), wanted, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(bare, wanted, atol=0.1)
    group.merge()
    torch.testing.assert_close(lm(TOKENS), wanted, atol=1e-3, rtol=1e-3)
    group.eject()
    assert facts(lm) == before


def test_a_plain_module_gives_the_logits_of_peft(tmp_path: Path) -> None:
    gpt2 = tiny_gpt2()
    state = {name: tensor.clone() for name, tensor in gpt2.state_dict().items()}
    wanted = trained(gpt2, tmp_path, {"r": 4, "target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True})
    other = tiny_gpt2()
    other.load_state_dict(state)
    LoRA.load(other, tmp_path)
    torch.testing.assert_close(other(TOKENS).logits, wanted, atol=1e-4, rtol=1e-4)


def test_a_lora_of_a_fused_projection_is_one_for_each_of_its_parts_in_a_tree(tmp_path: Path) -> None:
    gpt2 = tiny_gpt2()
    gpt2.save_pretrained(tmp_path / "base")
    arguments = {"r": 4, "target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True}
    wanted = trained(gpt2, tmp_path / "lora", arguments)
    lm = CausalLM.from_pretrained(tmp_path / "base")
    group = LoRA.load(lm, tmp_path / "lora")
    assert len(group) == 2 * 6
    torch.testing.assert_close(lm(TOKENS), wanted, atol=1e-4, rtol=1e-4)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    trained(tiny_gpt2(), tmp_path, {"r": 4, "target_modules": ["c_attn"], "fan_in_fan_out": True})
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"use_dora": True}, "use_dora = True"),
        ({"bias": "all"}, "bias = 'all'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"a_field_of_tomorrow": 2}, "a_field_of_tomorrow = 2"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights = 'pissa'"),
        ({"peft_type": "IA3"}, "type 'IA3'"),
        ({"r": None}, "does not describe LoRAs"),
    ],
    ids=str,
)
def test_what_is_not_understood_is_refused_by_name(folder: Path, changes: dict[str, Any], says: str) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(cast("dict[str, Any]", json.loads(path.read_text())) | changes))
    with pytest.raises(CheckpointError, match=says):
        LoRA.load(tiny_gpt2(), folder)


def test_a_tensor_that_is_not_understood_is_refused_by_name(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    tensors, metadata = read_tensors(path)
    tensors["base_model.model.transformer.wte.lora_embedding_A"] = torch.zeros(1)
    write_tensors(path, tensors, metadata)
    with pytest.raises(CheckpointError, match="lora_embedding_A"):
        LoRA.load(tiny_gpt2(), folder)


def test_another_model_is_refused_by_name(folder: Path, tiny_llama_folder: Callable[..., Path]) -> None:
    with pytest.raises(SelectionError, match="no layer at 'transformer"):
        LoRA.load(ImageClassifier(), folder)
    with pytest.raises(CheckpointError, match="no layer that Llama has"):
        LoRA.load(CausalLM.from_pretrained(tiny_llama_folder()), folder)
    with pytest.raises(ValueError, match="Was it made for another model"):
        LoRA.load(tiny_gpt2(n_embd=32), folder)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="no folder of PEFT"):
        LoRA.load(tiny_gpt2(), tmp_path)
