from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import nn

from suture import layers as sl


def tied() -> sl.Chain:
    model = sl.Chain(embedding=sl.Embedding(3, 2), inner=sl.Chain(norm=sl.BatchNorm1d(2), head=sl.Linear(2, 3)))
    model.layer("inner.head", sl.Linear).weight = model.layer("embedding", sl.Embedding).weight
    model.layer("inner.norm", sl.BatchNorm1d).running_var = model.layer("inner.norm", sl.BatchNorm1d).running_mean
    return model


def copied(model: sl.Chain) -> sl.Chain:
    return copy.deepcopy(model)


def pickled(model: sl.Chain) -> sl.Chain:
    return pickle.loads(pickle.dumps(model))


def to_meta(model: sl.Chain) -> sl.Chain:
    return model.to("meta")


def emptied(model: sl.Chain) -> sl.Chain:
    return model.to("meta").to_empty(device="cpu")


def cast(model: sl.Chain) -> sl.Chain:
    return model.to(torch.bfloat16)


@pytest.mark.parametrize("moved", [copied, pickled, to_meta, emptied, cast])
def test_what_is_one_tensor_stays_one(moved: Callable[[sl.Chain], sl.Chain]) -> None:
    model = moved(tied())
    head, norm = model.layer("inner.head", sl.Linear), model.layer("inner.norm", sl.BatchNorm1d)
    assert head.weight is model.layer("embedding", sl.Embedding).weight
    assert isinstance(head.weight, nn.Parameter)
    assert norm.running_var is norm.running_mean
    assert len(list(model.parameters())) == 4
