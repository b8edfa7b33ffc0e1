from __future__ import annotations

import itertools
import json
import os
import shutil
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import safetensors.torch
import torch
from torch import nn

import suture
from suture import layers as sl
from suture.layers.edit import Edit
from suture.surgery.adapter import Adapter
from suture.surgery.selection import select
from suture.surgery.survey import Match
from suture.weights.checkpoint import CheckpointError, MissingFileError
from suture.weights.model_folder import MANIFEST
from suture.weights.safe_file import read_tensors, write_tensors


class Branch(sl.Sum, Adapter[nn.Module]):
    def __init__(self, target: nn.Module, name: str = "Branch") -> None:
        self.adapter_name = name
        with self.setup_adapter(target):
            super().__init__(target, branch=sl.Chain(sl.Linear(2, 2), sl.Linear(2, 2)))


class Quiet(sl.Chain, Adapter[nn.Module]):
    """Brings no weights."""

    def __init__(self, target: nn.Module) -> None:
        with self.setup_adapter(target):
            super().__init__(target, sl.Tanh())


def bare() -> sl.Chain:
    return sl.Chain(one=sl.Linear(2, 2), two=sl.Residual(norm=sl.BatchNorm1d(2), inner=sl.Linear(2, 2)))


def adapted(model: nn.Module, *names: str) -> nn.Module:
    for name in names:
        adapt(model, name)
    return model


def adapt(model: nn.Module, name: str) -> Edit:
    return select(model, "one").adapt(lambda layer: Branch(layer, name))


def values(model: nn.Module) -> dict[str, list[Any]]:
    return {key: tensor.tolist() for key, tensor in model.state_dict().items()}


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_base_and_adapters_have_files_of_their_own_with_the_bare_keys(tmp_path: Path) -> None:
    model = adapted(bare(), "style", "tone", "style")
    suture.save(model, tmp_path)

    assert files(tmp_path) == ["Branch.style.safetensors", "Branch.tone.safetensors", "base.safetensors", MANIFEST]
    base, _ = read_tensors(tmp_path / "base.safetensors")
    assert base.keys() == bare().state_dict().keys()
    assert bare().load_state_dict(base, strict=True)
    style, _ = read_tensors(tmp_path / "Branch.style.safetensors")
    assert style.keys() == {key for key in model.state_dict() if "one+Branch." in key or "one+Branch_3." in key}


def test_what_is_loaded_is_what_was_saved(tmp_path: Path) -> None:
    model, other = adapted(bare(), "style", "tone"), adapted(bare(), "style", "tone")
    suture.save(model, tmp_path)
    identities = [id(tensor) for tensor in other.state_dict(keep_vars=True).values()]
    suture.load(other, tmp_path)
    assert values(other) == values(model)
    assert [id(tensor) for tensor in other.state_dict(keep_vars=True).values()] == identities


def test_weights_of_plain_edits_are_of_the_model(tmp_path: Path) -> None:
    model = bare()
    adapted(model, "style")
    select(model, "two.inner").wrap(lambda layer: sl.Sum(layer, more=sl.Linear(2, 2)))
    model.layer("one+Branch", sl.Sum).append(sl.Linear(2, 2), "more")
    suture.save(model, tmp_path)
    base, _ = read_tensors(tmp_path / "base.safetensors")
    assert base.keys() - bare().state_dict().keys() == {
        *("two.inner+Sum.more.weight", "two.inner+Sum.more.bias"),
        *("one+Branch.more.weight", "one+Branch.more.bias"),
    }


def test_an_adapter_without_weights_has_no_file(tmp_path: Path) -> None:
    model = bare()
    select(model, "one").adapt(Quiet)
    suture.save(model, tmp_path)
    assert files(tmp_path) == ["base.safetensors", MANIFEST]


def test_an_adapter_that_stands_in_no_place_has_its_weights_in_its_own_file(tmp_path: Path) -> None:
    class Elsewhere(sl.Chain, Adapter[sl.Chain]):
        def __init__(self, target: sl.Chain) -> None:
            with self.setup_adapter(target):
                super().__init__()

        def inject(self, parent: nn.Module | None = None) -> Elsewhere:
            self.target.append(sl.Linear(2, 2), "added")
            return self

    model = bare()
    adapter = Elsewhere(model).inject()
    suture.save(model, tmp_path)
    assert read_tensors(tmp_path / "Elsewhere.safetensors")[0].keys() == {"added.weight", "added.bias"}
    adapter.eject()


@pytest.mark.parametrize("name", ["0", "node", "reads", "place", "_first", "[b]", "a, é"])
def test_a_plain_module_has_its_own_keys_whatever_is_put_into_it(name: str, tmp_path: Path) -> None:
    def plain() -> nn.Module:
        layers = {name: nn.Linear(2, 2), "more": nn.Sequential(nn.Linear(2, 2), nn.ReLU())}
        return nn.Sequential(OrderedDict(layers))

    model, other = plain(), plain()

    def is_named(match: Match) -> bool:
        return match.path == name

    adapters = [select(each, is_named).adapt(Branch) for each in (model, other)]
    suture.save(model, tmp_path)
    base, _ = read_tensors(tmp_path / "base.safetensors")
    assert plain().load_state_dict(base, strict=True)
    suture.load(other, tmp_path)
    assert values(other) == values(model)
    assert len(adapters) == 2


