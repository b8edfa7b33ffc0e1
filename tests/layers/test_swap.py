from __future__ import annotations

import copy
import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from suture import layers as sl
from suture.layers.edit import Edit, editing
from suture.layers.recording import EditError
from suture.surgery.selection import select
from suture.surgery.survey import Match


def linear() -> sl.Linear:
    return sl.Linear(2, 2)


def keys(model: nn.Module) -> list[str]:
    return list(model.state_dict())


def weights(model: nn.Module) -> list[str]:
    return [key for key in keys(model) if key.endswith("weight")]


def wrap(parent: sl.Composite, layer: nn.Module, make: Callable[[nn.Module], sl.Composite]) -> Edit:
    def is_meant(match: Match) -> bool:
        return match.layer is layer and match.parent is parent

    return select(parent, is_meant).wrap(make)


# Names and homes


def test_what_is_kept_stays_at_home_and_the_new_layer_is_owned_beside_it() -> None:
    model = sl.Chain(query=linear(), output=linear())
    model.replace(model["query"], sl.Sum(model["query"], linear()))
    assert weights(model) == ["query.weight", "output.weight", "query+Sum.Linear_2.weight"]
    assert [place.path for place in model.places()] == ["query+Sum", "query", "query+Sum.Linear_2", "output"]


def test_what_replaces_a_layer_takes_its_name_and_place() -> None:
    model = sl.Chain(query=linear(), output=linear())
    edit = model.replace(model["query"], sl.Chain(linear()))
    assert weights(model) == ["query.Linear.weight", "output.weight"]
    edit.undo()
    assert weights(model) == ["query.weight", "output.weight"]


def test_a_layer_that_returns_has_its_old_position_among_the_keys() -> None:
    model = sl.Chain(a=linear(), b=linear(), c=linear())
    removals = [model.remove(model["a"]), model.remove(model["b"])]
    for removal in removals:
        removal.undo()
    assert weights(model) == ["a.weight", "b.weight", "c.weight"]


def test_of_a_composite_that_is_taken_apart_only_the_home_of_what_is_called_stays() -> None:
    model = sl.Chain(heads=sl.Parallel(query=linear(), key=linear(), value=linear()), output=linear())
    query = model["heads.query"]
    edit = model.replace(model["heads"], query)
    assert weights(model) == ["heads.query.weight", "output.weight"]
    assert list(model) == [query, model["output"]]
    edit.undo()
    assert weights(model) == ["heads.query.weight", "heads.key.weight", "heads.value.weight", "output.weight"]


def test_a_home_leaves_with_the_last_layer_that_was_called_from_it_and_returns_with_it() -> None:
    model = sl.Chain(heads=sl.Parallel(query=linear(), key=linear()), output=linear())
    model.replace(model["heads"], model["heads.query"])
    removal = model.remove(model["heads.query"])
    assert weights(model) == ["output.weight"]
    assert "heads" not in dict(model.named_children())
    removal.undo()
    assert weights(model) == ["heads.query.weight", "output.weight"]


def test_a_wrapper_that_is_taken_out_takes_along_what_is_owned_outside_of_it() -> None:
    model = sl.Chain(query=linear(), output=linear())
    model.replace(model["query"], sl.Sum(model["query"], linear()))
    removal = model.pop(0)
    assert weights(model) == ["output.weight"]
    removal.undo()
    assert weights(model) == ["query.weight", "output.weight", "query+Sum.Linear_2.weight"]


def test_a_wrapper_moved_within_its_tree_leaves_what_it_holds_at_home() -> None:
    model = sl.Chain(blocks=sl.Chain(query=linear()), rest=sl.Chain())
    blocks, rest = model.layer("blocks", sl.Chain), model.layer("rest", sl.Chain)
    query = blocks["query"]
    blocks.replace(query, sl.Sum(query, linear()))
    rest.append(blocks.pop(0).layers[0])
    assert model["blocks.query"] is query
    assert [place.path for place in model.places()] == [
        "blocks",
        "rest",
        "rest.Sum",
        "blocks.query",
        "rest.Sum.Linear_2",
    ]


def test_a_wrapper_whose_layer_is_owned_in_another_tree_goes_there_as_a_copy() -> None:
    model, other = sl.Chain(query=linear()), sl.Chain(first=linear())
    query = model["query"]
    model.replace(query, sl.Sum(query, linear()))
    removal = model.pop(0)
    refused(lambda: other.append(removal.layers[0]), other, "owned in another tree, as 'query' of a Chain")
    other.append(copy.deepcopy(removal.layers[0]))
    assert weights(other) == ["first.weight", "Sum.Linear_2.weight", "Sum.query.weight"]
    assert keys(model) == []
    removal.undo()
    assert weights(model) == ["query.weight", "query+Sum.Linear_2.weight"]


