"""Law 4: whatever is put into a tree, the bare model's keys are what they were, for everything that reads keys."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn  # pyright: ignore[reportUnknownVariableType]

from suture import layers as sl
from suture.surgery.selection import select
from tests.layers.ranks import WIDTH, Branch, adapted, bare, input_of, rank

X = input_of()


def test_the_bare_keys_come_unchanged_and_in_their_order() -> None:
    keys = list(bare().state_dict())
    found = list(adapted().state_dict())
    assert [key for key in found if key in keys] == keys
    assert len(found) == len(keys) + 2 * 4 + 4 + 3 * 2 + 2


def test_a_checkpoint_of_the_bare_model_is_loaded_strictly_as_to_its_keys() -> None:
    model, checkpoint = adapted(), bare().state_dict()
    result: Any = model.load_state_dict(checkpoint, strict=False)
    assert result.unexpected_keys == []
    assert sorted([*result.missing_keys, *checkpoint]) == sorted(model.state_dict())
    assert all(torch.equal(model.state_dict()[key], tensor) for key, tensor in checkpoint.items())
    own = {key: tensor for key, tensor in model.state_dict().items() if key in checkpoint}
    assert bare().load_state_dict(own, strict=True)


def test_ejected_adapters_leave_a_model_that_loads_the_bare_checkpoint_strictly() -> None:
    model, checkpoint = bare(), bare().state_dict()
    edits = [select(model, "query").adapt(Branch), select(model, "blocks").adapt(Branch)]
    for edit in edits:
        edit.undo()
    assert model.load_state_dict(checkpoint, strict=True)


def test_functional_call_replaces_base_weights_by_their_bare_keys() -> None:
    model, other = adapted(), bare()
    replaced: dict[str, Tensor] = dict(other.named_parameters())
    found = torch.func.functional_call(model, replaced, (X,))
    assert not torch.equal(found, model(X))
    model.load_state_dict(other.state_dict(), strict=False)
    assert torch.equal(found, model(X))


def test_gradients_of_a_functional_call_go_to_the_bare_keys() -> None:
    model = adapted()
    names = list(dict(bare().named_parameters()))

    def loss(weights: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, weights, (X,)).square().mean()

    gradients = torch.func.grad(loss)({name: model.get_parameter(name).detach() for name in names})
    model(X).square().mean().backward()
    for name in names:
        torch.testing.assert_close(gradients[name], model.get_parameter(name).grad, msg=name)


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_copies_have_the_keys_and_weights_of_their_own(way: str) -> None:
    model = adapted()
    copied = copy.deepcopy(model) if way == "deepcopy" else pickle.loads(pickle.dumps(model))
    assert list(copied.state_dict()) == list(model.state_dict())
    assert torch.equal(copied(X), model(X))
    storages = {tensor.data_ptr() for tensor in model.state_dict().values()}
    assert not storages & {tensor.data_ptr() for tensor in copied.state_dict().values()}
    before = model(X)
    copied.load_state_dict(bare().state_dict(), strict=False)
    assert not torch.equal(copied(X), before)
    assert torch.equal(model(X), before)


def test_an_exported_tree_has_its_parameters_under_the_keys_of_the_tree() -> None:
    model = adapted().eval()
    program = torch.export.export(model, (X,))
    assert set(program.state_dict) == set(model.state_dict())
    assert set(program.graph_signature.parameters) == {name for name, _ in model.named_parameters()}
    assert set(bare().state_dict()) < set(program.state_dict)
    torch.testing.assert_close(program.module()(X), model(X))


def test_an_exported_plain_module_with_adapters_has_their_keys() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())).eval()
    select(model, "1.0").adapt(Branch)
    program = torch.export.export(model, (X,))
    assert set(program.state_dict) == set(model.state_dict())
    torch.testing.assert_close(program.module()(X), model(X))


def test_weights_stay_where_they_are_while_a_tree_is_called() -> None:
    model = adapted()
    before = [(name, id(tensor)) for name, tensor in model.named_parameters()]
    model(X)
    assert [(name, id(tensor)) for name, tensor in model.named_parameters()] == before
    assert isinstance(model, sl.Chain)


def test_two_processes_shard_train_and_exchange_distributed_checkpoints(tmp_path: Path) -> None:
    spawn(rank, (str(tmp_path),), nprocs=2)
