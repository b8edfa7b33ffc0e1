from __future__ import annotations

import gc
import operator
import random
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from suture import EditError
from suture import layers as sl
from suture.adapters import Dropout, LoRA, LoRAs
from tests.adapters.trained import facts, train

X = torch.randn(3, 4)


def model(dtype: torch.dtype = torch.float32) -> sl.Chain:
    torch.manual_seed(0)
    return sl.Chain(
        projections=sl.Parallel(query=sl.Linear(4, 4), key=sl.Linear(4, 4)), sum=sl.Lambda(operator.add)
    ).to(dtype)


def named(tree: sl.Chain, *names: str) -> dict[str, LoRAs]:
    groups = {name: LoRA.on(tree, "query", rank=2, name=name) for name in names}
    for group in groups.values():
        train(group)
    return groups


def close(tree: sl.Chain, wanted: Tensor) -> bool:
    return torch.allclose(tree(X), wanted, atol=1e-5)


def test_merging_leaves_a_layer_of_the_same_class_and_keys_and_nothing_else() -> None:
    tree = model()
    keys = list(tree.state_dict())
    group = named(tree, "one")["one"]
    adapted = tree(X)
    group.merge()
    assert [place.path for place in tree.places()] == [place.path for place in model().places()]
    assert list(tree.state_dict()) == keys
    assert type(tree["projections.query"]) is sl.Linear
    assert close(tree, adapted)
    assert not torch.equal(tree(X), model()(X))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_merged_and_unmerged_a_hundred_times_it_is_bit_equal_to_the_start(dtype: torch.dtype) -> None:
    tree = model(dtype)
    x = X.to(dtype)
    query, bare, before = tree["projections.query"], tree(x), facts(tree)
    group = named(tree, "one")["one"]
    adapted = tree(x)
    for _ in range(100):
        group.merge()
        group.unmerge()
    assert torch.equal(tree(x), adapted)
    assert tree["projections.query"] is query
    group.eject()
    assert facts(tree) == before
    assert torch.equal(tree(x), bare)


LEADS_TO = {
    "in": {"eject": "out", "merge": "merged"},
    "out": {"inject": "in"},
    "merged": {"unmerge": "in", "eject": "out"},
}
"""What can be done with an adapter in each state, and the state that it is in then."""

Steps = list[tuple[str, str]]


def possible(states: dict[str, str]) -> Steps:
    return [(name, operation) for name in states for operation in LEADS_TO[states[name]]]


def orders(states: dict[str, str], length: int) -> Iterator[Steps]:
    """Every order of so many steps."""
    if length == 0:
        yield []
        return
    for name, operation in possible(states):
        for rest in orders(states | {name: LEADS_TO[states[name]][operation]}, length - 1):
            yield [(name, operation), *rest]


def run(names: str, steps: Steps) -> None:
    """Takes the steps, and ejects what is left; at each, what is injected says what comes out."""
    tree = model()
    before, bare = facts(tree), tree(X)
    groups = named(tree, *names)
    outputs: dict[frozenset[str], Tensor] = {frozenset(): bare}
    for name, operation in [*steps, *((name, "eject") for name in names)]:
        if operation == "eject" and not groups[name].is_injected:
            continue
        getattr(groups[name], operation)()
        injected = frozenset(name for name in names if groups[name].is_injected)
        assert close(tree, outputs.setdefault(injected, tree(X)))
        in_the_wiring = {name for name in names if groups[name][0] in tree.layers(LoRA)}
        assert in_the_wiring == {name for name in injected if not groups[name].is_merged}
    assert facts(tree) == before
    assert torch.equal(tree(X), bare)


def test_two_end_bit_equal_to_the_bare_model_after_every_order_of_steps() -> None:
    found = list(orders({"a": "in", "b": "in"}, 4))
    assert len(found) > 100
    for steps in found:
        run("ab", steps)


@pytest.mark.parametrize("seed", range(20))
def test_three_end_bit_equal_to_the_bare_model_after_random_steps(seed: int) -> None:
    chance = random.Random(seed)
    names = chance.sample("abc", 3)
    states: dict[str, str] = dict.fromkeys(names, "in")
    steps: Steps = []
    for _ in range(30):
        name, operation = chance.choice(possible(states))
        states[name] = LEADS_TO[states[name]][operation]
        steps.append((name, operation))
    run("".join(names), steps)


