from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from suture import layers as sl
from suture import models
from suture.models import GPT2Config
from suture.models.gpt2 import GPT2, build, read, scale, write
from suture.weights.checkpoint import Checkpoint, CheckpointError
from suture.weights.safe_file import read_tensors, write_tensors
from suture.weights.vocabulary import SpecialIds

CONFIG = GPT2Config(320, 32, 128, 3, 4, 64, 1e-5, "gelu_new", True, False, tied=True)


def fields(**changes: object) -> Checkpoint:
    present = {name: value for name, value in {**write(CONFIG), **changes}.items() if value != "absent"}
    return Checkpoint(Path("folder"), "transformers", "gpt2", present, {})


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[GPT2Config], models.LoadedModel]:
    """Saves a model of random weights, and gives it."""

    def make(config: GPT2Config) -> models.LoadedModel:
        torch.manual_seed(0)
        model = models.LoadedModel(*build(config), models.Description(GPT2, config, SpecialIds(), None))
        models.save(tmp_path, model.backbone, model.head, model.description)
        return model

    return make


def test_what_is_written_is_read() -> None:
    for config in (
        CONFIG,
        replace(CONFIG, tied=False, feedforward_dim=48, activation="relu", norm_epsilon=1e-3),
        replace(CONFIG, scaled_by_width=False, scaled_by_block=True),
    ):
        assert read(Checkpoint(Path("folder"), "transformers", "gpt2", write(config), {})) == config


def test_fields_that_old_files_leave_out_take_their_defaults() -> None:
    left_out = ("n_inner", "activation_function", "scale_attn_weights", "scale_attn_by_inverse_layer_idx")

    config = read(fields(**dict.fromkeys((*left_out, "tie_word_embeddings", "layer_norm_epsilon"), "absent")))

    assert config == CONFIG


def test_fields_that_change_nothing_are_passed_over() -> None:
    dropouts = {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1, "summary_first_dropout": 0.1}
    summary = {"summary_type": "cls_index", "summary_use_proj": True, "summary_activation": None}
    off = {"reorder_and_upcast_attn": False, "add_cross_attention": False, "n_ctx": 64, "n_inner": None}

    assert read(fields(**dropouts, **summary, **off, task_specific_params={})) == CONFIG


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"logit_softcap": 30.0}, r"folder.config.json: fields .* not understood: logit_softcap = 30.0\. They may"),
        ({"reorder_and_upcast_attn": True}, r"reorder_and_upcast_attn = True"),
        ({"add_cross_attention": True}, r"add_cross_attention = True"),
        ({"activation_function": "gelu_10"}, r"The activation 'gelu_10' is not understood; gelu_new, "),
        ({"scale_attn_weights": 2}, r"scale_attn_weights is 2 where true or false"),
        ({"n_head": 5}, r"5 heads, which do not divide a width of 32"),
        ({"n_positions": "absent"}, r"the field n_positions is missing"),
    ],
)
def test_a_field_that_may_change_the_numbers_is_refused_by_name(changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(CheckpointError, match=complaint):
        read(fields(**changes))


def test_scores_are_scaled_by_width_and_by_block() -> None:
    assert scale(CONFIG, 2) == 8**-0.5
    assert scale(replace(CONFIG, scaled_by_block=True), 2) == 8**-0.5 / 3
    assert scale(replace(CONFIG, scaled_by_width=False), 2) == 1.0


def test_a_file_holds_fused_and_transposed_weights(
    saved: Callable[[GPT2Config], models.LoadedModel], tmp_path: Path
) -> None:
    model = saved(replace(CONFIG, feedforward_dim=48))
    stored, _ = read_tensors(tmp_path / "model.safetensors")
    tree = model.backbone.state_dict()

    heads = "blocks.1.attention.heads.projections"
    parts = [tree[f"{heads}.{name}.weight"] for name in ("query", "key", "value")]
    assert torch.equal(stored["transformer.h.1.attn.c_attn.weight"], torch.cat(parts).t())
    assert torch.equal(stored["transformer.h.1.attn.c_attn.bias"][32:64], tree[f"{heads}.key.bias"])
    assert stored["transformer.h.1.mlp.c_fc.weight"].shape == (32, 48)
    assert "lm_head.weight" not in stored


def test_a_file_of_the_body_alone_with_masks_as_the_first_ones_were(
    saved: Callable[[GPT2Config], models.LoadedModel], tmp_path: Path
) -> None:
    model = saved(CONFIG)
    stored, _ = read_tensors(tmp_path / "model.safetensors")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in stored.items()}
    for number in range(3):
        bare[f"h.{number}.attn.bias"] = torch.ones(1, 1, 64, 64).tril()
        bare[f"h.{number}.attn.masked_bias"] = torch.tensor(-1e4)
    write_tensors(tmp_path / "model.safetensors", bare, {"format": "pt"})

    loaded = models.load(tmp_path)

    expected = model.backbone.state_dict()
    assert all(torch.equal(tensor, expected[key]) for key, tensor in loaded.backbone.state_dict().items())


def test_a_position_beyond_those_of_the_model_is_refused() -> None:
    backbone, _ = build(CONFIG)

    with pytest.raises(ValueError, match="The model has 64 positions; received 65"):
        backbone(torch.zeros(1, 65, dtype=torch.long))
    with pytest.raises(IndexError, match="received position 64"):
        backbone(torch.zeros(1, 1, dtype=torch.long), positions=torch.tensor([[64]]))


def test_blocks_whose_scale_says_where_they_were_are_not_saved_elsewhere(
    saved: Callable[[GPT2Config], models.LoadedModel], tmp_path: Path
) -> None:
    model = saved(replace(CONFIG, scaled_by_block=True))
    model.backbone.layer("blocks", sl.Stack).pop(0)

    with pytest.raises(CheckpointError, match=r"attend is ScaledDotProductAttention\(causal=True, scale=0.176777"):
        models.save(tmp_path, model.backbone, model.head, model.description)
