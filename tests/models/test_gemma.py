"""Gemma 1, 2 and 3: their configurations, and what is theirs alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from suture import CausalLM, models
from suture import layers as sl
from suture.layers.rotary import LinearScaling
from suture.models import Gemma2Config, Gemma3Config, GemmaConfig, gemma, gemma2, gemma3
from suture.models.gemma_parts import ScaledTokenEmbedding, ZeroCentredRMSNorm
from suture.weights.checkpoint import Checkpoint, CheckpointError
from suture.weights.vocabulary import SpecialIds

SIZES: dict[str, Any] = {
    "vocabulary_size": 320,
    "embedding_dim": 32,
    "feedforward_dim": 64,
    "num_blocks": 3,
    "num_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_positions": 128,
    "norm_epsilon": 1e-6,
    "attention_bias": False,
    "tied": True,
}
FIRST = GemmaConfig(**SIZES, rotary_base=1e4, rotary_scaling=None)
SECOND = Gemma2Config(
    **SIZES,
    rotary_base=1e4,
    rotary_scaling=None,
    attention_divisor=256,
    attention_cap=50.0,
    logits_cap=30.0,
    window=5,
    windowed=(True, False, True),
)
THIRD = Gemma3Config(
    **SIZES,
    rotary_base=1e6,
    rotary_scaling=None,
    window_rotary_base=1e4,
    attention_divisor=256,
    logits_cap=None,
    window=5,
    windowed=(True, True, True),
)
PAGES = {"gemma": (gemma, FIRST), "gemma2": (gemma2, SECOND), "gemma3_text": (gemma3, THIRD)}

every_page = pytest.mark.parametrize("kind", PAGES)


def fields(kind: str, **changes: object) -> Checkpoint:
    page, config = PAGES[kind]
    content = {**page.write(config), **changes}
    present = {name: value for name, value in content.items() if value != "absent"}
    return Checkpoint(Path("folder"), "transformers", kind, present, {})


def read(kind: str, **changes: object) -> Any:
    return PAGES[kind][0].read(fields(kind, **changes))


# config.json


@every_page
def test_what_is_written_is_read(kind: str) -> None:
    page: Any = PAGES[kind][0]
    config: Any = PAGES[kind][1]
    changes: list[dict[str, Any]] = [
        {},
        {"tied": False, "attention_bias": True, "head_dim": 8},
        {"rotary_base": 500.0, "rotary_scaling": LinearScaling(4.0)},
    ]
    if kind != "gemma":
        changes += [{"windowed": (False, True, False), "window": 9, "attention_divisor": 24.5}, {"logits_cap": 7.0}]
    if kind == "gemma2":
        changes += [{"attention_cap": None, "logits_cap": None}]
    for change in changes:
        changed = replace(config, **change)
        assert page.read(Checkpoint(Path("folder"), "transformers", kind, page.write(changed), {})) == changed


@every_page
def test_fields_that_old_files_leave_out_take_their_defaults(kind: str) -> None:
    left_out = ("rope_theta", "rope_scaling", "rope_local_base_freq", "attention_bias", "tie_word_embeddings")
    more = ("hidden_activation", "hidden_act", "rms_norm_eps", "query_pre_attn_scalar", "layer_types")
    caps = ("attn_logit_softcapping", "final_logit_softcapping")

    assert read(kind, **dict.fromkeys((*left_out, *more, *caps), "absent")) == PAGES[kind][1]
    assert read(kind, head_dim="absent").head_dim == 256


@pytest.mark.parametrize(("kind", "full"), [("gemma2", {1, 3, 5, 7, 9, 11}), ("gemma3_text", {5, 11})])
def test_blocks_without_a_window_come_in_turn_where_no_types_are_given(kind: str, full: set[int]) -> None:
    config = read(kind, layer_types="absent", num_hidden_layers=12)

    assert {number for number, has_window in enumerate(config.windowed) if not has_window} == full


@pytest.mark.parametrize("name", ["sliding_window_pattern", "_sliding_window_pattern"])
def test_the_turn_of_gemma_3_may_be_said(name: str) -> None:
    assert read("gemma3_text", layer_types="absent", **{name: 3}).windowed == (True, True, False)


def test_two_rotaries_as_transformers_5_writes_them() -> None:
    parameters = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 500.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    }
    absent = dict.fromkeys(("rope_theta", "rope_scaling", "rope_local_base_freq"), "absent")

    config = read("gemma3_text", rope_parameters=parameters, **absent)

    assert config == replace(THIRD, rotary_base=500.0, rotary_scaling=LinearScaling(8.0), window_rotary_base=100.0)


def test_two_rotaries_as_transformers_4_writes_them() -> None:
    scaling = {"rope_type": "linear", "factor": 8.0}

    config = read("gemma3_text", rope_theta=500.0, rope_local_base_freq=100.0, rope_scaling=scaling)

    assert config == replace(THIRD, rotary_base=500.0, rotary_scaling=LinearScaling(8.0), window_rotary_base=100.0)


@every_page
def test_fields_that_change_nothing_are_passed_over(kind: str) -> None:
    harmless: dict[str, object] = {
        "attention_dropout": 0.0,
        "cache_implementation": "hybrid",
        "eos_token_id": [1, 106],
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": None,
        "initializer_range": 0.02,
        "torch_dtype": "bfloat16",
        "use_bidirectional_attention": None,
        "use_cache": True,
    }

    assert read(kind, **harmless) == PAGES[kind][1]


def test_the_first_files_say_gelu_and_mean_its_tanh_form() -> None:
    assert read("gemma", hidden_act="gelu", hidden_activation=None) == FIRST


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"logit_scale": 0.5}, r"folder.config.json: fields .* not understood: logit_scale = 0.5\. They may"),
        ({"hidden_activation": "silu"}, r"hidden_activation = 'silu'"),
        ({"attention_dropout": 0.1}, r"attention_dropout = 0.1"),
        ({"use_bidirectional_attention": True}, r"use_bidirectional_attention = True"),
        ({"num_key_value_heads": 3}, r"key heads, but each key head serves equally many"),
        ({"head_dim": 7}, r"heads of width 7, but rotary"),
        ({"vocab_size": "absent"}, r"the field vocab_size is missing"),
    ],
)
@every_page
def test_a_field_that_may_change_the_numbers_is_refused_by_name(
    kind: str, changes: dict[str, object], complaint: str
) -> None:
    with pytest.raises(CheckpointError, match=complaint):
        read(kind, **changes)


@pytest.mark.parametrize(
    ("kind", "changes", "complaint"),
    [
        ("gemma", {"final_logit_softcapping": 30.0}, r"final_logit_softcapping = 30.0"),
        ("gemma", {"sliding_window": 5}, r"sliding_window = 5"),
        ("gemma2", {"hidden_act": "gelu"}, r"hidden_act = 'gelu'"),
        ("gemma2", {"attn_logit_softcapping": 0}, r"attn_logit_softcapping is 0 where a number above 0"),
        ("gemma2", {"layer_types": ["full_attention"]}, r"layer_types is \['full_attention'\], where one of"),
        ("gemma3_text", {"layer_types": ["chunked_attention"] * 3}, r"layer_types is \['chunked_attention', "),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, r"attn_logit_softcapping = 50.0"),
        (
            "gemma3_text",
            {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
            r"the rotary of sliding attention is scaled, LinearScaling\(factor=2.0\), which is not understood",
        ),
        ("gemma3_text", {"rope_parameters": {"chunked": {}}}, r"rope_parameters: .* not understood: chunked"),
    ],
)
def test_a_field_of_another_gemma_is_refused_by_name(kind: str, changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(CheckpointError, match=complaint):
        read(kind, **changes)


# The trees


@every_page
def test_every_key_has_a_stored_name_and_back(kind: str) -> None:
    page: Any = PAGES[kind][0]
    config: Any = PAGES[kind][1]
    backbone, head = page.build(config)
    for format in ("transformers", "gguf"):  # noqa: A001 (what it is called)
        table = page.names(config, format)
        keys = [*backbone.state_dict(prefix="backbone."), *head.state_dict(prefix="head.")]

        stored = [table.to_stored(key)[0] for key in keys]

        assert len(set(stored)) == len(keys)
        assert [table.to_tree(name)[0] for name in stored] == [(key,) for key in keys]


def test_a_head_whose_logits_are_capped_is_a_chain() -> None:
    backbone, head = gemma2.build(SECOND)

    assert isinstance(head, sl.Chain)
    assert head.layer("projection", sl.Linear).weight is backbone.layer("embedding", sl.Embedding).weight
    assert head(1e6 * torch.ones(32)).abs().max() <= 30.0


def test_a_capped_head_that_is_tied_is_saved_once_and_loaded_tied(tmp_path: Path) -> None:
    backbone, head = gemma2.build(SECOND)

    models.save(tmp_path, backbone, head, models.Description(gemma2.GEMMA2, SECOND, SpecialIds(), None))

    lm = CausalLM.from_pretrained(tmp_path)
    assert lm["head.projection"].weight is lm["backbone.embedding"].weight


def test_a_head_without_its_cap_is_not_saved(tmp_path: Path) -> None:
    backbone, head = gemma2.build(SECOND)
    assert isinstance(head, sl.Chain)
    head.pop(1)

    with pytest.raises(CheckpointError, match=r"head.cap is missing"):
        models.save(tmp_path, backbone, head, models.Description(gemma2.GEMMA2, SECOND, SpecialIds(), None))


def test_only_blocks_with_a_window_have_a_window_and_its_rotary() -> None:
    backbone, _ = gemma3.build(replace(THIRD, windowed=(True, False, True)))

    windows = [attend.window for attend in backbone.layers(sl.ScaledDotProductAttention)]
    bases = [rotary.base for rotary in backbone.layers(sl.Rotary)]

    assert windows == [cache.window for cache in backbone.layers(sl.KVCache)] == [5, None, 5]
    assert bases == [1e4, 1e6, 1e4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_norm_is_computed_in_float32_and_rounded_once(dtype: torch.dtype) -> None:
    norm = ZeroCentredRMSNorm(8, eps=1e-6).to(dtype)
    torch.nn.init.normal_(norm.weight)
    x = (50 * torch.randn(4, 8)).to(dtype)

    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt() * (1 + norm.weight.double())

    assert norm(x).dtype == dtype
    torch.testing.assert_close(norm(x).double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_a_new_norm_changes_the_scale_alone() -> None:
    assert ZeroCentredRMSNorm(4).weight.tolist() == [0.0] * 4


def test_the_factor_of_embeddings_is_rounded_to_their_dtype() -> None:
    layer = ScaledTokenEmbedding(1, 3072).to(torch.bfloat16)
    torch.nn.init.ones_(layer.weight)

    assert layer(torch.tensor([0]))[0, 0].item() == 55.5  # the root is 55.43