def test_one_that_went_in_before_another_was_merged_and_was_merged_after_it_comes_back_last() -> None:
    steps = "b.eject a.merge b.inject c.merge b.merge a.unmerge"
    run("abc", [(name, operation) for name, operation in (step.split(".") for step in steps.split())])


def test_unmerging_the_first_of_several_leaves_the_others_merged() -> None:
    tree = model()
    groups = named(tree, "one", "two", "three")
    groups["two"].eject()
    groups["three"].eject()
    of_one = tree(X)
    groups["two"].inject()
    groups["three"].inject()
    adapted = tree(X)
    for group in groups.values():
        group.merge()
    groups["two"].eject()
    groups["three"].eject()
    assert groups["one"].is_merged
    assert close(tree, of_one)
    groups["three"].inject().merge()
    groups["one"].unmerge()
    assert groups["three"].is_merged
    groups["two"].inject()
    assert close(tree, adapted)


def test_one_can_go_around_a_layer_into_which_another_was_merged() -> None:
    tree = model()
    before = facts(tree)
    first, second = LoRA(tree["projections.query"], name="one"), LoRA(tree["projections.query"], name="two")
    projections = tree.layer("projections", sl.Parallel)
    train([first.inject(projections)])
    first.merge()
    train([second.inject(projections)])
    adapted = tree(X)
    first.unmerge()
    assert close(tree, adapted)
    second.eject()
    first.eject()
    assert facts(tree) == before


def test_what_stands_between_it_and_its_target_is_named_and_nothing_changes() -> None:
    tree = model()
    group = named(tree, "one")["one"]
    between = Dropout.on(tree, "query")
    before = facts(tree)
    with pytest.raises(EditError, match=r"the Dropout at 'projections.query\+Dropout' stands where"):
        group.merge()
    assert facts(tree) == before
    between.eject()
    group.merge()


def test_what_goes_around_the_merged_layer_stays_when_it_is_unmerged() -> None:
    tree = model()
    group = named(tree, "one")["one"]
    group.merge()
    around = Dropout.on(tree, "query", p=0.5)
    group.unmerge()
    assert [type(layer) for layer in tree.layers((Dropout, LoRA))] == [Dropout, LoRA]
    around.eject()
    group.eject()
    assert facts(tree)[0] == [(place.path, id(place.layer)) for place in tree.places()]


def test_merged_twice_or_unmerged_twice_or_merged_while_out_is_an_error_that_changes_nothing() -> None:
    tree = model()
    group = named(tree, "one")["one"]
    with pytest.raises(EditError, match="is not merged"):
        group.unmerge()
    group.merge()
    before = facts(tree)
    with pytest.raises(EditError, match="is merged already"):
        group.merge()
    assert facts(tree) == before
    group.eject()
    with pytest.raises(EditError, match="is not injected"):
        group.merge()


def test_a_group_of_which_one_cannot_be_merged_is_not_merged_at_all() -> None:
    tree = model()
    group = LoRA.on(tree, "query", "key", rank=2)
    Dropout.on(tree, "key")
    before = facts(tree)
    with pytest.raises(EditError, match="stands where"):
        group.merge()
    assert facts(tree) == before
    assert not group[0].is_merged


def test_another_layer_of_the_same_shapes_is_taken_as_target_and_one_of_others_refused() -> None:
    tree = model()
    group = named(tree, "one")["one"]
    projections = tree.layer("projections", sl.Parallel)
    group.eject()
    edit = projections.replace(projections["query"], sl.Linear(4, 4))
    group.inject()
    assert group[0].target is edit.layers[0]
    group.eject()
    edit.undo()
    wrong = projections.replace(projections["query"], sl.Linear(4, 5))
    before = facts(tree)
    with pytest.raises(EditError, match="cannot go in"):
        group.inject()
    assert facts(tree) == before
    wrong.undo()
    group.inject()


def test_the_target_is_freed_when_nobody_can_unmerge_any_more() -> None:
    tree = model()
    weight = weakref.ref(tree.layer("projections.query", nn.Linear).weight)
    named(tree, "one")["one"].merge()
    gc.collect()
    assert weight() is None
