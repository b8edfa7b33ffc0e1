from __future__ import annotations

import pytest
import torch
from torch import nn

from suture import Adapter, AdapterGroup, EditError
from suture import layers as sl


class Doubled(sl.Sum, Adapter[nn.Module]):
    def __init__(self, target: nn.Module) -> None:
        with self.setup_adapter(target):
            super().__init__(target, target)


def adapted() -> tuple[sl.Chain, AdapterGroup[Doubled]]:
    model = sl.Chain(sl.Linear(2, 2), sl.Linear(2, 2))
    return model, AdapterGroup([Doubled(linear).inject(model) for linear in model.layers(sl.Linear)])


def test_a_group_goes_out_as_one() -> None:
    model, group = adapted()
    group.eject()
    assert [type(layer) for layer in model] == [sl.Linear, sl.Linear]


def test_a_block_ends_with_the_group_out_also_after_an_exception() -> None:
    model, group = adapted()
    with pytest.raises(ZeroDivisionError), group:
        raise ZeroDivisionError
    assert [type(layer) for layer in model] == [sl.Linear, sl.Linear]


def test_a_block_whose_group_is_out_already_ends_well() -> None:
    _, group = adapted()
    with group:
        group.eject()


def test_all_stay_where_one_cannot_go_out() -> None:
    model, group = adapted()
    edit = model.replace(model[0], sl.Identity())
    with pytest.raises(EditError, match="Identity"):
        group.eject()
    assert isinstance(model[1], Doubled)
    assert [adapter.is_injected for adapter in group] == [True, True]
    edit.undo()
    group.eject()
    assert model(torch.ones(1, 2)).shape == (1, 2)


def test_a_group_says_what_it_holds() -> None:
    _, group = adapted()
    assert repr(group) == "AdapterGroup(2 x Doubled)"
    group.eject()
    assert repr(group) == "AdapterGroup(2 x Doubled, ejected)"


class Beside(sl.Sum, Adapter[nn.Module]):
    def __init__(self, target: nn.Module) -> None:
        with self.setup_adapter(target):
            super().__init__(target, branch=sl.Linear(2, 2, bias=False))


def test_its_parameters_are_those_that_the_adapters_brought() -> None:
    model = sl.Chain(sl.Linear(2, 2), sl.Linear(2, 2))
    group = AdapterGroup([Beside(linear).inject(model) for linear in model.layers(sl.Linear)])
    brought = [id(adapter["branch"].weight) for adapter in group]
    assert [id(parameter) for parameter in group.parameters()] == brought


def test_an_adapter_can_be_had_by_number() -> None:
    model, group = adapted()
    assert group[0] is model[0]
    assert list(group[1:]) == [model[1]]
