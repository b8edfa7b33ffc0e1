from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType

from suture import layers as sl
from suture import models
from suture.layers.rotary import LinearScaling, Llama3Scaling
from suture.models import LlamaConfig
from suture.models.llama import build, names, read, write
from suture.weights.checkpoint import Checkpoint, CheckpointError
from suture.weights.folder import open_folder
from suture.weights.gguf_file import open_gguf
from suture.weights.loading import without_values
from tests.models.llama_gguf import convert
from tests.weights.gguf_files import F32, read_back, write_gguf

CONFIG = LlamaConfig(320, 32, 64, 3, 4, 2, 8, 128, 1e-6, 10_000.0, None, False, False, False)

LLAMA3_FIELDS: dict[str, object] = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LLAMA3 = Llama3Scaling(8.0, 1.0, 4.0, 64)


def transformers_config(**changes: object) -> Checkpoint:
    fields = {**write(CONFIG), "torch_dtype": "float32", **changes}
    present = {name: value for name, value in fields.items() if value != "absent"}
    return Checkpoint(Path("folder"), "transformers", "llama", present, {})


def parameters(model: models.LoadedModel) -> dict[str, torch.Tensor]:
    return {**model.backbone.state_dict(), **model.head.state_dict(prefix="head.")}


# The tree


def test_every_key_of_the_tree_has_the_canonical_ending() -> None:
    with without_values():
        backbone, head = build(CONFIG)

    assert [key for key in backbone.state_dict() if not key.startswith(("blocks.1", "blocks.2"))] == [
        "embedding.weight",
        "blocks.0.attention.norm.weight",
        "blocks.0.attention.heads.projections.query.weight",
        "blocks.0.attention.heads.projections.key.weight",
        "blocks.0.attention.heads.projections.value.weight",
        "blocks.0.attention.heads.output.weight",
        "blocks.0.feedforward.norm.weight",
        "blocks.0.feedforward.gated.branches.gated.gate.weight",
        "blocks.0.feedforward.gated.branches.up.weight",
        "blocks.0.feedforward.gated.down.weight",
        "norm.weight",
    ]
    assert list(head.state_dict()) == ["weight"]


@pytest.mark.parametrize("format", ["transformers", "gguf"])
def test_every_key_of_the_tree_has_a_stored_name_and_back(format: Any) -> None:  # noqa: A002
    with without_values():
        backbone, head = build(replace(CONFIG, attention_bias=True, feedforward_bias=True))
    table = names(CONFIG, format)
    keys = [f"backbone.{key}" for key in backbone.state_dict()] + [f"head.{key}" for key in head.state_dict()]

    stored = [cast("tuple[str, object]", table.to_stored(key))[0] for key in keys]

    assert len(set(stored)) == len(keys)
    assert [cast("tuple[tuple[str], object]", table.to_tree(name))[0][0] for name in stored] == keys


@pytest.mark.parametrize("tied", [False, True])
def test_a_tied_head_shares_the_parameter_of_the_embedding(tied: bool) -> None:
    backbone, head = build(replace(CONFIG, tied=tied))

    assert (head.weight is backbone.layer("embedding", sl.Embedding).weight) is tied


# config.json


def test_what_is_written_is_read() -> None:
    for config in (
        CONFIG,
        replace(CONFIG, tied=True, attention_bias=True, feedforward_bias=True, head_dim=16),
        replace(CONFIG, rotary_base=500.0, rotary_scaling=LLAMA3),
        replace(CONFIG, rotary_scaling=LinearScaling(2.0)),
    ):
        assert read(Checkpoint(Path("folder"), "transformers", "llama", write(config), {})) == config


def test_a_configuration_as_transformers_5_writes_it() -> None:
    rotary = {"rope_type": "llama3", "rope_theta": 500.0, **LLAMA3_FIELDS}

    config = read(
        transformers_config(rope_parameters=rotary, rope_theta="absent", rope_scaling="absent", dtype="bfloat16")
    )

    assert config == replace(CONFIG, rotary_base=500.0, rotary_scaling=LLAMA3)


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_a_configuration_as_transformers_4_writes_it(key: str) -> None:
    config = read(transformers_config(rope_theta=500.0, rope_scaling={key: "linear", "factor": 2.0}))

    assert config == replace(CONFIG, rotary_base=500.0, rotary_scaling=LinearScaling(2.0))


