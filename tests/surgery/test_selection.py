from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from suture import layers as sl
from suture.layers.recording import EditError
from suture.surgery.adapter import Adapter
from suture.surgery.criteria import Criteria
from suture.surgery.selection import Selection, select
from suture.surgery.survey import Match, SelectionError


class Scaled(sl.Chain, Adapter[nn.Module]):
    """Its target's result, doubled."""

    def __init__(self, target: nn.Module) -> None:
        with self.setup_adapter(target):
            super().__init__(target, sl.Lambda(double))


def double(x: Tensor) -> Tensor:
    return x * 2


def block() -> sl.Chain:
    return sl.Chain(
        attention=sl.Residual(norm=sl.RMSNorm(4), query=sl.Linear(4, 4), output=sl.Linear(4, 4)),
        feedforward=sl.Residual(norm=sl.RMSNorm(4), up=sl.Linear(4, 8), down=sl.Linear(8, 4)),
    )


@pytest.fixture
def model() -> sl.Chain:
    return sl.Chain(blocks=sl.Stack(*(block() for _ in range(6))), norm=sl.RMSNorm(4))


def keys(model: nn.Module) -> list[str]:
    return list(model.state_dict())


def linears(count: int) -> list[nn.Linear]:
    return [nn.Linear(4, 4) for _ in range(count)]


# Criteria


def test_a_pattern_selects_in_the_order_of_the_calls(model: sl.Chain) -> None:
    assert select(model, "blocks.{1,0}.attention.{query,norm}").paths == (
        "blocks.0.attention.norm",
        "blocks.0.attention.query",
        "blocks.1.attention.norm",
        "blocks.1.attention.query",
    )


def test_a_type_selects_its_subclasses(model: sl.Chain) -> None:
    assert len(select(model, nn.Linear)) == 24
    assert select(model, nn.Linear).paths == select(model, sl.Linear).paths


def test_a_predicate_sees_path_layer_and_parent(model: sl.Chain) -> None:
    def wide_second_of_the_first_block(match: Match) -> bool:
        is_wide = getattr(match.layer, "out_features", 0) == 8
        return match.path.startswith("blocks.0") and is_wide and match.parent[1] is match.layer

    assert select(model, wide_second_of_the_first_block).paths == ("blocks.0.feedforward.up",)


def test_several_criteria_are_united_without_repeats(model: sl.Chain) -> None:
    assert select(model, "blocks.0", "0", "norm").paths == select(model, "blocks.0", "norm").paths
    assert len(select(model, "norm", "blocks.0")) == 14


def test_an_iterator_of_criteria_is_read_once_and_kept(model: sl.Chain) -> None:
    names = (name for name in ("query", "norm"))
    selection = select(model, names)
    assert len(selection) == 19
    inside = select(model, "blocks.*").select(name for name in ("query", "up"))
    assert len(inside) == 12


def test_the_root_is_never_selected(model: sl.Chain) -> None:
    assert model not in select(model, "**").layers
    assert model not in select(model, sl.Chain).layers


def test_a_leaf_at_two_places_is_selected_at_each() -> None:
    leaf = sl.Linear(2, 2)
    model = sl.Chain(first=sl.Chain(leaf), second=sl.Chain(leaf))
    assert select(model, "Linear").layers == (leaf, leaf)
    assert [match.parent for match in select(model, "Linear")] == list(model)


def test_a_pattern_sees_the_home_of_a_wrapped_layer(model: sl.Chain) -> None:
    before = select(model, "query").paths
    select(model, "query").wrap(lambda query: sl.Chain(query, sl.Identity()))
    assert select(model, "query").paths == before


# Nothing selected


@pytest.mark.parametrize(
    ("criterion", "said"),
    [
        ("atention", "'attention'"),
        ("blocks.*.atention", "'blocks.*.attention'"),
        ("block.3.attention", "'blocks.*.attention'"),
        ("attention.up", "'attention.output'"),
        ("blocks.*.**.quary", "'blocks.*.attention.query'"),
        ("blocks.40", "go from 'blocks.0' to 'blocks.5'"),
        ("blocks.6-9.attention", "go from 'blocks.0.attention' to 'blocks.5.attention'"),
        (".attention", "'attention' selects layers"),
        ("Linear", "give the type itself"),
        ("zzz", "The names are: 'blocks', '0', "),
        (nn.LayerNorm, "'RMSNorm'"),
        (nn.Conv2d, "The classes are: 'Stack', 'Chain', 'Residual', 'RMSNorm', 'Linear'"),
        (type("Linear", (nn.Module,), {}), "another class Linear"),
    ],
)
def test_a_criterion_that_selects_nothing_says_what_is_near(model: sl.Chain, criterion: Criteria, said: str) -> None:
    name = criterion if isinstance(criterion, str) else getattr(criterion, "__name__", "")
    with pytest.raises(SelectionError, match=re.escape(said)) as caught:
        select(model, "norm", criterion)
    assert name in str(caught.value)