def test_a_layer_put_back_by_hand_has_its_name_again() -> None:
    model = sl.Stack(linear(), linear(), linear())
    last = model[2]
    removal = model.pop(2)
    insertion = model.insert(0, last)
    assert model[0] is last
    assert weights(model) == ["0.weight", "1.weight", "2.weight"]
    with pytest.raises(EditError, match="stands at '2' now"):
        removal.undo()
    insertion.undo()
    removal.undo()
    assert list(model)[2] is last


# Orders of undoing


def test_wrappers_of_one_layer_are_undone_in_every_order() -> None:
    for order in itertools.permutations(range(3)):
        model = sl.Chain(sl.Chain(query=linear()))
        parent, query = model.layer("Chain", sl.Chain), model["Chain.query"]
        before = keys(model)
        edits = [wrap(parent, query, lambda layer: sl.Sum(layer, linear()))]
        edits.append(wrap(parent, parent[0], lambda layer: sl.Residual(linear(), layer)))
        edits.append(wrap(parent, parent[0], lambda layer: sl.Chain(layer, sl.ReLU())))
        for number in order:
            edits[number].undo()
        assert keys(model) == before
        assert list(parent) == [query]


def test_a_change_goes_along_with_the_layer_that_it_made() -> None:
    model = sl.Chain(sl.Parallel(linear(), linear()))
    parallel = model.layer("Parallel", sl.Parallel)
    old = parallel[0]
    inner = parallel.replace(old, sl.Identity())
    outer = model.replace(parallel, parallel[0])
    around = wrap(model, model[0], lambda layer: sl.Chain(layer))
    inner.undo()
    assert list(model.layers(nn.Linear)) == [old]
    outer.undo()
    around.undo()
    assert list(model) == [parallel]
    assert parallel[0] is old


def test_what_was_hoisted_and_wrapped_returns_to_where_it_was() -> None:
    model = sl.Chain(sl.Parallel(linear(), linear()))
    parallel, kept = model.layer("Parallel", sl.Parallel), model["Parallel.Linear"]
    hoisting = model.replace(parallel, kept)
    wrapping = wrap(model, kept, lambda layer: sl.Chain(linear(), layer))
    hoisting.undo()
    assert [type(layer).__name__ for layer, _ in model.walk()] == ["Chain", "Linear", "Parallel", "Linear", "Linear"]
    wrapping.undo()
    assert list(model) == [parallel]
    assert parallel[0] is kept


def test_a_leaf_called_twice_is_undone_as_one() -> None:
    model = sl.Chain(x=linear())
    leaf = model["x"]
    twice = wrap(model, leaf, lambda layer: sl.Sum(layer, layer))
    around = model.layer("x+Sum", sl.Sum)
    assert weights(model) == ["x.weight"]
    one = around.pop(1)
    assert weights(model) == ["x.weight"]
    with pytest.raises(EditError, match="different layers"):
        twice.undo()
    one.undo()
    other = around[0:1]
    assert len(other) == 1
    twice.undo()
    assert list(model) == [leaf]


def test_what_came_before_a_leaf_was_called_twice_waits_for_it() -> None:
    model = sl.Chain(x=linear())
    old = model["x"]
    first = model.replace(old, linear())
    twice = wrap(model, model[0], lambda layer: sl.Sum(layer, layer))
    with pytest.raises(EditError, match="at several places"):
        first.undo()
    twice.undo()
    first.undo()
    assert list(model) == [old]


def test_one_of_two_calls_of_a_leaf_can_be_edited_by_itself() -> None:
    model = sl.Chain(x=linear())
    leaf = model["x"]
    wrap(model, leaf, lambda layer: sl.Sum(layer, layer))
    around = model.layer("x+Sum", sl.Sum)
    with editing(model) as edit:
        around[0] = sl.Chain(leaf)
        around[0] = leaf
    assert list(around) == [leaf, leaf]
    edit.undo()
    assert list(around) == [leaf, leaf]
    around[1] = sl.Identity()
    assert [place.path for place in model.places()] == ["x+Sum", "x", "x+Identity"]


# What is refused


def refused(undo: Callable[[], object], model: nn.Module, match: str) -> None:
    before = repr(model), keys(model)
    with pytest.raises(EditError, match=match):
        undo()
    assert (repr(model), keys(model)) == before


def test_an_undo_is_refused_where_another_edit_stands() -> None:
    model = sl.Chain(a=linear())
    first = model.replace(model[0], linear())
    second = model.replace(model[0], sl.Identity())
    refused(first.undo, model, r"the replacement of 'a' by 'a' \(Identity\) stands in its place")
    third = model.pop(0)
    refused(second.undo, model, "the removal of 'a'")
    for edit in (third, second, first):
        edit.undo()
    assert keys(model) == ["a.weight", "a.bias"]


