from __future__ import annotations

import pytest
import torch

from suture import EditError
from suture import layers as sl
from suture.adapters import Dropout
from tests.adapters.trained import facts

X = torch.ones(2, 64)


def model() -> sl.Chain:
    return sl.Chain(attention=sl.Residual(inner=sl.Linear(64, 64)), output=sl.Linear(64, 64))


def test_it_drops_what_a_layer_returns_while_training() -> None:
    tree = model()
    bare = tree(X)
    Dropout.on(tree, "output", p=0.5)
    dropped = tree(X)
    zeros = dropped == 0
    assert 20 < zeros.sum() < 108
    torch.testing.assert_close(dropped[~zeros], 2 * bare[~zeros])
    assert torch.equal(tree.eval()(X), bare)


def test_in_a_residual_branch_only_what_is_added_is_dropped() -> None:
    tree = model()
    Dropout.on(tree, "attention", p=1.0)
    assert torch.equal(tree.layer("attention", sl.Residual)(X), X)


def test_it_is_out_again_after_training() -> None:
    tree = model()
    before, bare = facts(tree), tree(X)
    group = Dropout.on(tree, "attention", "output", p=0.1)
    assert len(tree.layers(sl.Dropout)) == 2
    group.eject()
    assert facts(tree) == before
    with group:
        assert len(tree.layers(sl.Dropout)) == 2
    assert facts(tree) == before
    assert torch.equal(tree(X), bare)


def test_its_probability_can_be_set_for_all() -> None:
    tree = model()
    group = Dropout.on(tree, "attention", "output", p=0.1)
    assert group.p == 0.1
    group.p = 0.4
    assert [layer.p for layer in tree.layers(sl.Dropout)] == [0.4, 0.4]
    group[0].p = 0.2
    with pytest.raises(ValueError, match=r"different values of p: 0\.2, 0\.4"):
        _ = group.p


@pytest.mark.parametrize("p", [-0.1, 1.1])
def test_a_probability_that_is_none_is_refused(p: float) -> None:
    tree = model()
    with pytest.raises(ValueError, match="dropout probability"):
        Dropout.on(tree, "output", p=p)
    group = Dropout.on(tree, "output")
    with pytest.raises(ValueError, match="dropout probability"):
        group.p = p
    assert group.p == 0.5


@pytest.mark.parametrize("training", [True, False])
def test_it_takes_the_mode_of_its_place(training: bool) -> None:
    tree = model().train(training)
    Dropout.on(tree, "attention", "output")
    assert {layer.training for layer in tree.layers(sl.Dropout)} == {training}


def test_it_has_no_parameters_and_no_keys() -> None:
    tree = model()
    keys = list(tree.state_dict())
    assert list(Dropout.on(tree, "attention", "output").parameters()) == []
    assert list(tree.state_dict()) == keys


def test_injected_twice_is_an_error_that_changes_nothing() -> None:
    tree = model()
    group = Dropout.on(tree, "attention", "output")
    before = facts(tree)
    with pytest.raises(EditError, match="injected already"):
        group.inject()
    assert facts(tree) == before
