from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

from suture import layers as sl
from suture import models
from suture.models import Description, LlamaConfig, LoadedModel, TransformerBlock
from suture.models.registry import family_of
from suture.weights.checkpoint import Checkpoint, CheckpointError
from suture.weights.folder import open_folder
from suture.weights.vocabulary import SpecialIds

Folder = Callable[..., Path]


def save(model: LoadedModel, folder: Path, **options: Any) -> None:
    models.save(folder, model.backbone, model.head, model.description, **options)


def blocks(model: LoadedModel) -> sl.Stack:
    return model.backbone.layer("blocks", sl.Stack)


def parameters(model: LoadedModel) -> dict[str, torch.Tensor]:
    return {**model.backbone.state_dict(), **model.head.state_dict(prefix="head.")}


def config(folder: Path) -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads((folder / "config.json").read_text()))


# Loading


def test_a_model_is_loaded_in_eval_mode_with_its_tokenizer(tiny_llama_folder: Folder) -> None:
    model = models.load(tiny_llama_folder())

    assert not any(module.training for module in (*model.backbone.modules(), *model.head.modules()))
    vocabulary = model.description.vocabulary
    assert vocabulary is not None
    assert vocabulary.tokenizer.decode(vocabulary.tokenizer.encode("once upon").ids) == "once upon"
    assert model.description.special_ids == SpecialIds(bos_id=1, eos_ids=(2,), pad_id=0)
    assert model.backbone.max_positions == 128


def test_parameters_are_those_of_the_file(tiny_llama_folder: Folder) -> None:
    folder = tiny_llama_folder()
    model = models.load(folder)
    stored = open_folder(folder).tensors["model.layers.2.mlp.down_proj.weight"]
    values = torch.empty(stored.shape)
    stored.copy_to(values)

    assert torch.equal(model.backbone.state_dict()["blocks.2.feedforward.gated.down.weight"], values)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parameters_have_the_dtype_that_was_asked_for(tiny_llama_folder: Folder, dtype: torch.dtype) -> None:
    model = models.load(tiny_llama_folder(), dtype=dtype)

    exact = parameters(models.load(tiny_llama_folder()))
    assert all(torch.equal(value, exact[key].to(dtype)) for key, value in parameters(model).items())


def test_no_parameter_is_left_without_values(tiny_llama_folder: Folder) -> None:
    model = models.load(tiny_llama_folder(attention_bias=True, mlp_bias=True))

    tensors = [*model.backbone.parameters(), *model.backbone.buffers(), *model.head.parameters()]
    assert not any(tensor.is_meta for tensor in tensors)


def test_a_tied_model_stays_tied(tiny_llama_folder: Folder) -> None:
    model = models.load(tiny_llama_folder(tie_word_embeddings=True))

    assert model.head.weight is model.backbone.layer("embedding", nn.Embedding).weight


