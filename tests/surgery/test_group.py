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


class Scaled(Beside):
    def __init__(self, target: nn.Module, scale: float = 1.0) -> None:
        super().__init__(target)
        self.scale = scale


class InsideTwo(sl.Chain, Adapter[sl.Chain]):
    """Changes two places in its target, and itself brings another layer."""

    def __init__(self, target: sl.Chain) -> None:
        with self.setup_adapter(target):
            super().__init__(target, sl.Linear(2, 2))

    def inject(self, parent: nn.Module | None = None) -> InsideTwo:
        self.target.append(sl.Linear(2, 2))
        self.target.replace(self.target[0], sl.Sum(self.target[0], sl.Linear(2, 2)))
        return super().inject(parent)


def test_a_block_puts_in_what_was_out_and_takes_it_out_again() -> None:
    model, group = adapted()
    group.eject()
    for _ in range(2):
        with group:
            assert [type(layer) for layer in model] == [Doubled, Doubled]
        assert [type(layer) for layer in model] == [sl.Linear, sl.Linear]


def test_what_was_ejected_goes_in_again_as_one() -> None:
    model, group = adapted()
    group.eject()
    edit = model.replace(model[1], sl.Identity())
    with pytest.raises(EditError, match="Identity"):
        group.inject()
    assert not any(adapter.is_injected for adapter in group)
    edit.undo()
    assert group.inject().is_injected
    with pytest.raises(EditError, match="injected already"):
        group.inject()


def test_a_group_that_is_partly_out_is_no_block() -> None:
    _, group = adapted()
    group[0].eject()
    assert not group.is_injected
    with pytest.raises(EditError, match="1 of the 2 adapters"), group:
        pass
    assert group[1].is_injected


def test_a_block_takes_out_what_is_in_when_one_went_out_in_it() -> None:
    model, group = adapted()
    with group:
        group[0].eject()
    assert [type(layer) for layer in model] == [sl.Linear, sl.Linear]


def test_nested_blocks_and_an_exception_inside_lead_back_to_the_outer_state() -> None:
    model = sl.Chain(sl.Linear(2, 2), sl.Linear(2, 2))
    bare = list(model)

    def fail_inside(outer: AdapterGroup[Beside]) -> None:
        with Scaled.on(model, "Linear") as inner:
            with outer:
                pass
            assert not outer.is_injected
            assert inner.is_injected
            outer.inject()
            raise ZeroDivisionError

    with Beside.on(model, sl.Linear) as group:
        outside = [layer for layer, _ in model.walk()]
        with pytest.raises(ZeroDivisionError):
            fail_inside(group)
        assert [layer for layer, _ in model.walk()] == outside
    assert list(model) == bare


def test_it_has_the_names_and_the_layers_of_its_adapters() -> None:
    model = sl.Chain(sl.Linear(2, 2), sl.Linear(2, 2))
    linears = tuple(model)
    group = Scaled.on(model, sl.Linear)
    assert group.names == ("Scaled",)
    assert group.layers == linears


def test_what_the_adapters_have_in_common_is_read_and_set_for_all() -> None:
    model = sl.Chain(sl.Linear(2, 2), sl.Linear(2, 2))
    group = Scaled.on(model, sl.Linear, scale=2.0)
    assert group.scale == 2.0
    group.scale = 3.0
    assert [adapter.scale for adapter in group] == [3.0, 3.0]
    group[0].scale = 1.0
    with pytest.raises(ValueError, match=r"different values of scale: 1\.0, 3\.0"):
        _ = group.scale


def test_what_adapters_do_not_have_cannot_be_read_or_set() -> None:
    _, group = adapted()
    with pytest.raises(TypeError, match="Doubled has no 'scale'"):
        _ = group.scale
    with pytest.raises(TypeError, match="Doubled has no 'strength'"):
        group.set(strength=1)
    with pytest.raises(ValueError, match="is empty"):
        AdapterGroup[Doubled]([]).scale = 1


def test_the_parameters_of_adapters_of_several_places_are_all_that_they_brought() -> None:
    model = sl.Chain(inner=sl.Chain(sl.Linear(2, 2)))
    bare = {id(parameter) for parameter in model.parameters()}
    group = InsideTwo.on(model, "inner")
    brought = [id(parameter) for parameter in group.parameters()]
    assert set(brought) == {id(parameter) for parameter in model.parameters()} - bare
    assert len(brought) == 6


def test_the_parameters_while_out_are_those_that_it_brings() -> None:
    model = sl.Chain(sl.Linear(2, 2), sl.Linear(2, 2))
    group = Beside.on(model, sl.Linear)
    injected = list(map(id, group.parameters()))
    group.eject()
    assert list(map(id, group.parameters())) == injected
