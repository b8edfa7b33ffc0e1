from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from suture import SelectionError, select
from suture import layers as sl
from suture.adapters import LoRA
from suture.weights.checkpoint import CheckpointError, MissingFileError
from suture.weights.safe_file import read_tensors, write_tensors
from tests.adapters.trained import facts, train

X = torch.randn(3, 4)


def model(width: int = 4, blocks: int = 3) -> sl.Stack:
    torch.manual_seed(0)
    return sl.Stack(*(sl.Chain(query=sl.Linear(4, width), value=sl.Linear(width, 4)) for _ in range(blocks)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "style.safetensors"


@pytest.mark.parametrize(
    "arguments",
    [
        {"rank": 2},
        {"rank": 3, "alpha": 6, "name": "style", "dropout": 0.5},
        {"rank": 2, "split": {"a": 1, "b": 3}, "parts": ["b"]},
        {"rank": 2, "dtype": torch.float64},
    ],
    ids=str,
)
def test_what_was_saved_gives_the_same_outputs(path: Path, arguments: dict[str, Any]) -> None:
    tree = model().eval()
    group = LoRA.on(tree, "query", **arguments)
    train(group)
    group.scale = 0.7
    group.save(path)
    other = model().eval()
    loaded = LoRA.load(other, path)
    assert torch.equal(other(X), tree(X))
    assert [adapter.arguments for adapter in loaded] == [adapter.arguments for adapter in group]
    loaded.eject()
    assert torch.equal(other(X), model()(X))


def test_the_file_has_the_keys_of_the_model_and_nothing_of_the_base(path: Path) -> None:
    tree = model()
    LoRA.on(tree, "1.query", name="style").save(path)
    tensors, metadata = read_tensors(path)
    assert sorted(tensors) == [
        "1.query+LoRA.style.down.weight",
        "1.query+LoRA.style.scale.factor",
        "1.query+LoRA.style.up.weight",
    ]
    assert set(tensors) <= set(tree.state_dict())
    assert metadata["format"] == "suture.lora"


def test_merged_or_ejected_it_is_saved_as_well(path: Path) -> None:
    tree = model()
    group = LoRA.on(tree, "query", rank=2)
    train(group)
    adapted = tree(X)
    group.merge()
    group.save(path)
    merged = read_tensors(path)
    group.eject()
    group.save(path)
    assert read_tensors(path)[1] == merged[1]
    torch.testing.assert_close(read_tensors(path)[0], merged[0], atol=0, rtol=0)
    LoRA.load(tree, path)
    assert torch.equal(tree(X), adapted)


def test_beside_another_lora_each_has_its_file(path: Path) -> None:
    tree = model()
    one, two = (LoRA.on(tree, "query", rank=2, name=name) for name in ("one", "two"))
    train([*one, *two])
    adapted = tree(X)
    two.save(path)
    two.eject()
    LoRA.load(tree, path)
    torch.testing.assert_close(tree(X), adapted)
    one.eject()


def test_a_block_that_was_inserted_meanwhile_leads_to_no_other_layer(path: Path) -> None:
    tree = model()
    group = LoRA.on(tree, "#.query", rank=2)
    train(group)
    group.save(path)
    group.eject()
    tree.insert(1, sl.Chain(query=sl.Linear(4, 4), value=sl.Linear(4, 4)))
    group.inject()
    adapted = tree(X)
    group.eject()
    loaded = LoRA.load(tree, path)
    assert torch.equal(tree(X), adapted)
    assert [adapter.target for adapter in loaded] == list(group.layers)


def test_a_block_that_was_removed_meanwhile_is_refused_by_name(path: Path) -> None:
    tree = model()
    with LoRA.on(tree, "query", rank=2) as group:
        group.save(path)
    tree.pop(1)
    before = facts(tree)
    with pytest.raises(SelectionError, match=r"no layer at '1\.query'.*Near are"):
        LoRA.load(tree, path)
    assert facts(tree) == before


@pytest.mark.parametrize("other", [model(width=6), model().to("meta")[:2]], ids=["shape", "fewer"])
def test_a_model_of_another_form_is_refused_by_name(path: Path, other: sl.Stack) -> None:
    LoRA.on(model(), "query", rank=2).save(path)
    before = facts(other)
    with pytest.raises((ValueError, SelectionError), match=r"'[02]\.query'"):
        LoRA.load(other, path)
    assert facts(other) == before


def test_a_layer_of_another_kind_is_refused_by_name(path: Path) -> None:
    LoRA.on(model(), "query", rank=2).save(path)
    tree = model()
    select(tree, "2.query").replace(sl.Tanh())
    before = facts(tree)
    with pytest.raises(ValueError, match=r"does not fit the Tanh at '2\.query'"):
        LoRA.load(tree, path)
    assert facts(tree) == before


def test_it_takes_the_dtype_of_its_place(path: Path) -> None:
    group = LoRA.on(model(), "query", rank=2)
    train(group)
    group.save(path)
    tree = model().to(torch.bfloat16)
    loaded = LoRA.load(tree, path)
    for one, other in zip(group.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(one.bfloat16(), other)


def test_a_part_of_a_tree_is_known_by_the_paths_of_the_whole(path: Path) -> None:
    tree = sl.Chain(blocks=model())
    LoRA.on(tree, "query", rank=2).save(path)
    other = sl.Chain(blocks=model())
    loaded = LoRA.load(other.layer("blocks", sl.Stack), path)
    assert [adapter.target_path for adapter in loaded] == [f"blocks.{number}.query" for number in range(3)]


def rewritten(path: Path, **changes: str) -> None:
    tensors, metadata = read_tensors(path)
    write_tensors(path, tensors, {**metadata, **changes})


def test_a_file_that_is_not_what_it_should_be_is_refused(path: Path) -> None:
    tree = model()
    with pytest.raises(MissingFileError):
        LoRA.load(tree, path)
    with LoRA.on(tree, "query", rank=2) as group:
        group.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="cut short"):
        LoRA.load(tree, path)
    for changes, says in [
        ({"format": "other"}, "format 'other'"),
        ({"version": "9"}, "version '9'"),
        ({"adapters": "{"}, "does not say how"),
        ({"adapters": json.dumps([{"target": "0.query"}])}, "does not say how"),
        ({"adapters": "[]"}, "tensors of no LoRA that it names"),
    ]:
        path.write_bytes(whole)
        rewritten(path, **changes)
        with pytest.raises(CheckpointError, match=says):
            LoRA.load(tree, path)
    tensors, metadata = read_tensors(path)
    path.write_bytes(whole)
    tensors, metadata = read_tensors(path)
    del tensors["0.query+LoRA.lora.up.weight"]
    write_tensors(path, tensors, metadata)
    with pytest.raises(ValueError, match=r"for its up\.weight there is nothing"):
        LoRA.load(tree, path)
    assert not tree.layers(LoRA)


def test_what_was_never_in_a_tree_has_no_path_to_be_saved_by(path: Path) -> None:
    from suture.adapters import LoRAs

    with pytest.raises(ValueError, match="never injected"):
        LoRAs([LoRA(sl.Linear(2, 2))]).save(path)
    assert not path.exists()
