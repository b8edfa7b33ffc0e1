from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]

from suture.weights.checkpoint import CheckpointError, MissingFileError
from suture.weights.folder import INDEX, WEIGHTS, open_folder

TENSORS = {"model.norm.weight": torch.arange(6.0).view(2, 3), "lm_head.weight": torch.ones(4)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 8}))
    return tmp_path


def write_shards(folder: Path) -> None:
    save_file({"model.norm.weight": TENSORS["model.norm.weight"]}, folder / "model-00001-of-00002.safetensors")
    save_file({"lm_head.weight": TENSORS["lm_head.weight"]}, folder / "model-00002-of-00002.safetensors")
    shards = {
        "model.norm.weight": "model-00001-of-00002.safetensors",
        "lm_head.weight": "model-00002-of-00002.safetensors",
    }
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": shards}))


@pytest.mark.parametrize("sharded", [False, True])
def test_tensors_are_read_from_one_file_or_from_shards(folder: Path, sharded: bool) -> None:
    if sharded:
        write_shards(folder)
    else:
        save_file(TENSORS, folder / WEIGHTS)

    checkpoint = open_folder(folder)

    assert {name: stored.shape for name, stored in checkpoint.tensors.items()} == {
        "lm_head.weight": (4,),
        "model.norm.weight": (2, 3),
    }
    for name, stored in checkpoint.tensors.items():
        place = torch.empty(stored.shape)
        stored.copy_to(place)
        assert torch.equal(place, TENSORS[name])


def test_the_configuration_is_the_metadata(folder: Path) -> None:
    save_file(TENSORS, folder / WEIGHTS)

    checkpoint = open_folder(folder)

    assert (checkpoint.format, checkpoint.architecture) == ("transformers", "llama")
    assert checkpoint.metadata["hidden_size"] == 8


def test_a_view_receives_the_values_in_its_own_order_and_dtype(folder: Path) -> None:
    save_file(TENSORS, folder / WEIGHTS)
    place = torch.empty(3, 2, dtype=torch.bfloat16)

    open_folder(folder).tensors["model.norm.weight"].copy_to(place.t())

    assert torch.equal(place, TENSORS["model.norm.weight"].t().bfloat16())


def test_a_folder_without_configuration_is_refused_with_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()

    with pytest.raises(
        MissingFileError, match=r"has no config.json.*It holds model.gguf.*give its own path: .*model.gguf"
    ):
        open_folder(tmp_path)


def test_a_folder_without_weights_is_refused_with_what_it_holds(folder: Path) -> None:
    (folder / "notes.txt").touch()

    with pytest.raises(MissingFileError, match=r"has no weights.*It holds config.json, notes.txt"):
        open_folder(folder)


def test_a_configuration_of_endless_depth_is_refused(folder: Path) -> None:
    (folder / "config.json").write_text("[" * 200_000)
    with pytest.raises(CheckpointError, match="is not valid JSON"):
        open_folder(folder)


def test_pickles_are_refused_by_name(folder: Path) -> None:
    (folder / "pytorch_model.bin").touch()

    with pytest.raises(CheckpointError, match=r"pytorch_model.bin: pickles, .* never read. Load the folder with"):
        open_folder(folder)


def test_missing_shards_are_named(folder: Path) -> None:
    write_shards(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()

    with pytest.raises(
        MissingFileError, match=r"lacks 1 of the 2 files .*: model-00002-of-00002.safetensors. Download"
    ):
        open_folder(folder)


def test_a_shard_of_another_version_is_refused(folder: Path) -> None:
    write_shards(folder)
    save_file({"other": torch.ones(1)}, folder / "model-00002-of-00002.safetensors")

    with pytest.raises(CheckpointError, match=r"not in the file it gives for them: lm_head.weight"):
        open_folder(folder)


def test_an_index_cannot_point_outside_the_folder(folder: Path) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": "../elsewhere.safetensors"}}))

    with pytest.raises(CheckpointError, match=r"outside its folder: ../elsewhere.safetensors"):
        open_folder(folder)


def test_an_index_without_a_map_is_refused(folder: Path) -> None:
    (folder / INDEX).write_text("{}")

    with pytest.raises(CheckpointError, match="has no weight_map"):
        open_folder(folder)


@pytest.mark.parametrize("kept", [0, 4, 60, -1])
def test_a_truncated_file_is_refused(folder: Path, kept: int) -> None:
    save_file(TENSORS, folder / WEIGHTS)
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[:kept])

    with pytest.raises(
        CheckpointError, match=r"model.safetensors \(\d+ bytes.* cut short or is not what its name says"
    ):
        open_folder(folder)


def test_a_file_that_is_not_what_its_name_says_is_refused(folder: Path) -> None:
    torch.save(TENSORS, folder / WEIGHTS)

    with pytest.raises(CheckpointError, match=r"starting with b'PK.* is not what its name says"):
        open_folder(folder)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [("{", "not valid JSON"), ("[1]", "JSON list where an object"), ("{}", r"no model_type")],
)
def test_a_configuration_that_says_nothing_is_refused(tmp_path: Path, content: str, complaint: str) -> None:
    (tmp_path / "config.json").write_text(content)

    with pytest.raises(CheckpointError, match=complaint):
        open_folder(tmp_path)
