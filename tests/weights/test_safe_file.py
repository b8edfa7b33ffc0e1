from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from suture.weights.checkpoint import CheckpointError, MissingFileError
from suture.weights.safe_file import read_tensors, write_tensors

OLD = {"old": torch.ones(3)}


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    tensors = {
        "matrix": torch.randn(3, 4).t(),
        "bytes": torch.arange(5, dtype=torch.uint8),
        "half": torch.randn(2).bfloat16(),
        "nothing": torch.zeros(0, 3),
        "number": torch.tensor(4.0),
        "conjugated": torch.randn(3, dtype=torch.complex64).conj(),
    }
    write_tensors(tmp_path / "new" / "some.safetensors", tensors, {"kind": "test"})
    found, metadata = read_tensors(tmp_path / "new" / "some.safetensors")
    assert metadata == {"kind": "test"}
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor.resolve_conj())


def test_a_view_is_stored_at_its_own_size_and_a_shared_tensor_under_each_name(tmp_path: Path) -> None:
    large = torch.randn(10_000)
    write_tensors(tmp_path / "some.safetensors", {"first": large[:4], "second": large[2:6], "again": large[:4]}, {})
    assert (tmp_path / "some.safetensors").stat().st_size < 1000
    found, _ = read_tensors(tmp_path / "some.safetensors")
    assert [found[name].tolist() for name in ("first", "second", "again")] == [
        large[start : start + 4].tolist() for start in (0, 2, 0)
    ]


@pytest.mark.parametrize("failing", ["safetensors.torch.save_file", "os.fsync", "pathlib.Path.replace"])
def test_an_interruption_leaves_the_old_file_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    write_tensors(tmp_path / "some.safetensors", OLD, {"kind": "old"})
    before = files(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(failing, interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_tensors(tmp_path / "some.safetensors", {"new": torch.zeros(3)}, {})
    assert files(tmp_path) == before


def test_the_new_file_is_on_the_disk_before_it_takes_the_name_of_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    flush, replace = os.fsync, Path.replace

    def flushed(descriptor: int) -> None:
        calls.append("flush")
        flush(descriptor)

    def replaced(path: Path, target: Path) -> Path:
        calls.append("replace")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(Path, "replace", replaced)
    write_tensors(tmp_path / "some.safetensors", OLD, {})
    assert calls == ["flush", "replace", "flush"]


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.empty(2, device="meta"), "new and 0 other tensors are on the meta device"),
        (torch.zeros(2, dtype=torch.complex128), "safetensors has no type torch.complex128"),
    ],
)
def test_what_cannot_be_stored_is_refused_and_the_old_file_stays(
    tmp_path: Path, tensor: torch.Tensor, message: str
) -> None:
    write_tensors(tmp_path / "some.safetensors", OLD, {})
    before = files(tmp_path)
    with pytest.raises(CheckpointError, match=message):
        write_tensors(tmp_path / "some.safetensors", {"new": tensor}, {})
    assert files(tmp_path) == before


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is a folder, so no tensors can be written to it"):
        write_tensors(tmp_path, OLD, {})
    with pytest.raises(MissingFileError, match=r"There is no file .*, but a folder"):
        read_tensors(tmp_path)


def test_a_file_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"There is no file .*some.safetensors"):
        read_tensors(tmp_path / "some.safetensors")


def cut(content: bytes) -> bytes:
    return content[:-1]


def cut_in_its_header(content: bytes) -> bytes:
    return content[:20]


def emptied(content: bytes) -> bytes:
    return content[:0]


def of_another_kind(_: bytes) -> bytes:
    return b"PK\x03\x04 this is a zip file, as torch.save writes it"


@pytest.mark.parametrize("damaged", [cut, cut_in_its_header, emptied, of_another_kind])
def test_a_damaged_file_is_refused_by_what_it_is(tmp_path: Path, damaged: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "some.safetensors"
    write_tensors(path, OLD, {})
    path.write_bytes(damaged(path.read_bytes()))
    with pytest.raises(CheckpointError, match=r"some.safetensors \(\d+ bytes, starting with .*\) cannot be read as"):
        read_tensors(path)
