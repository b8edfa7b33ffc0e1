from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFEndian

from suture.weights import gguf_file
from suture.weights.checkpoint import CheckpointError, MissingFileError
from suture.weights.gguf_file import open_gguf
from tests.weights.gguf_files import F32, QUANTIZED, READ_ONLY, Array, read_back, write_gguf


def any_values(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def any_blocks(rows: int, columns: int, kind: GGMLQuantizationType) -> Array:
    block, size = GGML_QUANT_SIZES[kind]
    return np.random.default_rng(0).integers(0, 256, (rows, columns // block * size), dtype=np.uint8)


def test_names_shapes_and_kinds_are_known_without_reading_a_value(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "a.gguf",
        {"a": (any_values(3, 64), GGMLQuantizationType.Q8_0), "b": (any_values(5), F32)},
        {"llama.block_count": 7, "tokenizer.ggml.tokens": ["x", "yz"]},
    )

    checkpoint = open_gguf(path)

    assert [(t.name, t.shape, t.kind) for t in checkpoint.tensors.values()] == [
        ("a", (3, 64), "Q8_0"),
        ("b", (5,), "F32"),
    ]
    assert checkpoint.architecture == "llama"
    assert checkpoint.metadata["llama.block_count"] == 7
    assert checkpoint.metadata["tokenizer.ggml.tokens"] == ["x", "yz"]


@pytest.mark.parametrize("kind", [F32, GGMLQuantizationType.F16, *QUANTIZED], ids=lambda kind: kind.name)
def test_values_of_a_type_that_gguf_writes_are_what_gguf_reads(tmp_path: Path, kind: GGMLQuantizationType) -> None:
    values = any_values(48, 256)
    stored = open_gguf(write_gguf(tmp_path / "a.gguf", {"a": (values, kind)})).tensors["a"]
    place = torch.empty(48, 256)

    stored.copy_to(place)

    assert torch.equal(place, torch.from_numpy(read_back(values, kind)))


# Any bytes are valid blocks; some hold a scale that is not a number or overflows, and numpy says so.
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("kind", READ_ONLY, ids=lambda kind: kind.name)
def test_values_of_a_type_that_gguf_only_reads_are_what_gguf_reads(tmp_path: Path, kind: GGMLQuantizationType) -> None:
    blocks = any_blocks(48, 512, kind)
    stored = open_gguf(write_gguf(tmp_path / "a.gguf", {"a": (blocks, kind)})).tensors["a"]
    place = torch.empty(48, 512)

    stored.copy_to(place)

    assert torch.equal(place.nan_to_num(), torch.from_numpy(read_back(blocks, kind)).nan_to_num())


def test_values_are_rounded_once_to_the_dtype_of_their_place(tmp_path: Path) -> None:
    values = any_values(16, 64)
    stored = open_gguf(write_gguf(tmp_path / "a.gguf", {"a": (values, GGMLQuantizationType.Q4_1)})).tensors["a"]
    place = torch.empty(16, 64, dtype=torch.bfloat16)

    stored.copy_to(place)

    assert torch.equal(place, torch.from_numpy(read_back(values, GGMLQuantizationType.Q4_1)).bfloat16())


@pytest.mark.parametrize("chunk", [64, 100, 1 << 20])
def test_values_are_the_same_whatever_the_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    values = any_values(7, 64)
    stored = open_gguf(write_gguf(tmp_path / "a.gguf", {"a": (values, GGMLQuantizationType.Q8_0)})).tensors["a"]
    monkeypatch.setattr(gguf_file, "CHUNK", chunk)
    place = torch.empty(7, 64)

    stored.copy_to(place)

    assert torch.equal(place, torch.from_numpy(read_back(values, GGMLQuantizationType.Q8_0)))


def test_a_view_receives_the_values_in_its_own_order(tmp_path: Path) -> None:
    values = any_values(6, 32)
    stored = open_gguf(write_gguf(tmp_path / "a.gguf", {"a": (values, F32)})).tensors["a"]
    transposed, heads = torch.empty(32, 6), torch.empty(6, 32)

    stored.copy_to(transposed.t())
    stored.copy_to(heads.view(1, 2, 3, 32).transpose(1, 2))

    assert torch.equal(transposed, torch.from_numpy(values).t())
    assert torch.equal(heads, torch.from_numpy(values[[0, 2, 4, 1, 3, 5]]))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"There is no file .*none\.gguf"):
        open_gguf(tmp_path / "none.gguf")


def test_a_file_that_is_not_what_its_name_says_is_refused(tmp_path: Path) -> None:
    (tmp_path / "page.gguf").write_text("<!doctype html>")

    with pytest.raises(CheckpointError, match=r"page.gguf is not a GGUF file: it starts with the bytes b'<!do'"):
        open_gguf(tmp_path / "page.gguf")


@pytest.mark.parametrize("kept", [5, 24, 200, 0.4, 0.99])
def test_a_truncated_file_is_refused(tmp_path: Path, kept: float) -> None:
    whole = write_gguf(tmp_path / "a.gguf", {"a": (any_values(48, 256), F32)}, {"tokenizer.ggml.tokens": ["a"] * 50})
    content = whole.read_bytes()
    (tmp_path / "cut.gguf").write_bytes(content[: kept if isinstance(kept, int) else int(len(content) * kept)])

    with pytest.raises(CheckpointError, match=r"cut.gguf .* cannot be read to its end.* cut short; download it again"):
        open_gguf(tmp_path / "cut.gguf")


def test_a_file_cut_short_after_it_was_opened_is_refused_by_the_tensor(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", {"a": (any_values(48, 256), F32)})
    stored = open_gguf(path).tensors["a"]
    path.write_bytes(path.read_bytes()[:-1000])

    with pytest.raises(CheckpointError, match="ends in the middle of the tensor a"):
        stored.copy_to(torch.empty(48, 256))


def test_an_element_type_that_cannot_be_read_is_refused_at_once(tmp_path: Path) -> None:
    blocks = any_blocks(4, 256, GGMLQuantizationType.Q8_K)
    path = write_gguf(tmp_path / "a.gguf", {"blk.0": (blocks, GGMLQuantizationType.Q8_K)})

    with pytest.raises(CheckpointError, match=r"holds the tensor blk.0 as Q8_K, .*cannot dequantise. Take"):
        open_gguf(path)


def test_a_big_endian_file_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", {"a": (any_values(4), F32)}, endianess=GGUFEndian.BIG)

    with pytest.raises(CheckpointError, match="big-endian"):
        open_gguf(path)


def test_a_file_without_architecture_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", {"a": (any_values(4), F32)})
    content = path.read_bytes()
    assert re.search(b"general.architecture", content)
    path.write_bytes(content.replace(b"general.architecture", b"general.architectuur"))

    with pytest.raises(CheckpointError, match=r"no general.architecture"):
        open_gguf(path)


def test_tensors_that_overlap_are_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", {"first": (any_values(64), F32), "second": (any_values(64), F32)})
    content = bytearray(path.read_bytes())
    offset = content.index(b"second") + len("second") + 4 + 8 + 4  # behind the number of sizes, the size and the type
    assert int.from_bytes(content[offset : offset + 8], "little") == 256
    content[offset : offset + 8] = (64).to_bytes(8, "little")
    path.write_bytes(content)

    with pytest.raises(CheckpointError, match="first and second overlap"):
        open_gguf(path)


def test_a_part_of_a_model_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", {"a": (any_values(4), F32)}, {"split.count": 3})

    with pytest.raises(CheckpointError, match=r"a.gguf is one of 3 parts .*llama-gguf-split --merge"):
        open_gguf(path)
