"""What is put in takes the dtype, device and mode of its place."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from suture import layers as sl


def model() -> sl.Chain:
    return sl.Chain(norm=sl.LayerNorm(4), blocks=sl.Stack(sl.Chain(up=sl.Linear(4, 4)), sl.Chain(up=sl.Linear(4, 4))))


def dtypes(layer: nn.Module) -> set[torch.dtype]:
    return {parameter.dtype for parameter in layer.parameters()}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_replacement_takes_the_dtype_of_what_stood_there(dtype: torch.dtype) -> None:
    tree = model().to(dtype)
    new = sl.Chain(sl.Linear(4, 4), sl.BatchNorm1d(4))
    tree.replace(tree["norm"], new)
    assert dtypes(new) == {dtype}
    assert {buffer.dtype for buffer in new.buffers()} == {dtype, torch.long}


def test_an_insertion_takes_the_dtype_around() -> None:
    tree = model().to(torch.bfloat16)
    new = sl.Linear(4, 4)
    tree.layer("blocks", sl.Stack).append(sl.Chain(new))
    assert dtypes(new) == {torch.bfloat16}


def test_what_was_there_is_left_alone() -> None:
    tree = model().to(torch.bfloat16)
    kept = tree.layer("norm", sl.LayerNorm).float()
    tree.replace(kept, sl.Sum(kept, sl.Linear(4, 4)))
    assert dtypes(kept) == {torch.float32}


def test_the_leaves_that_a_structural_copy_shares_are_left_alone() -> None:
    tree = model().to(torch.bfloat16)
    blocks = tree.layer("blocks", sl.Stack)
    shared = tree.layer("blocks.1.up", sl.Linear).float()
    blocks.insert(0, tree.layer("blocks.1", sl.Chain).structural_copy())
    assert dtypes(shared) == {torch.float32}


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_that_of_the_place(training: bool) -> None:
    tree = model().train(training)
    new = sl.Chain(sl.Dropout(), sl.Chain(sl.Dropout()))
    new.train(not training)
    tree.append(new)
    assert {module.training for module in new.modules()} == {training}


def test_a_parameter_stays_the_same_object() -> None:
    tree = model().to(torch.bfloat16)
    new = sl.Linear(4, 4)
    weight = new.weight
    tree.append(new)
    assert new.weight is weight


def test_the_device_is_that_of_the_place() -> None:
    tree = model().to("meta")
    new = sl.Linear(4, 4)
    tree.append(new)
    assert new.weight.is_meta


def test_what_returns_takes_what_its_place_was_given_meanwhile() -> None:
    tree = model()
    old = tree.layer("norm", sl.LayerNorm)
    edit = tree.replace(old, sl.Linear(4, 4))
    tree.to(torch.bfloat16).eval()
    edit.undo()
    assert dtypes(old) == {torch.bfloat16}
    assert not old.training


def test_what_returns_to_an_unchanged_place_is_as_it_was() -> None:
    tree = model()
    old = tree.layer("norm", sl.LayerNorm).double().eval()
    edit = tree.replace(old, sl.Linear(4, 4))
    edit.undo()
    assert dtypes(old) == {torch.float64}
    assert not old.training
