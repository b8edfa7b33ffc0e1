from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn

from suture import Edit, EditError, SelectionError, select
from suture import layers as sl
from suture.adapters import LoRA
from tests.adapters.trained import facts, train

X = torch.randn(3, 4)


def model() -> sl.Stack:
    torch.manual_seed(0)
    return sl.Stack(*(sl.Chain(query=sl.Linear(4, 4), act=sl.Tanh(), value=sl.Linear(4, 4)) for _ in range(2)))


def test_it_adds_the_scaled_product_of_two_matrices_beside_its_target() -> None:
    linear = sl.Linear(4, 5)
    tree = sl.Chain(query=linear)
    lora = LoRA(linear, rank=2, alpha=3).inject(tree)
    train([lora])
    lora.scale = 1.5
    down, up = (lora.layer(f"lora.{name}", sl.Linear).weight for name in ("down", "up"))
    torch.testing.assert_close(tree(X), linear(X) + 1.5 * X @ down.T @ up.T)


def test_it_is_zero_at_the_start_and_both_matrices_can_be_trained() -> None:
    tree = model()
    bare = tree(X)
    group = LoRA.on(tree, "query", rank=2)
    assert torch.equal(tree(X), bare)
    tree(X).sum().backward()
    assert all(adapter.layer("lora.up", nn.Linear).weight.grad is not None for adapter in group)
    assert all(adapter.layer("lora.down", nn.Linear).weight.abs().sum() > 0 for adapter in group)


def test_keys_of_the_base_stay_and_those_of_the_branch_are_beside_them() -> None:
    tree = model()
    keys = list(tree.state_dict())
    LoRA.on(tree, "0.query", rank=2)
    added = [f"0.query+LoRA.lora.{name}" for name in ("down.weight", "up.weight", "scale.factor")]
    assert sorted(tree.state_dict()) == sorted([*keys, *added])


def test_the_scale_is_alpha_through_rank_and_one_without_alpha() -> None:
    linear = sl.Linear(4, 4)
    assert LoRA(linear, rank=2).scale == 1
    assert LoRA(linear, rank=4, alpha=2).scale == 0.5


def test_a_group_is_one_thing() -> None:
    tree = model()
    before, bare = facts(tree), tree(X)
    with LoRA.on(tree, "query", "value", rank=2, name="style") as group:
        train(group)
        assert len(group) == 4
        assert group.names == ("style",)
        assert group.layers == select(tree, "query", "value").layers
        group.scale = 0.25
        assert [adapter.scale for adapter in group] == [0.25] * 4
        assert len(list(group.parameters())) == 8
        adapted = tree(X)
        assert not torch.allclose(adapted, bare)
    assert facts(tree) == before
    with group:
        assert torch.equal(tree(X), adapted)
    assert torch.equal(tree(X), bare)


def test_its_scale_can_be_set_while_it_is_merged() -> None:
    tree = model()
    bare = tree(X)
    group = LoRA.on(tree, "query", rank=2)
    train(group)
    group.scale = 2
    adapted = tree(X)
    group.scale = 0.5
    group.merge()
    group.scale = 2
    torch.testing.assert_close(tree(X), adapted)
    assert group.is_merged
    group.scale = 0
    assert torch.equal(tree(X), bare)


def test_changing_the_scale_compiles_nothing_anew() -> None:
    torch.compiler.reset()
    tree = model()
    group = LoRA.on(tree, "query", rank=2)
    train(group)
    graphs: list[Any] = []

    def count(graph: Any, inputs: list[Tensor]) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(tree, backend=count, fullgraph=True)
    for scale in (0.0, 0.5, 1.0, 2.0, -1.0):
        group.scale = scale
        torch.testing.assert_close(compiled(X), tree(X))
    assert len(graphs) == 1


def test_several_by_name_on_one_layer_add_up_and_go_out_in_every_order() -> None:
    for order in itertools.permutations(range(3)):
        tree = model()
        before, bare = facts(tree), tree(X)
        groups = [LoRA.on(tree, "0.query", rank=2, name=name) for name in ("one", "two", "three")]
        for group in groups:
            train(group)
        assert tree(X).isfinite().all()
        for number in order:
            groups[number].eject()
        assert facts(tree) == before
        assert torch.equal(tree(X), bare)


def test_a_second_of_the_same_name_on_one_layer_is_refused() -> None:
    tree = model()
    LoRA.on(tree, "0.query")
    before = facts(tree)
    with pytest.raises(EditError, match="LoRA named 'lora' on this layer already"):
        LoRA.on(tree, "query")
    assert facts(tree) == before


def test_layers_of_other_loras_are_left_out() -> None:
    tree = model()
    LoRA.on(tree, sl.Linear, name="one")
    assert len(LoRA.on(tree, sl.Linear, name="two")) == 4
    with pytest.raises(SelectionError, match="layers of LoRAs"):
        LoRA.on(tree, "down")