def test_a_compiled_model_has_the_keys_of_the_model(tmp_path: Path) -> None:
    suture.save(cast("nn.Module", torch.compile(bare(), backend="eager")), tmp_path)
    suture.load(bare(), tmp_path)


# Tied weights


def tied() -> sl.Chain:
    model = sl.Chain(embedding=sl.Embedding(3, 2), inner=sl.Chain(linear=sl.Linear(2, 2)), head=sl.Linear(2, 3))
    model.layer("head", sl.Linear).weight = model.layer("embedding", sl.Embedding).weight
    return model


def test_a_tied_weight_is_saved_once_and_stays_tied(tmp_path: Path) -> None:
    model, other = tied(), tied()
    suture.save(model, tmp_path)
    base, _ = read_tensors(tmp_path / "base.safetensors")
    assert "embedding.weight" in base
    assert "head.weight" not in base
    suture.load(other, tmp_path)
    assert values(other) == values(model)
    assert other.layer("head", sl.Linear).weight is other.layer("embedding", sl.Embedding).weight


def test_what_the_model_and_an_adapter_share_is_the_models(tmp_path: Path) -> None:
    class Sharing(sl.Sum, Adapter[nn.Module]):
        def __init__(self, target: nn.Module, shared: nn.Module) -> None:
            with self.setup_adapter(target):
                super().__init__(target, shared, sl.Linear(2, 2))

    model = bare()
    shared = model["two.inner"]
    select(model, "one").adapt(lambda layer: Sharing(layer, shared))
    suture.save(model, tmp_path)
    base, _ = read_tensors(tmp_path / "base.safetensors")
    assert base.keys() == bare().state_dict().keys()
    assert read_tensors(tmp_path / "Sharing.safetensors")[0].keys() == {
        "one+Sharing.Linear_3.weight",
        "one+Sharing.Linear_3.bias",
    }


def test_a_file_with_both_names_of_a_tied_weight_is_loaded_if_they_are_equal(tmp_path: Path) -> None:
    model = tied()
    suture.save(model, tmp_path)
    base, metadata = read_tensors(tmp_path / "base.safetensors")
    write_tensors(tmp_path / "base.safetensors", base | {"head.weight": base["embedding.weight"]}, metadata)
    suture.load(tied(), tmp_path)
    write_tensors(tmp_path / "base.safetensors", base | {"head.weight": torch.zeros(3, 2)}, metadata)
    with pytest.raises(CheckpointError, match=r"other values for head.weight than for embedding.weight"):
        suture.load(tied(), tmp_path)


# What does not fit


def without_bias() -> nn.Module:
    return sl.Chain(one=sl.Linear(2, 2, bias=False), two=bare()["two"])


def with_more() -> nn.Module:
    return sl.Chain(one=sl.Linear(2, 2), two=bare()["two"], three=sl.PReLU() if hasattr(sl, "PReLU") else nn.PReLU())


def of_another_shape() -> nn.Module:
    return sl.Chain(one=sl.Linear(3, 2), two=bare()["two"])


