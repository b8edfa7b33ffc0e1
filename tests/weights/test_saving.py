from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from tokenizers import Tokenizer, models

from suture.weights.checkpoint import CheckpointError
from suture.weights.folder import INDEX, open_folder
from suture.weights.saving import save_folder
from suture.weights.vocabulary import SpecialIds, Vocabulary

CONFIG = {"model_type": "llama"}
WORDS = Tokenizer(models.WordLevel({"<unk>": 0, "one": 1, "</s>": 2}, unk_token="<unk>"))


def load_all(folder: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for name, stored in open_folder(folder).tensors.items():
        tensors[name] = torch.empty(stored.shape)
        stored.copy_to(tensors[name])
    return tensors


def read(path: Path) -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads(path.read_text()))


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 4), "b": torch.randn(2)}

    save_folder(tmp_path / "deep" / "folder", CONFIG, tensors)

    loaded = load_all(tmp_path / "deep" / "folder")
    assert all(torch.equal(loaded[name], values) for name, values in tensors.items())
    assert loaded.keys() == tensors.keys()


def test_large_weights_are_spread_over_shards(tmp_path: Path) -> None:
    tensors = {name: torch.randn(100) for name in "abcde"}

    save_folder(tmp_path, CONFIG, tensors, max_shard_size=900)

    assert len(list(tmp_path.glob("model-*.safetensors"))) == 3
    assert not (tmp_path / "model.safetensors").exists()
    assert all(torch.equal(values, tensors[name]) for name, values in load_all(tmp_path).items())


def test_a_tensor_under_two_names_is_written_twice_and_a_slice_at_its_own_size(tmp_path: Path) -> None:
    large = torch.randn(1000)

    save_folder(tmp_path, CONFIG, {"a": large[:4], "b": large[:4], "t": torch.randn(2, 3).t()})

    loaded = load_all(tmp_path)
    assert torch.equal(loaded["a"], large[:4])
    assert torch.equal(loaded["b"], large[:4])
    assert (tmp_path / "model.safetensors").stat().st_size < 1000


def test_a_slice_counts_at_its_own_size_for_the_shards(tmp_path: Path) -> None:
    save_folder(tmp_path, CONFIG, {name: torch.randn(1000)[:4] for name in "ab"}, max_shard_size=900)

    assert (tmp_path / "model.safetensors").exists()


def test_files_of_an_earlier_model_are_replaced_and_others_stay(tmp_path: Path) -> None:
    save_folder(tmp_path, CONFIG, {name: torch.randn(100) for name in "abcde"}, max_shard_size=900)
    (tmp_path / "README.md").write_text("mine")
    (tmp_path / "chat_template.jinja").write_text("old")

    save_folder(tmp_path, CONFIG, {"a": torch.ones(1)})

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
    ]


def test_shards_take_the_place_of_an_earlier_single_file(tmp_path: Path) -> None:
    save_folder(tmp_path, CONFIG, {"a": torch.ones(1)})

    save_folder(tmp_path, CONFIG, {name: torch.zeros(100) for name in "ab"}, max_shard_size=500)

    assert (tmp_path / INDEX).exists()
    assert set(load_all(tmp_path)) == {"a", "b"}


def test_an_error_on_the_way_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    save_folder(tmp_path, CONFIG, {"a": torch.ones(1)})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    unserialisable = CONFIG | {"value": object()}

    with pytest.raises(TypeError):
        save_folder(tmp_path, unserialisable, {"a": torch.zeros(2)})

    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("which", range(8))
def test_an_interruption_while_files_are_put_in_place_leaves_the_folder_as_it_was(
    which: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_folder(tmp_path, CONFIG, {"a": torch.ones(300), "b": torch.ones(300)}, max_shard_size=1500)
    (tmp_path / "notes.txt").write_text("mine")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    replace_file, calls = Path.replace, 0

    def interrupted(path: Path, target: Path) -> Path:
        nonlocal calls
        calls += 1
        if calls == which + 1:
            raise KeyboardInterrupt
        return replace_file(path, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_folder(tmp_path, CONFIG | {"new": True}, {"a": torch.zeros(2)})

    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_no_part_of_an_earlier_tokenizer_is_read_with_the_new_model(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"):
        (tmp_path / name).write_text("{}")
    save_folder(tmp_path, CONFIG, {"a": torch.ones(1)})
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "generation_config.json", "model.safetensors"}


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(CheckpointError, match="file is a file, so no model"):
        save_folder(tmp_path / "file", CONFIG, {})


def test_the_tokenizer_is_saved_with_what_belongs_to_it(tmp_path: Path) -> None:
    vocabulary = Vocabulary(
        WORDS, chat_template="{{ messages }}", eos_ids=(2,), pad_id=0, special_tokens={"eos_token": "</s>"}
    )

    save_folder(tmp_path, CONFIG, {"a": torch.ones(1)}, vocabulary)

    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).token_to_id("one") == 1
    settings = read(tmp_path / "tokenizer_config.json")
    assert (settings["eos_token"], settings["chat_template"]) == ("</s>", "{{ messages }}")
    assert read(tmp_path / "generation_config.json") == {"eos_token_id": 2, "pad_token_id": 0}


def test_settings_of_the_tokenizer_and_of_generation_are_kept_as_they_were_found(tmp_path: Path) -> None:
    vocabulary = Vocabulary(
        WORDS,
        eos_ids=(1, 2),
        special_tokens={"eos_token": "</s>"},
        settings={"eos_token": {"content": "</s>", "lstrip": True}, "model_max_length": 7},
        generation={"temperature": 0.6, "eos_token_id": [1, 2]},
    )

    save_folder(tmp_path, CONFIG, {"a": torch.ones(1)}, vocabulary)

    assert read(tmp_path / "tokenizer_config.json") == {
        "eos_token": {"content": "</s>", "lstrip": True},
        "model_max_length": 7,
    }
    assert read(tmp_path / "generation_config.json") == {"temperature": 0.6, "eos_token_id": [1, 2]}


def test_special_ids_are_saved_without_a_tokenizer(tmp_path: Path) -> None:
    save_folder(tmp_path, CONFIG, {"a": torch.ones(1)}, special_ids=SpecialIds(bos_id=5, eos_ids=(6, 7)))

    assert read(tmp_path / "generation_config.json") == {"bos_token_id": 5, "eos_token_id": [6, 7]}
    assert not (tmp_path / "tokenizer.json").exists()