def test_a_predicate_that_selects_nothing_is_named(model: sl.Chain) -> None:
    def is_blue(match: Match) -> bool:
        return False

    with pytest.raises(SelectionError, match="The predicate is_blue selects none of the 56 layers in Chain"):
        select(model, is_blue)


@pytest.mark.parametrize("criteria", [(), ([],)])
def test_no_criterion_is_an_error(model: sl.Chain, criteria: tuple[Criteria, ...]) -> None:
    with pytest.raises(ValueError, match="No criterion"):
        select(model, *criteria)


def test_a_layer_is_no_criterion(model: sl.Chain) -> None:
    with pytest.raises(TypeError, match=re.escape("match.layer is layer")):
        select(model, model.layer("blocks.0"))
    with pytest.raises(TypeError, match="Received: 3"):
        select(model, 3)  # pyright: ignore[reportArgumentType]


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(TypeError, match=r"any torch\.nn\.Module"):
        select([nn.ReLU()], "0")  # pyright: ignore[reportArgumentType]


def test_a_negated_name_selects_the_others(model: sl.Chain) -> None:
    assert select(model, "blocks.!{1-4}.!attention").paths == ("blocks.0.feedforward", "blocks.5.feedforward")
    assert select(model, ".blocks.0.*.!norm").paths == (
        "blocks.0.attention.query",
        "blocks.0.attention.output",
        "blocks.0.feedforward.up",
        "blocks.0.feedforward.down",
    )


# Looking, narrowing, joining


def test_a_selection_is_a_list_of_matches(model: sl.Chain) -> None:
    selection = select(model, "blocks.#")
    assert len(selection) == 6
    assert [match.path for match in selection] == list(selection.paths)
    assert selection[-1].layer is model["blocks.5"]
    assert selection[-3:].paths == ("blocks.3", "blocks.4", "blocks.5")
    assert selection.first(2).paths == ("blocks.0", "blocks.1")
    assert selection.last(1).paths == ("blocks.5",)
    assert len(selection.last(0)) == 0
    assert len(selection.first(99)) == 6
    with pytest.raises(ValueError, match="negative"):
        selection.first(-1)


def test_counts_are_guarded(model: sl.Chain) -> None:
    assert select(model, ".norm").one().layer is model["norm"]
    assert len(select(model, "query").exactly(6)) == 6
    with pytest.raises(SelectionError, match="Expected to select 12 of the layers in Chain"):
        select(model, "query").exactly(12)
    with pytest.raises(SelectionError, match="Selected 6"):
        select(model, "query").one()


def test_where_narrows_and_may_leave_nothing(model: sl.Chain) -> None:
    assert len(select(model, sl.Linear).where(lambda m: m.layer.out_features == 8)) == 6
    nothing = select(model, sl.Linear).where(lambda m: m.layer.out_features == 9)
    assert nothing.paths == ()
    for act in (nothing.remove, nothing.freeze, lambda: nothing.replace(sl.Identity()), lambda: nothing.select("norm")):
        with pytest.raises(SelectionError, match="empty"):
            act()


def test_select_looks_inside_each_match(model: sl.Chain) -> None:
    inside = select(model, "attention").select("norm")
    assert inside.paths == tuple(f"blocks.{n}.attention.norm" for n in range(6))
    assert len(select(model, "blocks.*").select(".attention.norm", "up")) == 12
    with pytest.raises(SelectionError, match="'up' selects none of the 18 layers in the 6 selected places"):
        select(model, "attention").select("up")


def test_select_finds_what_is_wired_inside_and_owned_beside(model: sl.Chain) -> None:
    select(model, "query").wrap(lambda query: sl.Sum(query, sl.Linear(4, 4)))
    assert select(model, "query+Sum").select(".query").paths == select(model, "query").paths


def test_innermost_and_outermost_go_by_wiring(model: sl.Chain) -> None:
    nested = select(model, "blocks", "blocks.0", "blocks.0.**.norm", "blocks.1", ".norm")
    assert nested.outermost().paths == ("blocks", "norm")
    assert nested.innermost().paths == ("blocks.0.attention.norm", "blocks.0.feedforward.norm", "blocks.1", "norm")
    select(model, ".norm").wrap(lambda norm: sl.Chain(norm))
    assert select(model, ".norm", "norm+Chain").innermost().paths == ("norm",)


