from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

from suture import layers as sl
from suture.layers import torch_layers


@pytest.mark.parametrize("name", torch_layers.__all__)
def test_each_is_a_subclass_of_torchs_layer_of_that_name(name: str) -> None:
    ours: type[nn.Module] = getattr(sl, name)
    theirs: type[nn.Module] = getattr(nn, name)
    assert issubclass(ours, theirs)
    assert ours.__name__ == name
    # It adds nothing; but what it is made with may be noted by a constructor around torch's.
    assert set(vars(ours)) <= {"__module__", "__doc__", "__init__", "__firstlineno__", "__static_attributes__"}
    assert inspect.signature(ours) == inspect.signature(theirs)


def test_none_of_these_kinds_is_missing() -> None:
    kinds = (
        "Conv",
        "MaxPool",
        "AvgPool",
        "AdaptiveAvg",
        "AdaptiveMax",
        "LPPool",
        "BatchNorm",
        "InstanceNorm",
        "Dropout",
    )
    paddings = ("ZeroPad", "ConstantPad", "ReflectionPad", "ReplicationPad", "CircularPad")
    activations = nn.modules.activation.__all__
    torchs = {name for name in nn.modules.__all__ if name.startswith((*kinds, *paddings)) or name in activations}
    assert torchs - set(torch_layers.__all__) == {"MultiheadAttention"}


def test_numbers_and_keys_are_torchs() -> None:
    ours, theirs = sl.Linear(3, 5), nn.Linear(3, 5)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3)
    assert torch.equal(ours(x), theirs(x))


def test_a_tree_selects_them_by_torchs_class() -> None:
    model = sl.Chain(sl.Linear(2, 2), sl.ReLU(), nn.Linear(2, 2))
    assert model.layers(nn.Linear) == [model[0], model[2]]
    assert model.layers(sl.Linear) == [model[0]]