def test_an_undo_is_refused_that_would_take_another_edit_along() -> None:
    model = sl.Chain(linear())
    insertion = model.append(sl.Chain(linear()))
    inner = model.layer("Chain", sl.Chain).append(sl.ReLU())
    refused(insertion.undo, model, "the insertion of 'Chain.ReLU'")
    inner.undo()
    insertion.undo()
    assert len(model) == 1


def test_an_undo_is_refused_where_a_layer_was_taken_out_and_is_only_a_home() -> None:
    model = sl.Chain(sl.Chain(sl.Sum(linear())))
    block = model.layer("Chain", sl.Chain)
    insertion = block.append(sl.Chain(linear()))
    outer = select(model, "Chain").where(lambda match: match.layer is block).replace(lambda old: sl.Sum(old[1][0]))
    refused(insertion.undo, model, r"Undo the replacement of 'Chain' by 'Chain\+Sum' \(Sum\) first")
    refused(lambda: block.append(sl.ReLU()), model, r"Undo the replacement of 'Chain' by 'Chain\+Sum' \(Sum\) first")
    outer.undo()
    insertion.undo()
    assert keys(model) == ["Chain.Sum.Linear.weight", "Chain.Sum.Linear.bias"]


def test_a_wrapper_is_not_undone_where_a_later_edit_took_out_what_it_holds() -> None:
    model = sl.Chain(sl.Chain(x=linear()))
    block = model.layer("Chain", sl.Chain)
    inner = wrap(model, block, lambda layer: sl.Sum(layer))
    wrap(model, model[0], lambda layer: sl.Residual(layer, linear()))
    rebuilt = select(model, "Chain+Sum+Residual").replace(lambda old: sl.Product(block))
    refused(inner.undo, model, r"taken out, but for what is still called elsewhere. Undo the replacement of")
    rebuilt.undo()
    inner.undo()
    assert block.parent is model[0]
    assert [place.path for place in model.places()] == [
        "Chain+Sum+Residual",
        "Chain",
        "Chain.x",
        "Chain+Sum+Residual.Linear",
    ]


def test_a_wrapper_is_not_undone_while_a_part_of_it_that_holds_the_layer_stands_elsewhere() -> None:
    model = sl.Chain(here=sl.Chain(x=linear()), there=sl.Chain())
    here, there = model.layer("here", sl.Chain), model.layer("there", sl.Chain)
    x = here["x"]
    wrapping = wrap(here, x, lambda layer: sl.Parallel(sl.Residual(layer)))
    # Nobody can undo the removal any more.
    moved = there.append(model.layer("here.x+Parallel", sl.Parallel).pop(0).layers[0])
    assert model["here.x"] is x
    refused(wrapping.undo, model, "the Residual in it was put elsewhere, at 'there.Residual'")
    inner = model.layer("there.Residual", sl.Residual).replace(x, sl.Identity())
    refused(wrapping.undo, model, "put elsewhere")
    inner.undo()
    moved.undo()
    wrapping.undo()
    assert [place.path for place in model.places()] == ["here", "here.x", "there"]


def test_what_was_replaced_in_a_layer_that_was_moved_returns_to_it_there() -> None:
    model = sl.Chain(here=sl.Chain(block=sl.Chain(x=linear())), there=sl.Chain())
    block, there = model.layer("here.block", sl.Chain), model.layer("there", sl.Chain)
    x = block["x"]
    inner = block.replace(x, sl.Identity())
    with editing(model) as moved:
        model.layer("here", sl.Chain).remove(block)
        there.append(block)
    inner.undo()
    assert model["there.Chain.x"] is x
    moved.undo()
    assert model["here.block.x"] is x
    assert weights(model) == ["here.block.x.weight"]


def test_an_undo_is_refused_while_something_it_put_in_is_called_elsewhere() -> None:
    model = sl.Chain(here=sl.Chain(), there=sl.Chain())
    here, there = model.layer("here", sl.Chain), model.layer("there", sl.Chain)
    insertion = here.append(sl.Chain(q=linear()))
    inserted = model.layer("here.Chain", sl.Chain)
    wrap(inserted, inserted[0], lambda layer: sl.Sum(layer, sl.Identity()))
    # Nobody can undo the removal any more.
    moved = there.append(inserted.pop(0).layers[0])
    refused(insertion.undo, model, "called outside of it")
    moved.undo()
    insertion.undo()
    assert keys(model) == []