@given(st.sets(st.integers(0, 54)), st.sets(st.integers(0, 54)))
def test_joining_is_that_of_sets(some: set[int], others: set[int]) -> None:
    model = sl.Chain(blocks=sl.Stack(*(block() for _ in range(6))), norm=sl.RMSNorm(4))
    paths = select(model, "**").paths

    def pick(numbers: set[int]) -> Selection:
        chosen = {paths[number] for number in numbers}
        return select(model, "**").where(lambda match: match.path in chosen)

    assert (pick(some) | pick(others)).paths == pick(some | others).paths
    assert (pick(some) - pick(others)).paths == pick(some - others).paths
    layers = pick(some).outermost().layers
    assert [layer for layer in pick(some).layers if not any(inside(layer, other) for other in layers)] == list(layers)
    assert pick(some).innermost().paths == tuple(
        match.path for match in pick(some) if not any(inside(other, match.layer) for other in pick(some).layers)
    )


def inside(layer: nn.Module, other: nn.Module) -> bool:
    return layer is not other and any(layer is module for module in other.modules())


def test_selections_of_two_models_are_not_joined(model: sl.Chain) -> None:
    with pytest.raises(ValueError, match="one model"):
        _ = select(model, "norm") | select(block(), "norm")


# Acting


def test_freeze_takes_all_that_the_layer_calls(model: sl.Chain) -> None:
    select(model, "query").wrap(lambda query: sl.Sum(query, sl.Linear(4, 4)))
    select(model, "query+Sum").freeze()
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {name for name, _ in model.named_parameters() if "query" in name}
    assert len(select(model, "blocks").unfreeze()) == 1
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_freezing_what_has_no_parameters_is_an_error() -> None:
    with pytest.raises(SelectionError, match="None of the 1 selected layers has parameters: 'ReLU'"):
        select(sl.Chain(sl.ReLU()), "ReLU").freeze()


def test_apply_calls_once_for_each_layer() -> None:
    leaf = sl.Linear(2, 2)
    seen: list[nn.Module] = []
    select(sl.Chain(leaf, sl.Chain(leaf)), nn.Linear).apply(seen.append)
    assert seen == [leaf]


# Editing


def test_replace_by_a_function(model: sl.Chain) -> None:
    before, names = str(model), keys(model)
    edit = select(model, sl.RMSNorm).replace(lambda norm: sl.Identity())
    assert len(edit.layers) == 13
    assert not model.layers(sl.RMSNorm)
    assert model["blocks.3.attention.norm"] in edit.layers
    edit.undo()
    assert (str(model), keys(model)) == (before, names)


def test_replace_by_a_layer_needs_one_place(model: sl.Chain) -> None:
    select(model, ".norm").replace(sl.Identity())
    assert isinstance(model["norm"], sl.Identity)
    with pytest.raises(ValueError, match="one place; 6 are selected"):
        select(model, "query").replace(sl.Linear(4, 4))


def test_a_composite_given_for_one_place_is_put_in_and_not_called(model: sl.Chain) -> None:
    new = sl.Chain(sl.RMSNorm(4))
    select(model, ".norm").replace(new)
    assert model["norm"] is new


def test_wrap_keeps_the_keys_of_what_is_inside(model: sl.Chain) -> None:
    names = keys(model)
    edit = select(model, "query", "blocks.0").wrap(lambda layer: sl.Sum(layer, sl.Lambda(double)))
    assert len(edit.layers) == 6
    assert keys(model) == names
    edit.undo()
    assert not model.layers(sl.Sum)


@pytest.mark.parametrize("made", [sl.Identity, sl.Chain, lambda: nn.Sequential(nn.ReLU())])
def test_wrap_refuses_what_does_not_call_the_layer(model: sl.Chain, made: type[sl.Chain]) -> None:
    with pytest.raises(ValueError, match=r"'blocks.0.attention.query'. Received: (Identity|Chain|Sequential)"):
        select(model, "query").wrap(lambda query: made())
    assert not model.layers(sl.Identity)


def test_replace_refuses_the_layer_that_is_there(model: sl.Chain) -> None:
    with pytest.raises(ValueError, match=re.escape(".where()")):
        select(model, "query").replace(lambda query: query)


def test_a_function_that_returns_no_layer_is_named_with_the_place(model: sl.Chain) -> None:
    nothing: Any = None
    with pytest.raises(TypeError, match=r"insert_after\(\) must return a layer, for 'blocks.0'. Received: None"):
        select(model, "blocks.0").insert_after(lambda block: nothing)
    with pytest.raises(TypeError, match="takes a layer or a function"):
        select(model, "blocks.0").insert_after(nothing)