def test_dropout_is_on_its_input_and_takes_the_mode_of_its_place() -> None:
    tree = model().eval()
    group = LoRA.on(tree, "query", rank=2, dropout=0.5)
    train(group)
    assert next(iter(group[0].branch)) is group[0].branch["dropout"]
    assert torch.equal(tree(X), tree(X))
    tree.train()
    assert not torch.equal(tree(X), tree(X))


@pytest.mark.parametrize("training", [True, False])
def test_it_takes_the_dtype_and_the_mode_of_its_place(training: bool) -> None:
    tree = model().to(torch.bfloat16).train(training)
    group = LoRA.on(tree, "query", rank=2)
    assert {parameter.dtype for parameter in group.parameters()} == {torch.bfloat16}
    assert {module.training for module in tree.modules()} == {training}
    assert tree(X.bfloat16()).dtype == torch.bfloat16


def test_it_computes_in_another_dtype_on_request_and_keeps_it_when_it_goes_in_again() -> None:
    tree = model().to(torch.bfloat16)
    group = LoRA.on(tree, "query", rank=2, dtype=torch.float32)
    train(group)
    values = [parameter.clone() for parameter in group.parameters()]
    assert {parameter.dtype for parameter in group.parameters()} == {torch.float32}
    adapted = tree(X.bfloat16())
    assert adapted.dtype == torch.bfloat16
    group.eject()
    group.inject()
    assert all(torch.equal(one, other) for one, other in zip(values, group.parameters(), strict=True))
    group.merge()
    torch.testing.assert_close(tree(X.bfloat16()), adapted, atol=0.1, rtol=0.05)