def of_another_kind() -> nn.Module:
    model = bare()
    model.layer("two.norm", sl.BatchNorm1d).num_batches_tracked = torch.tensor(0.0)
    return model


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (without_bias, "base.safetensors has one.bias, which the model has not"),
        (with_more, "base.safetensors lacks three.weight"),
        (of_another_shape, r"base.safetensors has one.weight as \[2, 2\] where \[2, 3\] is expected"),
        (of_another_kind, r"has two.norm.num_batches_tracked as I64 where torch.float32 is expected"),
        (lambda: adapted(bare(), "style"), "Branch.style is in the model and has no file"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_written(
    tmp_path: Path, make: Callable[[], nn.Module], message: str
) -> None:
    suture.save(bare(), tmp_path)
    model = make()
    before = values(model)
    with pytest.raises(CheckpointError, match=message):
        suture.load(model, tmp_path)
    assert values(model) == before


def test_an_adapter_in_a_file_that_the_model_has_not_is_named(tmp_path: Path) -> None:
    suture.save(adapted(bare(), "style"), tmp_path)
    with pytest.raises(
        CheckpointError, match=r"Branch.style.safetensors has the weights of Branch.style, which is not"
    ):
        suture.load(bare(), tmp_path)


def test_everything_that_does_not_fit_is_named_at_once(tmp_path: Path) -> None:
    suture.save(adapted(of_another_shape(), "style"), tmp_path)
    with pytest.raises(CheckpointError, match=r"Branch.style.*Branch.tone.*\[2, 3\] where \[2, 2\] is expected"):
        suture.load(adapted(bare(), "tone"), tmp_path)


def test_what_is_no_tensor_with_values_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    class Stateful(nn.Module):
        def get_extra_state(self) -> dict[str, int]:
            return {"count": 3}

    with pytest.raises(CheckpointError, match="_extra_state has no place in a file of tensors: it is a dict"):
        suture.save(Stateful(), tmp_path / "new")
    with pytest.raises(CheckpointError, match=r"one.weight has no place .* on the meta device"):
        suture.save(bare().to("meta"), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_model_without_values_is_not_loaded(tmp_path: Path) -> None:
    suture.save(bare(), tmp_path)
    with pytest.raises(CheckpointError, match=r"Call model.to_empty\(device=...\) first"):
        suture.load(bare().to("meta"), tmp_path)


# The folder


def test_a_file_is_no_folder_and_a_folder_without_a_manifest_was_not_saved(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="is a file, so no model"):
        suture.save(bare(), tmp_path / "file")
    with pytest.raises(MissingFileError, match=r"There is no .*suture.json, so .* is no folder that suture.save wrote"):
        suture.load(bare(), tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        {"format": "suture", "version": 2, "files": {"base": "base.safetensors"}},
        {"format": "suture", "version": 1, "files": {"base": "../base.safetensors"}},
        {"format": "suture", "version": 1, "files": ["base.safetensors"]},
        {"format": "suture", "version": 1, "files": {"base": "base.safetensors"}, "pending": ".."},
        {},
    ],
)
def test_a_manifest_that_cannot_be_followed_is_refused(tmp_path: Path, content: dict[str, Any]) -> None:
    suture.save(bare(), tmp_path)
    (tmp_path / MANIFEST).write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=MANIFEST):
        suture.load(bare(), tmp_path)


def test_a_file_that_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    model = adapted(bare(), "style")
    suture.save(model, tmp_path)
    path = tmp_path / "Branch.style.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-3])
    before = values(model)
    with pytest.raises(CheckpointError, match=r"Branch.style.safetensors .* was cut short"):
        suture.load(model, tmp_path)
    path.unlink()
    with pytest.raises(MissingFileError, match=r"Branch.style.safetensors"):
        suture.load(model, tmp_path)
    assert values(model) == before


def test_names_of_adapters_that_no_file_can_have_are_written_all_the_same(tmp_path: Path) -> None:
    model = adapted(bare(), "a/b", "..", "Style", "style")
    suture.save(model, tmp_path)
    assert files(tmp_path) == [
        *("Branch....safetensors", "Branch.Style.safetensors", "Branch.a%2Fb.safetensors"),
        *("Branch.style-2.safetensors", "base.safetensors", MANIFEST),
    ]
    suture.load(model, tmp_path)


def test_the_files_of_adapters_that_are_gone_go_and_others_stay(tmp_path: Path) -> None:
    model = bare()
    edit = adapt(model, "style")
    suture.save(model, tmp_path)
    (tmp_path / "notes.txt").touch()
    edit.undo()
    suture.save(model, tmp_path)
    assert files(tmp_path) == ["base.safetensors", "notes.txt", MANIFEST]


# A process that ends while it saves


class DeadError(BaseException):
    """The process ended here."""


STEPS = {
    os: ("fsync", "unlink", "rmdir", "mkdir"),
    Path: ("replace", "write_text", "unlink"),
    shutil: ("rmtree",),
    safetensors.torch: ("save_file",),
}


def dying(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Has the process end at the n-th thing that it does to the disk: neither that nor anything after it is done."""
    left = itertools.count(after, -1)

    def until_dead(function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            if next(left) <= 0:
                raise DeadError
            return function(*args, **kwargs)

        return step

    for owner, names in STEPS.items():
        for name in names:
            monkeypatch.setattr(owner, name, until_dead(getattr(owner, name)))


def test_wherever_saving_ends_all_of_the_old_or_all_of_the_new_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new, read = (adapted(bare(), "style", "tone") for _ in range(3))
    found: list[str] = []
    for after in itertools.count():
        shutil.rmtree(tmp_path, ignore_errors=True)
        suture.save(old, tmp_path)
        finished = True
        with monkeypatch.context() as patched:
            dying(patched, after)
            try:
                suture.save(new, tmp_path)
            except DeadError:
                finished = False
        suture.load(read, tmp_path)
        found.append({repr(values(old)): "old", repr(values(new)): "new"}[repr(values(read))])
        # What was left does not keep the next saving from being read, and goes with it.
        suture.save(old, tmp_path)
        suture.load(read, tmp_path)
        assert values(read) == values(old)
        assert len(files(tmp_path)) == 4
        if finished:
            break
    assert found == sorted(found, reverse=True)
    assert len(found) > 20
    assert found.count("new") > 5


def test_an_error_while_saving_leaves_the_folder_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    suture.save(adapted(bare(), "style"), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        suture.save(adapted(bare(), "tone"), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