def test_insert_before_and_after(model: sl.Chain) -> None:
    edit = select(model, "blocks.*")[-3:].insert_after(lambda block: sl.Dropout(0.1))
    assert [type(layer).__name__ for layer in model.layer("blocks", sl.Stack)] == [
        *["Chain"] * 3,
        *["Chain", "Dropout"] * 3,
    ]
    select(model, "blocks.0").insert_before(sl.Identity())
    assert type(model.layer("blocks", sl.Stack)[0]) is sl.Identity
    edit.undo()
    assert not model.layers(sl.Dropout)


def test_insert_beside_the_one_of_two_equal_children_that_was_selected() -> None:
    leaf = sl.ReLU()
    model = sl.Chain(first=leaf, second=leaf)
    select(model, "second").insert_before(sl.Identity())
    assert [type(layer).__name__ for layer in model] == ["ReLU", "Identity", "ReLU"]


def test_remove(model: sl.Chain) -> None:
    edit = select(model, "blocks.{2,5}").remove()
    assert [name for name, _ in model.layer("blocks", sl.Stack).named_children()] == ["0", "1", "3", "4"]
    assert len(edit.layers) == 2
    edit.undo()
    assert [name for name, _ in model.layer("blocks", sl.Stack).named_children()] == ["0", "1", "2", "3", "4", "5"]


def test_adapt_injects_at_each_place(model: sl.Chain) -> None:
    x = torch.randn(3, 4)
    before = model(x)
    adapters: list[Scaled] = []

    def adapter(layer: nn.Module) -> Scaled:
        adapters.append(Scaled(layer))
        return adapters[-1]

    edit = select(model, "query").adapt(adapter)
    assert edit.layers == tuple(adapters)
    assert all(each.is_injected for each in adapters)
    assert not torch.equal(model(x), before)
    for each in adapters:
        each.eject()
    assert torch.equal(model(x), before)


def test_adapt_undone_by_its_edit(model: sl.Chain) -> None:
    before = str(model)
    edit = select(model, "attention").adapt(Scaled)
    assert len(model.layers(Scaled)) == 6
    edit.undo()
    assert str(model) == before


def test_adapt_wants_an_adapter(model: sl.Chain) -> None:
    with pytest.raises(TypeError, match="must return an Adapter, for 'norm'"):
        select(model, ".norm").adapt(lambda norm: sl.Chain(norm))  # pyright: ignore[reportArgumentType]


def test_of_nested_matches_an_edit_takes_the_outermost() -> None:
    def nested() -> sl.Chain:
        return sl.Chain(outer=sl.Chain(inner=sl.Chain(sl.ReLU())))

    outermost, innermost = nested(), nested()
    select(outermost, sl.Chain).wrap(lambda chain: sl.Residual(chain))
    assert next(place.path for place in outermost.places()) == "outer+Residual"
    assert len(outermost.layers(sl.Residual)) == 1
    select(innermost, sl.Chain).innermost().wrap(lambda chain: sl.Residual(chain))
    assert [place.path for place in innermost.places()][1] == "outer.inner+Residual"


def test_an_edit_holds_whole_or_not_at_all(model: sl.Chain) -> None:
    before, names = str(model), keys(model)
    made = linears(3)

    def out_of_layers(layer: nn.Module) -> nn.Module:
        return sl.Chain(layer, made.pop())

    with pytest.raises(IndexError):
        select(model, "query").wrap(out_of_layers)  # pyright: ignore[reportArgumentType]
    assert (str(model), keys(model)) == (before, names)


def test_a_composite_cannot_be_put_at_two_places(model: sl.Chain) -> None:
    before = str(model)
    shared = sl.Chain(sl.Identity())
    with pytest.raises(EditError):
        select(model, "query").replace(lambda query: shared)
    assert str(model) == before


def test_outside_a_selection_a_composite_with_a_parent_is_still_refused(model: sl.Chain) -> None:
    select(model, "blocks.0").wrap(lambda block: sl.Chain(block))
    with pytest.raises(ValueError, match="has a place already"):
        sl.Chain(model.layer("blocks.1"))


# Following edits


def test_a_selection_follows_layers_that_were_wrapped(model: sl.Chain) -> None:
    queries, blocks = select(model, "query"), select(model, "blocks.*")
    queries.wrap(lambda query: sl.Sum(query, sl.Linear(4, 4)))
    queries.insert_after(lambda query: sl.Linear(4, 4))
    assert [len(layer) for layer in model.layers(sl.Sum)] == [3] * 6
    assert len(blocks.select(sl.Sum)) == 6
    assert (blocks | select(model, "query+Sum")).outermost().paths == blocks.paths


