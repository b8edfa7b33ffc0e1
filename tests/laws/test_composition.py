"""What a tree is follows from how it is written: what it computes, where its layers are, what its parts are."""

# Hypothesis draws values that have no static type.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from suture import layers as sl
from tests.laws.edits import a_composite, a_place, plain_edit
from tests.laws.snapshots import X, appearance, bits, check, differences, outcome, snapshot
from tests.laws.trees import Mix, Shift, part, tree

EXAMPLES = settings(max_examples=60, deadline=None)


@given(data=st.data())
@EXAMPLES
def test_a_tree_computes_what_its_composites_say(data: st.DataObject) -> None:
    check(tree(data.draw))


@given(data=st.data())
@EXAMPLES
def test_iteration_positions_and_walk_follow_the_wiring(data: st.DataObject) -> None:
    model = tree(data.draw)
    composite = a_composite(model, data.draw)
    layers = list(composite)
    assert len(composite) == len(layers)
    assert [composite[position] for position in range(len(layers))] == layers
    assert [composite[position - len(layers)] for position in range(len(layers))] == layers
    assert model.walk() == [(place.layer, place.parent) for place in model.places()]
    assert all(place.layer in list(place.parent) for place in model.places())


@given(data=st.data())
@EXAMPLES
def test_a_part_computes_what_it_computed_in_its_place(data: st.DataObject) -> None:
    model = tree(data.draw)
    chosen = a_composite(model, data.draw)
    stops = data.draw(st.integers(-3, 3)), data.draw(st.integers(-3, 3))
    part_of_it = chosen[slice(*stops)]
    check(part_of_it)
    assert [type(layer) for layer in part_of_it] == [type(layer) for layer in list(chosen)[slice(*stops)]]
    for mine, other in zip(part_of_it, list(chosen)[slice(*stops)], strict=True):
        assert isinstance(mine, sl.Composite) or mine is other


@given(data=st.data(), way=st.sampled_from(("deep", "pickled", "structural", "loaded")))
@EXAMPLES
def test_a_copy_is_and_does_the_same(data: st.DataObject, way: str) -> None:
    model = tree(data.draw)
    before = snapshot(model)
    if way == "structural":
        copied = model.structural_copy()
    elif way == "pickled":
        copied = pickle.loads(pickle.dumps(model))
    else:
        copied = copy.deepcopy(model)
    if way == "loaded":
        for parameter in copied.parameters():
            nn.init.normal_(parameter)
        copied.load_state_dict(model.state_dict(), strict=True)
    check(copied)
    assert appearance(copied) == appearance(model)
    plain_edit(copied, data.draw)
    assert not differences(before, snapshot(model))


@given(data=st.data())
@EXAMPLES
def test_state_can_be_handed_in_from_outside(data: st.DataObject) -> None:
    model = tree(data.draw)
    plain_edit(model, data.draw)
    other = copy.deepcopy(model)
    for parameter in other.parameters():
        nn.init.normal_(parameter)
    functional = sl.Lambda(lambda x: torch.func.functional_call(model, other.state_dict(), (x,), tie_weights=False))
    assert result_of(functional) == result_of(other)


def result_of(module: nn.Module) -> object:
    torch.manual_seed(0)
    try:
        with torch.no_grad():
            return bits(module(X))
    except Exception as error:
        return type(error).__name__


@given(data=st.data())
@EXAMPLES
def test_a_tree_without_edits_is_freed_at_once(data: st.DataObject) -> None:
    model = tree(data.draw)
    outcome(model)
    # Of the leaves, Hypothesis keeps those that it drew twice.
    references = [weakref.ref(module) for module in model.modules() if isinstance(module, sl.Composite)]
    gc.disable()
    try:
        del model
        assert [reference() for reference in references if reference() is not None] == []
    finally:
        gc.enable()


@given(data=st.data())
@EXAMPLES
def test_what_is_put_in_takes_dtype_and_mode_of_its_place(data: st.DataObject) -> None:
    model = sl.Chain(tree(data.draw), Mix()).train(data.draw(st.booleans()))
    model.to(torch.float64)
    place = a_place(model, data.draw)
    there = {id(module) for module in model.modules()}
    new = sl.Chain(part(data.draw, 2), Shift(), Mix())
    place.parent.insert(data.draw(st.integers(-2, 2)), new)
    for module in new.modules():
        assert module.training == model.training
        assert id(module) not in there
    assert {tensor.dtype for tensor in (*new.parameters(), *new.buffers())} == {torch.float64}