def test_fields_that_old_files_leave_out_take_their_defaults() -> None:
    left_out = (
        *("num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta", "rope_scaling", "attention_bias"),
        *("mlp_bias", "tie_word_embeddings", "hidden_act", "torch_dtype"),
    )

    config = read(transformers_config(**dict.fromkeys(left_out, "absent")))

    assert config == replace(CONFIG, num_key_value_heads=4)


def test_fields_that_change_nothing_are_passed_over() -> None:
    harmless: dict[str, object] = {
        "attention_dropout": 0.0,
        "eos_token_id": [2, 3],
        "initializer_range": 0.04,
        "is_llama_config": True,
        "pretraining_tp": 1,
        "rope_interleaved": False,
        "temperature": 0.6,
        "transformers.js_config": {"dtype": "q4"},
        "transformers_version": "4.42.3",
        "use_cache": True,
    }

    assert read(transformers_config(**harmless)) == CONFIG


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"logit_softcap": 30.0}, r"folder.config.json: fields .* not understood: logit_softcap = 30.0\. They may"),
        ({"hidden_act": "gelu"}, r"hidden_act = 'gelu'"),
        ({"attention_dropout": 0.1}, r"attention_dropout = 0.1"),
        ({"rope_interleaved": True}, r"rope_interleaved = True"),
        ({"quantization_config": {"bits": 4}}, r"quantization_config = "),
        ({"auto_map": {"AutoModel": "code.py"}}, r"auto_map = "),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, r"rope_scaling: the rotary scaling 'yarn' is not"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "beta": 1}}, r"rope_scaling: .* beta = 1"),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 2.0}},
            r"rope_scaling: the field low_freq_factor is missing",
        ),
        ({"rope_parameters": {"rope_theta": 1.0, "partial_rotary_factor": 0.5}}, r"partial_rotary_factor = 0.5"),
        ({"hidden_size": "absent"}, r"the field hidden_size is missing"),
        ({"hidden_size": "wide"}, r"hidden_size is 'wide' where a whole number"),
        ({"num_attention_heads": 0}, r"num_attention_heads is 0 where"),
        ({"num_key_value_heads": 0}, r"num_key_value_heads is 0 where"),
        ({"num_key_value_heads": 3}, r"key heads, but each key head serves equally many"),
        ({"head_dim": 7}, r"heads of width 7, but rotary"),
        ({"rms_norm_eps": -1.0}, r"rms_norm_eps is -1.0 where"),
        ({"rope_parameters": {"rope_theta": 0.0}}, r"rope_theta is 0.0 where"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, r"factor is 0 where"),
    ],
)
def test_a_field_that_may_change_the_numbers_is_refused_by_name(changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(CheckpointError, match=complaint):
        read(transformers_config(**changes))


# GGUF


@pytest.mark.parametrize(
    "variant",
    [
        {},
        {"tie_word_embeddings": True},
        {"num_key_value_heads": 1},
        {"attention_bias": True, "mlp_bias": True},
        {"head_dim": 16},
    ],
    ids=str,
)
def test_a_gguf_file_gives_the_parameters_of_the_folder_it_was_made_from(
    tiny_llama_folder: Callable[..., Path], tmp_path: Path, variant: dict[str, Any]
) -> None:
    folder = tiny_llama_folder(**variant)
    original = models.load(folder)
    config = original.description.config
    assert isinstance(config, LlamaConfig)

    loaded = models.load(convert(folder, tmp_path / "a.gguf", config))

    assert loaded.description.config == config
    expected = parameters(original)
    assert parameters(loaded).keys() == expected.keys()
    assert all(torch.equal(value, expected[key]) for key, value in parameters(loaded).items())


def test_a_quantised_query_is_un_permuted_after_it_is_dequantised(
    tiny_llama_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tiny_llama_folder()
    original = parameters(models.load(folder))["blocks.1.attention.heads.projections.query.weight"]

    loaded = models.load(convert(folder, tmp_path / "a.gguf", CONFIG, GGMLQuantizationType.Q8_0))

    expected = torch.from_numpy(read_back(original.numpy(), GGMLQuantizationType.Q8_0))
    assert torch.equal(parameters(loaded)["blocks.1.attention.heads.projections.query.weight"], expected)


def gguf_config(folder: Path, tmp_path: Path, **changes: Any) -> LlamaConfig:
    return read(open_gguf(convert(folder, tmp_path / "a.gguf", CONFIG, **changes)))


def test_a_gguf_file_with_the_fewest_keys(tiny_llama_folder: Callable[..., Path], tmp_path: Path) -> None:
    optional = (
        *("llama__attention__head_count_kv", "llama__rope__freq_base", "llama__rope__dimension_count"),
        *("llama__attention__key_length", "llama__attention__value_length", "llama__vocab_size"),
    )

    config = gguf_config(tiny_llama_folder(num_key_value_heads=4), tmp_path, **dict.fromkeys(optional))

    assert config == replace(CONFIG, num_key_value_heads=4)


def test_linear_scaling_of_a_gguf_file(tiny_llama_folder: Callable[..., Path], tmp_path: Path) -> None:
    scaled: dict[str, Any] = {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 4.0}

    assert gguf_config(tiny_llama_folder(), tmp_path, **scaled).rotary_scaling == LinearScaling(4.0)


def frequencies(head_dim: int, base: float) -> torch.Tensor:
    return 1.0 / base ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_the_factors_of_a_gguf_file_become_the_scaling_of_llama_3(tmp_path: Path, factor: float) -> None:
    scaling = Llama3Scaling(factor, 1.0, 4.0, 8192)
    bare = frequencies(64, 500_000.0)
    factors = (bare / scaling(bare)).numpy()

    assert read(with_factors(tmp_path, factors)).rotary_scaling == scaling


def test_factors_that_are_not_of_llama_3_are_refused(tmp_path: Path) -> None:
    factors = np.linspace(1.0, 8.0, 32, dtype=np.float32)

    with pytest.raises(CheckpointError, match=r"rope_freqs.weight are not those of Llama 3.1 or 3.2"):
        read(with_factors(tmp_path, factors))


def with_factors(tmp_path: Path, factors: np.ndarray[Any, Any]) -> Checkpoint:
    fields: dict[str, object] = {
        "llama.block_count": 1,
        "llama.context_length": 131_072,
        "llama.embedding_length": 128,
        "llama.feed_forward_length": 8,
        "llama.attention.head_count": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 500_000.0,
        "llama.vocab_size": 8,
    }
    return open_gguf(write_gguf(tmp_path / "a.gguf", {"rope_freqs.weight": (factors, F32)}, fields))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"llama__logit_scale": 0.5}, r"a.gguf, keys of llama: fields .* not understood: logit_scale = 0.5"),
        ({"llama__expert_count": 8}, r"expert_count = 8"),
        ({"llama__rope__dimension_count": 4}, r"rope.dimension_count = 4"),
        ({"llama__attention__head_count_kv": [1, 2, 2]}, r"attention.head_count_kv is \[1, 2, 2\] where a whole"),
        ({"llama__rope__scaling__type": "yarn"}, r"the rotary scaling 'yarn' \(from 128 positions\) is not understood"),
        ({"llama__block_count": None}, r"the field block_count is missing"),
    ],
)
def test_a_key_that_may_change_the_numbers_is_refused_by_name(
    tiny_llama_folder: Callable[..., Path], tmp_path: Path, changes: dict[str, object], complaint: str
) -> None:
    with pytest.raises(CheckpointError, match=complaint):
        gguf_config(tiny_llama_folder(), tmp_path, **changes)


def test_the_configuration_of_a_folder_names_the_file(tiny_llama_folder: Callable[..., Path], tmp_path: Path) -> None:
    content = json.loads((tiny_llama_folder() / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(content | {"odd": 1}))
    (tmp_path / "model.safetensors").write_bytes((tiny_llama_folder() / "model.safetensors").read_bytes())

    with pytest.raises(CheckpointError, match=rf"{tmp_path}.config.json: .* odd = 1"):
        read(open_folder(tmp_path))