def test_a_selection_names_what_was_taken_out(model: sl.Chain) -> None:
    selection = select(model, "blocks.*")
    edit = select(model, "blocks.3").remove()
    with pytest.raises(SelectionError, match=r"'blocks.3' \(Chain\) was taken out of Chain"):
        selection.remove()
    edit.undo()
    selection.remove()
    assert len(model.layer("blocks", sl.Stack)) == 0


def test_a_place_of_a_shared_leaf_is_not_mistaken_for_another() -> None:
    model = sl.Chain(query=sl.ReLU())
    select(model, "query").wrap(lambda query: sl.Sum(sl.Chain(query), sl.Chain(query)))
    both = select(model, "query").exactly(2)
    both[:1].remove()
    with pytest.raises(SelectionError, match="taken out"):
        both.remove()
    both[1:].replace(lambda relu: sl.Identity())
    assert [[type(layer).__name__ for layer in each] for each in model.layers(sl.Chain)] == [[], ["Identity"]]


# Printing


def test_a_selection_prints_the_tree_with_the_matches_marked(model: sl.Chain) -> None:
    assert str(select(model, "blocks.{1,2}.attention.query")).splitlines() == [
        "  Chain         748 float32 parameters",
        "  ├─ blocks: Stack                 744",
        "  │  ├─ … 0",
        "  │  ├─ 1..2 (x2): Chain       2 x 124",
        "  │  │  ├─ attention: Residual      44",
        "  │  │  │  ├─ … norm",
        "▸ │  │  │  ├─ query: Linear(4 → 4)  20",
        "  │  │  │  └─ … output",
        "  │  │  └─ … feedforward",
        "  │  └─ … 3..5",
        "  └─ … norm",
        "2 of 56 layers selected",
    ]


@pytest.mark.parametrize("pattern", ["blocks[3]", "query|key", "(query)"])
def test_the_syntax_of_other_languages_is_answered_with_ours(pattern: str) -> None:
    with pytest.raises(SelectionError, match=r"written like blocks\.3"):
        select(sl.Chain(query=sl.Linear(2, 2)), pattern)


# The rest of a model, and moving


def test_the_inverse_is_what_has_nothing_selected_in_or_around_it(model: sl.Chain) -> None:
    selected = select(model, "blocks.0-4", "5.attention.query")
    assert selected.invert().paths == (
        "blocks.5.attention.norm",
        "blocks.5.attention.output",
        "blocks.5.feedforward",
        "norm",
    )
    assert (~~selected).paths == selected.paths


def test_the_inverse_of_everything_is_empty(model: sl.Chain) -> None:
    assert len(~select(model, "**")) == 0
    assert (~select(model, "**") | select(model, ".norm")).paths == ("norm",)


def test_a_selection_and_its_inverse_have_every_parameter_between_them(model: sl.Chain) -> None:
    select(model, "attention").freeze()
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    select(model, "**").unfreeze()
    (~select(model, "attention")).freeze()
    assert {name for name, parameter in model.named_parameters() if parameter.requires_grad} == frozen


def test_selected_layers_are_cast(model: sl.Chain) -> None:
    select(model, "query").wrap(lambda query: sl.Sum(query, sl.Linear(4, 4)))
    selected = select(model, "blocks.0-2.attention.*Sum").to(torch.float64)
    assert len(selected) == 3
    double_keys = {name for name, parameter in model.named_parameters() if parameter.dtype == torch.float64}
    assert {name.split(".")[1] for name in double_keys} == {"0", "1", "2"}
    # What a wrapper calls goes along, though it is owned beside it.
    assert "blocks.0.attention.query.weight" in double_keys
    assert "blocks.0.attention.norm.weight" not in double_keys


# What is said where nothing was selected


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("blocks.query", "deeper inside: 'blocks.**.query' selects"),
        ("blocks.{0,1}.down", "deeper inside: 'blocks.{0,1}.**.down' selects"),
        ("blocks.*.{query,down}", "deeper inside: 'blocks.**.{query,down}' selects"),
        ("q_proj", "What other libraries call 'q_proj' is 'query' here"),
        ("blocks.3.mlp", "What other libraries call 'mlp' is 'feedforward' here"),
    ],
)
def test_a_likely_mistake_is_told_with_what_was_meant(model: sl.Chain, pattern: str, hint: str) -> None:
    with pytest.raises(SelectionError, match=re.escape(hint)):
        select(model, pattern)