@pytest.mark.parametrize("meanwhile", ["in", "merged", "out"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_tree_that_is_converted_converts_what_computes_in_another_dtype(dtype: torch.dtype, meanwhile: str) -> None:
    tree = model().to(torch.bfloat16)
    group = LoRA.on(tree, "query", rank=2, dtype=torch.float32)
    train(group)
    if meanwhile == "merged":
        group.merge()
    elif meanwhile == "out":
        group.eject()
    tree.to(dtype)
    if meanwhile == "merged":
        group.unmerge()
    elif meanwhile == "out":
        group.inject()
    computes_in = {parameter.dtype for parameter in group.parameters()}
    assert computes_in == {torch.float32 if meanwhile == "out" else dtype}
    assert tree(X.to(dtype)).dtype == dtype
    assert {lora.arguments["dtype"] for lora in group} == {str(each).removeprefix("torch.") for each in computes_in}


def test_a_leaf_at_two_places_of_one_composite_is_adapted_at_both() -> None:
    linear = sl.Linear(4, 4)
    tree = sl.Chain(linear, sl.Tanh(), linear)
    before = facts(tree)
    group = LoRA.on(tree, sl.Linear, rank=2)
    train(group)
    assert [type(layer) for layer in tree] == [LoRA, sl.Tanh, LoRA]
    adapted = tree(X)
    group.merge()
    torch.testing.assert_close(tree(X), adapted)
    group.eject()
    assert facts(tree) == before


def test_a_leaf_at_two_places_without_saying_which_is_asked_for() -> None:
    linear = sl.Linear(4, 4)
    tree = sl.Chain(linear, sl.Tanh(), linear)
    before = facts(tree)
    with pytest.raises(ValueError, match="stands at 2 places"):
        LoRA(linear).inject(tree)
    assert facts(tree) == before


def test_a_block_that_is_used_twice_is_adapted_at_both_places() -> None:
    tree = model()
    edit = tree.append(tree.layer("1", sl.Chain).structural_copy())
    bare = tree(X)
    group = LoRA.on(tree, "query", rank=2)
    assert [adapter.target_path for adapter in group] == ["0.query", "1.query", "2.query"]
    group.eject()
    assert torch.equal(tree(X), bare)
    edit.undo()


def test_a_deep_copy_is_independent_and_eject_in_it_leaves_the_original_alone() -> None:
    tree = model()
    group = LoRA.on(tree, "query", rank=2)
    train(group)
    bare_keys = list(model().state_dict())
    before, adapted = facts(tree), tree(X)
    copied = copy.deepcopy(tree)
    assert torch.equal(copied(X), adapted)
    for lora in copied.layers(LoRA):
        lora.merge()
        lora.eject()
    assert list(copied.state_dict()) == bare_keys
    assert torch.equal(copied(X), model()(X))
    assert facts(tree) == before
    assert torch.equal(tree(X), adapted)


def test_a_structural_copy_is_independent_and_shares_the_weights() -> None:
    tree = model()
    group = LoRA.on(tree, "query", rank=2)
    train(group)
    before, adapted = facts(tree), tree(X)
    copied = tree.structural_copy()
    assert torch.equal(copied(X), adapted)
    for lora in copied.layers(LoRA):
        lora.eject()
    assert torch.equal(copied(X), model()(X))
    assert facts(tree) == before
    group.eject()
    assert torch.equal(tree(X), model()(X))


def test_the_copy_of_a_merged_tree_stays_merged() -> None:
    tree = model()
    group = LoRA.on(tree, "query", rank=2)
    train(group)
    group.merge()
    merged = tree(X)
    copied = copy.deepcopy(tree)
    group.eject()
    assert torch.equal(copied(X), merged)
    assert torch.equal(tree(X), model()(X))


CHANGES: dict[str, Callable[[sl.Stack], Edit]] = {
    "into the branch": lambda tree: select(tree, "up").insert_before(sl.Tanh()),
    "out of the branch": lambda tree: select(tree, "scale").remove(),
    "beside the target": lambda tree: select(tree, "0.query").insert_after(sl.Identity()),
    "beside the branch": lambda tree: select(tree, "lora").insert_after(sl.Identity()),
    "around the branch": lambda tree: select(tree, "lora").wrap(lambda branch: sl.Chain(branch, sl.Tanh())),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_was_edited_cannot_be_merged_and_can_be_taken_out(change: Callable[[sl.Stack], Edit]) -> None:
    tree = model()
    before, bare = repr(tree), tree(X)
    group = LoRA.on(tree, "0.query", rank=2)
    train(group)
    edit = change(tree)
    edited = tree(X)
    with pytest.raises(EditError, match="it was edited since"):
        group.merge()
    assert torch.equal(tree(X), edited)
    edit.undo()
    group.merge()
    group.eject()
    assert repr(tree) == before
    assert torch.equal(tree(X), bare)


@pytest.mark.parametrize("where", ["reentrant", "not reentrant"])
def test_gradients_under_activation_checkpointing_equal_those_without(where: str) -> None:
    tree = model()
    select(tree, "**").freeze()
    group = LoRA.on(tree, "query", rank=2)
    train(group)
    x = X.clone().requires_grad_()
    tree(x).sum().backward()
    wanted = [parameter.grad for parameter in group.parameters()]
    for parameter in group.parameters():
        parameter.grad = None
    result: Tensor = cast("Any", torch.utils.checkpoint).checkpoint(tree, x, use_reentrant=where == "reentrant")
    result.sum().backward()
    for parameter, grad in zip(group.parameters(), wanted, strict=True):
        assert grad is not None
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, grad)


def test_gradients_under_the_checkpoint_composite_equal_those_without() -> None:
    tree = model()
    select(tree, "**").freeze()
    group = LoRA.on(tree, "query", rank=2)
    train(group)
    tree(X).sum().backward()
    wanted = [parameter.grad for parameter in group.parameters()]
    for parameter in group.parameters():
        parameter.grad = None
    select(tree, "#").wrap(lambda block: sl.Checkpoint(block))
    tree(X).sum().backward()
    for parameter, grad in zip(group.parameters(), wanted, strict=True):
        assert grad is not None
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, grad)


@pytest.mark.parametrize("rank", [0, -1, 1.5, True])
def test_a_rank_that_makes_no_sense_is_refused(rank: Any) -> None:
    with pytest.raises(ValueError, match="rank of a LoRA is a whole number"):
        LoRA(sl.Linear(2, 2), rank=rank)


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.float8_e4m3fn, torch.complex64, "float32"])
def test_a_dtype_that_nothing_can_be_trained_in_is_refused(dtype: Any) -> None:
    with pytest.raises(ValueError, match="A LoRA computes in"):
        LoRA(sl.Linear(2, 2), dtype=dtype)


def test_a_dropout_that_is_no_probability_is_refused() -> None:
    for dropout in (math.nan, -0.1, 1.1):
        with pytest.raises(ValueError, match="probability"):
            LoRA(sl.Linear(2, 2), dropout=dropout)


@pytest.mark.parametrize("number", [math.nan, math.inf, "1", True])
def test_a_scale_that_is_no_finite_number_is_refused(number: Any) -> None:
    lora = LoRA(sl.Linear(2, 2))
    with pytest.raises(ValueError, match="finite number"):
        lora.scale = number
    with pytest.raises(ValueError, match="finite number"):
        LoRA(sl.Linear(2, 2), alpha=number)


def test_a_name_that_would_hide_something_is_refused_with_the_place() -> None:
    with pytest.raises(ValueError, match="cannot be named 'scale'") as caught:
        LoRA.on(model(), "0.query", name="scale")
    assert caught.value.__notes__ == ["This was for the Linear at '0.query'."]