def test_a_folder_without_tokenizer_gives_a_model_of_ids(tiny_llama_folder: Folder, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((tiny_llama_folder() / name).read_bytes())

    description = models.load(tmp_path).description

    assert description.vocabulary is None
    assert description.special_ids == SpecialIds(bos_id=1, eos_ids=(2,), pad_id=0)


@pytest.mark.parametrize("format", ["transformers", "gguf"])
def test_an_unknown_architecture_is_refused_with_those_that_are_known(format: Any) -> None:  # noqa: A002
    with pytest.raises(CheckpointError, match=r"'mamba' .* is not supported\. Supported are: gemma, .*llama"):
        family_of(Checkpoint(Path("x"), format, "mamba", {}, {}))


def test_a_configuration_that_does_not_fit_the_weights_is_one_error(tiny_llama_folder: Folder, tmp_path: Path) -> None:
    save(models.load(tiny_llama_folder()), tmp_path)
    changed = config(tmp_path) | {"num_hidden_layers": 4, "attention_bias": True, "tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(changed))

    with pytest.raises(
        CheckpointError, match=r"Missing: model.layers.\{0-3\}.self_attn.q_proj.bias.*Nothing was loaded"
    ):
        models.load(tmp_path)


def test_weights_cannot_be_whole_numbers(tiny_llama_folder: Folder) -> None:
    with pytest.raises(TypeError, match=r"dtype is torch.int8, .* torch.bfloat16"):
        models.load(tiny_llama_folder(), dtype=torch.int8)


# Saving


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_saved_model_is_loaded_with_equal_parameters(
    tiny_llama_folder: Folder, tmp_path: Path, tied: bool, dtype: torch.dtype
) -> None:
    model = models.load(tiny_llama_folder(tie_word_embeddings=tied), dtype=dtype)

    save(model, tmp_path)
    again = models.load(tmp_path, dtype=dtype)

    assert again.description.config == model.description.config
    assert again.description.special_ids == model.description.special_ids
    assert parameters(again).keys() == parameters(model).keys()
    assert all(torch.equal(value, parameters(model)[key]) for key, value in parameters(again).items())
    assert (again.head.weight is again.backbone.layer("embedding", nn.Embedding).weight) is tied


def test_a_tied_weight_is_written_once(tiny_llama_folder: Folder, tmp_path: Path) -> None:
    save(models.load(tiny_llama_folder(tie_word_embeddings=True)), tmp_path)

    assert "lm_head.weight" not in open_folder(tmp_path).tensors


def test_whether_a_head_is_tied_is_seen_from_the_tensors(tiny_llama_folder: Folder, tmp_path: Path) -> None:
    model = models.load(tiny_llama_folder(tie_word_embeddings=True))
    doubled = nn.Parameter(model.head.state_dict()["weight"] * 2)
    model.head.weight = doubled

    save(model, tmp_path)

    assert config(tmp_path)["tie_word_embeddings"] is False
    assert torch.equal(models.load(tmp_path).head.state_dict()["weight"], doubled)


def test_a_model_is_saved_in_its_own_dtype(tiny_llama_folder: Folder, tmp_path: Path) -> None:
    save(models.load(tiny_llama_folder(), dtype=torch.bfloat16), tmp_path)

    assert config(tmp_path)["torch_dtype"] == "bfloat16"
    assert {stored.kind for stored in open_folder(tmp_path).tensors.values()} == {"BF16"}


def test_a_large_model_is_saved_in_shards(tiny_llama_folder: Folder, tmp_path: Path) -> None:
    model = models.load(tiny_llama_folder())

    save(model, tmp_path, max_shard_size=60_000)

    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert all(torch.equal(value, parameters(model)[key]) for key, value in parameters(models.load(tmp_path)).items())


def test_blocks_are_saved_as_they_are_wired(tiny_llama_folder: Folder, tmp_path: Path) -> None:
    model = models.load(tiny_llama_folder())
    copied = blocks(model).layer("1", TransformerBlock).structural_copy()
    blocks(model).pop(0)
    blocks(model).append(copied)
    gates = [block.layer("feedforward.gated.branches.gated.gate", nn.Linear).weight for block in typed(model)]

    save(model, tmp_path)

    saved = models.load(tmp_path)
    assert config(tmp_path)["num_hidden_layers"] == 3
    assert gates[0] is gates[2]
    for gate, block in zip(gates, typed(saved), strict=True):
        assert torch.equal(gate, block.layer("feedforward.gated.branches.gated.gate", nn.Linear).weight)


def typed(model: LoadedModel) -> list[TransformerBlock]:
    return blocks(model).layers(TransformerBlock)


def test_a_backbone_inside_a_larger_tree_is_saved_the_same(tiny_llama_folder: Folder, tmp_path: Path) -> None:
    model = models.load(tiny_llama_folder())
    whole = sl.Chain(decoder=sl.Chain(inner=models.load(tiny_llama_folder()).backbone))
    backbone = whole.layer("decoder.inner", models.Backbone)

    models.save(tmp_path, backbone, model.head, model.description)

    assert all(torch.equal(value, parameters(model)[key]) for key, value in parameters(models.load(tmp_path)).items())


def test_a_grown_vocabulary_is_saved(tiny_llama_folder: Folder, tmp_path: Path) -> None:
    model = models.load(tiny_llama_folder(tie_word_embeddings=True))
    embedding = model.backbone.layer("embedding", nn.Embedding)
    grown = models.TokenEmbedding(embedding.num_embeddings + 3, embedding.embedding_dim)
    head = sl.Linear(embedding.embedding_dim, grown.num_embeddings, bias=False)
    head.weight = grown.weight
    model.backbone.replace(embedding, grown)

    models.save(tmp_path, model.backbone, head, model.description)

    assert config(tmp_path)["vocab_size"] == grown.num_embeddings
    assert torch.equal(models.load(tmp_path).head.state_dict()["weight"], grown.weight)


def control(model: LoadedModel) -> None:
    blocks(model).insert(1, sl.Dropout(0.1), name="control")


def wrapped_query(model: LoadedModel) -> None:
    query = model.backbone.layer("blocks.1.attention.heads.projections.query", nn.Linear)
    parent = model.backbone.find_parent(query)
    assert parent is not None
    parent.replace(query, sl.Sum(query, sl.Linear(32, 32)))


def other_width(model: LoadedModel) -> None:
    gated = model.backbone.layer("blocks.1.feedforward.gated", sl.Composite)
    gated.replace(gated["down"], sl.Linear(64, 32, bias=True))


def other_activation(model: LoadedModel) -> None:
    gated = model.backbone.layer("blocks.1.feedforward.gated.branches.gated", sl.Composite)
    gated.replace(gated["activation"], sl.Tanh())


def no_norm(model: LoadedModel) -> None:
    model.backbone.remove(model.backbone["norm"])


def other_rotary(model: LoadedModel) -> None:
    heads = model.backbone.layer("blocks.1.attention.heads", sl.Composite)
    heads.replace(heads["rotary"], sl.Rotary(8, base=77.0))


def block_after_the_norm(model: LoadedModel) -> None:
    (norm,) = model.backbone.pop(-1).layers
    model.backbone.insert(1, norm, name="norm")


@pytest.mark.parametrize(
    ("edit", "complaint"),
    [
        (control, r"no longer a Llama.*not saved: backbone.blocks.control \(Dropout\) does not belong to it\. Take"),
        (wrapped_query, r"not saved: backbone.blocks.1.attention.heads.projections.query\+Sum \(Sum\) does not belong"),
        (other_width, r"blocks.1.feedforward.gated.down is Linear\(.*bias=True.* where it has Linear\(.*bias=False"),
        (other_activation, r"branches.gated.activation is Tanh\(\) where it has SiLU\(\)"),
        (no_norm, r"not saved: backbone.norm is missing\. Take"),
        (block_after_the_norm, r"not saved: its layers are wired in another order"),
        (other_rotary, r"rotary is Rotary\(.*base=77\) where it has Rotary\(.*base=10000\)"),
    ],
)
def test_a_model_that_is_no_longer_of_its_family_is_refused_with_what_does_not_fit(
    tiny_llama_folder: Folder, tmp_path: Path, edit: Callable[[LoadedModel], None], complaint: str
) -> None:
    model = models.load(tiny_llama_folder())
    edit(model)

    with pytest.raises(CheckpointError, match=complaint):
        save(model, tmp_path / "folder")

    assert not (tmp_path / "folder").exists()


def test_a_head_that_is_no_longer_of_its_family_is_refused(tiny_llama_folder: Folder, tmp_path: Path) -> None:
    model = models.load(tiny_llama_folder())

    with pytest.raises(CheckpointError, match=r"head is Chain where it has Linear"):
        models.save(tmp_path, model.backbone, sl.Chain(model.head, sl.Tanh()), model.description)


def test_what_is_no_tree_is_refused(tiny_llama_folder: Folder, tmp_path: Path) -> None:
    model = models.load(tiny_llama_folder())

    with pytest.raises(CheckpointError, match=r"The backbone is not that of a Llama.* it is a Identity and no tree"):
        models.save(tmp_path, nn.Identity(), model.head, model.description)
    with pytest.raises(CheckpointError, match=r"The backbone is not that of a Llama.*There is no layer at 'blocks'"):
        models.save(tmp_path, sl.Chain(), model.head, model.description)


def test_a_scaling_that_transformers_has_no_name_for_is_refused(tiny_llama_folder: Folder, tmp_path: Path) -> None:
    def halved(frequencies: torch.Tensor) -> torch.Tensor:
        return frequencies / 2

    made = LlamaConfig(320, 32, 64, 1, 4, 2, 8, 128, 1e-6, 10_000.0, halved, False, False, False)
    family = models.load(tiny_llama_folder()).description.family
    backbone, head = family.build(made)

    with pytest.raises(CheckpointError, match=r"halved.* has no name in a transformers configuration"):
        models.save(tmp_path, backbone, head, Description(family, made, SpecialIds(), None))


@pytest.mark.parametrize("dtype", ["bfloat16", None])
def test_a_dtype_is_one_of_torchs(tiny_llama_folder: Folder, dtype: Any) -> None:
    with pytest.raises(TypeError, match=f"dtype is {dtype!r}, but"):
        models.load(tiny_llama_folder(), dtype=dtype)


def test_more_blocks_than_tensors_are_refused_before_they_are_built(tiny_llama_folder: Folder, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_llama_folder(), tmp_path / "model")
    (folder / "config.json").write_text(json.dumps(config(folder) | {"num_hidden_layers": 10**9}))
    with pytest.raises(CheckpointError, match=r"describes 1000000000 blocks, but holds 30 tensors"):
        models.load(folder)


def test_a_model_without_values_is_not_saved(tiny_llama_folder: Folder, tmp_path: Path) -> None:
    model = models.load(tiny_llama_folder(), device="meta")
    with pytest.raises(CheckpointError, match="on the meta device"):
        save(model, tmp_path / "saved")
    assert not list(tmp_path.rglob("*.safetensors"))