def test_an_insertion_is_not_undone_from_under_a_wrapper() -> None:
    model = sl.Chain(linear())
    insertion = model.append(sl.ReLU())
    wrapping = wrap(model, model[1], lambda layer: sl.Chain(layer))
    refused(insertion.undo, model, "a layer was put around it")
    wrapping.undo()
    insertion.undo()
    assert len(model) == 1


def test_what_was_put_in_elsewhere_does_not_return() -> None:
    model = sl.Chain(sl.Chain(linear()), sl.Chain())
    block = model.layer("Chain", sl.Chain)
    removal = model.remove(block)
    insertion = model.layer("Chain_2", sl.Chain).append(block)
    refused(removal.undo, model, "stands at 'Chain_2.Chain' now")
    insertion.undo()
    removal.undo()
    assert model[0] is block


def test_a_composite_has_one_place() -> None:
    model = sl.Chain(sl.Chain(linear()), sl.Chain())
    block, other = model.layer("Chain", sl.Chain), model.layer("Chain_2", sl.Chain)
    refused(lambda: other.append(block), model, "wired at 'Chain' already")
    refused(lambda: model.append(block), model, "wired at 'Chain' already")
    refused(lambda: select(model, "Chain_2").replace(lambda old: sl.Sum(block, old)), model, "wired at 'Chain' already")
    refused(lambda: select(model, "Chain_2").wrap(lambda old: sl.Sum(old, old)), model, "one parent")


def test_a_composite_does_not_contain_itself() -> None:
    model = sl.Chain(sl.Chain(linear()))
    inner = model.layer("Chain", sl.Chain)
    for layer in (model, inner):
        refused(lambda layer=layer: inner.append(layer), model, "itself|one parent")
    around = sl.Chain(model)
    refused(lambda: inner.append(around), model, "itself")


def test_a_leaf_inside_a_kept_composite_can_be_called_beside_it() -> None:
    model = sl.Chain(sl.Chain(inner=sl.Chain(x=linear()), other=linear()))
    old = model.layer("Chain", sl.Chain)
    inner, leaf = model["Chain.inner"], model["Chain.inner.x"]
    edit = select(model, "Chain").where(lambda match: match.layer is old).replace(lambda _: sl.Sum(inner, leaf))
    assert model["Chain.inner.x"] is leaf
    changed = model.layer("Chain.inner", sl.Chain).replace(leaf, sl.Identity())
    edit.undo()
    assert [type(layer) for layer in model.layer("Chain.inner", sl.Chain)] == [sl.Identity]
    changed.undo()
    assert model["Chain.inner.x"] is leaf


# Copies and tensors


def test_a_copied_part_cannot_be_taken_out_of_a_tree_that_was_not_copied() -> None:
    model = sl.Chain(x=linear())
    edit = model.replace(model["x"], sl.Sum(model["x"], linear()))
    copied = copy.deepcopy((model[0], edit))[1]
    with pytest.raises(EditError, match="without the tree around it"):
        copied.undo()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_what_waits_with_an_edit_is_cast_and_set_to_a_mode_with_its_tree(dtype: torch.dtype) -> None:
    model = sl.Chain(block=sl.Chain(sl.Linear(2, 2), sl.Dropout()), norm=sl.LayerNorm(2)).eval()
    edits = [model.remove(model["norm"]), model.replace(model["block"], sl.Identity())]
    model.to(dtype).train()
    for edit in reversed(edits):
        edit.undo()
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert all(module.training for module in model.modules())


def test_a_tree_inside_what_was_taken_out_of_it_is_cast_and_set_to_a_mode() -> None:
    model = sl.Chain(outer=sl.Chain(inner=sl.Chain(linear())))
    outer = model.layer("outer", sl.Chain)
    inner = outer.layer("inner", sl.Chain)
    edits = [outer.remove(inner), model.append(inner), model.remove(outer), inner.append(outer)]
    model.to(torch.float64).eval()
    for edit in reversed(edits):
        edit.undo()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}
    assert not any(module.training for module in model.modules())


def test_a_layer_of_its_own_dtype_keeps_it_while_it_waits() -> None:
    model = sl.Chain(norm=sl.LayerNorm(2), linear=linear().to(torch.bfloat16))
    edit = model.remove(model["norm"])
    edit.undo()
    assert [parameter.dtype for parameter in model.parameters()] == [torch.float32] * 2 + [torch.bfloat16] * 2


def test_what_was_hoisted_computes_the_same() -> None:
    model = sl.Chain(sl.Sum(linear(), linear()), linear())
    kept = model["Sum.Linear"]
    model.replace(model["Sum"], kept)
    x: Tensor = torch.ones(1, 2)
    assert torch.equal(model(x), model["Linear"](kept(x)))
