from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import suture
from suture import layers as sl
from suture.adapters import CrossAttention, Dropout, LoRA
from suture.adapters.control_vector import Steered
from suture.surgery.adapter import Adapter
from suture.surgery.recipe import Recipe, RecipeError, recipe
from suture.surgery.selection import select


def bare() -> sl.Chain:
    return sl.Chain(
        query=sl.Linear(4, 4),
        inner=sl.Residual(norm=sl.LayerNorm(4), up=sl.Linear(4, 4), act=sl.ReLU()),
        blocks=sl.Stack(*(sl.Residual(sl.LayerNorm(4), mlp=sl.FeedForward(4, 8)) for _ in range(2))),
    )


X = torch.linspace(-1, 1, 12).reshape(3, 4)


def again(model: nn.Module, folder: Path, fresh: nn.Module | None = None) -> nn.Module:
    """The model once more: from its recipe in a file, its weights in files, and a fresh bare one."""
    found = recipe(model)
    found.save(folder / "recipe.json")
    suture.save(model, folder / "weights")
    fresh = bare() if fresh is None else fresh
    Recipe.load(folder / "recipe.json").apply(fresh)
    suture.load(fresh, folder / "weights")
    assert list(fresh.state_dict()) == list(model.state_dict())
    assert repr(fresh) == repr(model)
    assert recipe(fresh) == found
    return fresh


def test_edits_of_every_kind_are_made_again(tmp_path: Path) -> None:
    model = bare()
    select(model, "inner.up").wrap(lambda linear: sl.Sum(linear, low=sl.Chain(sl.Linear(4, 2), sl.Linear(2, 4))))
    select(model, "act").replace(sl.GELU(approximate="tanh"))
    select(model, "norm").remove()
    select(model, "blocks.1").insert_before(sl.Dropout(0.1))
    model.insert(0, sl.Concatenate(sl.Identity(), dim=-1), "first")
    select(model, "query").wrap(lambda linear: sl.Residual(linear))
    fresh = again(model.eval(), tmp_path).eval()
    assert torch.equal(fresh(X), model(X))


def test_a_repeated_block_shares_its_weights_again(tmp_path: Path) -> None:
    model = bare()
    select(model, "blocks.0").insert_after(lambda block: block.structural_copy())
    told = recipe(model).edits[0]
    assert told["layer"] == {"copy": "blocks.0"}
    fresh = again(model, tmp_path)
    assert torch.equal(fresh(X), model(X))
    assert fresh.get_parameter("blocks.2.mlp.up.weight") is fresh.get_parameter("blocks.0.mlp.up.weight")


def test_a_leaf_called_at_another_place_is_the_same_leaf_again(tmp_path: Path) -> None:
    model = bare()
    select(model, "inner").insert_after(model["query"])
    fresh = again(model, tmp_path)
    assert torch.equal(fresh(X), model(X))
    assert fresh.get_submodule("Linear") is fresh.get_submodule("query")


def test_a_leaf_at_two_places_of_what_is_put_in_is_one_again(tmp_path: Path) -> None:
    model, shared, other = bare(), sl.Linear(4, 4), sl.Linear(4, 4)
    select(model, "inner").insert_after(sl.Chain(shared, sl.Sum(other, shared), other))
    fresh = again(model, tmp_path)
    assert torch.equal(fresh(X), model(X))
    assert fresh.get_submodule("Chain.Linear") is fresh.get_submodule("Chain.Sum.Linear_2")


def test_adapters_are_injected_again(tmp_path: Path) -> None:
    model = bare()
    groups = [
        LoRA.on(model, "query", "inner.up", rank=2, alpha=3, name="style"),
        Dropout.on(model, "blocks.*", p=0.2),
        LoRA.on(model, "query", rank=1, name="tone"),
    ]
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    groups[0][0].eject()
    fresh = again(model.eval(), tmp_path).eval()
    assert torch.equal(fresh(X), model(X))
    assert [type(layer) for layer in fresh.modules() if isinstance(layer, Adapter)] == [
        type(layer) for layer in model.modules() if isinstance(layer, Adapter)
    ]
    assert recipe(model).edits[0]["layer"]["arguments"]["rank"] == 2


def test_an_adapter_that_reads_a_context_is_injected_again(tmp_path: Path) -> None:
    model = bare()
    CrossAttention.on(model, "blocks.#", num_heads=2, sequence_dim=3)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    fresh = again(model, tmp_path)
    sequence = torch.randn(1, 5, 3)
    assert torch.equal(fresh(X[None], sequence=sequence), model(X[None], sequence=sequence))


def test_edits_of_plain_modules_are_made_again(tmp_path: Path) -> None:
    def plain() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU()), bare())

    model = plain()
    select(model, "1.0").wrap(lambda layer: sl.Sum(layer, sl.Linear(4, 4)))
    LoRA.on(model, ".0", "query", rank=2)
    select(model, ".1").insert_after(sl.Tanh())
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    fresh = again(model, tmp_path, plain())
    assert torch.equal(fresh(X), model(X))


def test_edits_of_a_tree_in_a_plain_module_come_before_and_after_those_of_its_place(tmp_path: Path) -> None:
    model = nn.Sequential(bare()).eval()
    select(model, "act").remove()
    select(model, "0").insert_after(sl.LayerNorm(4))
    select(model, "query").wrap(lambda linear: sl.Sum(linear, sl.Linear(4, 4)))
    fresh = again(model, tmp_path, nn.Sequential(bare()).eval())
    assert torch.equal(fresh(X), model(X))


def test_edits_of_a_place_in_a_plain_module_go_on_when_its_layer_is_out(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).eval()
    select(model, "0").insert_before(lambda layer: sl.Linear(4, 4))
    select(model, ".0").remove()
    select(model, "0+Linear").insert_after(sl.ReLU())
    fresh = again(model, tmp_path, nn.Sequential(nn.Linear(4, 4), nn.Tanh()).eval())
    assert torch.equal(fresh(X), model(X))


def test_an_edit_that_nobody_can_undo_any_more_is_still_told_and_holds_nothing_alive() -> None:
    model = bare()
    removed = weakref.ref(model["query"])
    model.replace(model["query"], sl.Identity())
    select(model, "query").replace(sl.Tanh())
    gc.collect()
    assert removed() is None
    assert len(recipe(model)) == 2


def test_an_undone_edit_is_not_told_whenever_it_is_undone() -> None:
    model = bare()
    edits = [select(model, "query").wrap(lambda layer: sl.Sum(layer, sl.Linear(4, 4))) for _ in range(3)]
    edits[0].undo()
    edits[2].undo()
    assert len(recipe(model)) == 1
    fresh = bare()
    recipe(model).apply(fresh)
    assert repr(fresh) == repr(model)
    edits[1].undo()
    assert recipe(model).edits == ()


def test_edits_around_one_another_are_undone_in_any_order(tmp_path: Path) -> None:
    model = bare()
    edits = [select(model, "query" + "+Sum" * count).wrap(lambda layer: sl.Sum(layer)) for count in range(3)]
    edits[0].undo()
    edits[1].undo()
    assert recipe(model).edits[0]["at"] == "query"
    again(model, tmp_path)


def with_a_leaf_in_a_chain() -> sl.Stack:
    leaf = sl.Linear(4, 4)
    return sl.Stack(leaf, inner=sl.Chain(only=leaf))


def test_a_layer_goes_in_behind_where_one_stood_whose_owner_is_out(tmp_path: Path) -> None:
    model = with_a_leaf_in_a_chain()
    select(model, ".inner").replace(lambda inner: inner["only"])
    select(model, "inner.only").remove()
    model.append(sl.Tanh())
    assert recipe(model).edits[-1]["after"] == {"slot": "inner.only"}
    again(model, tmp_path, with_a_leaf_in_a_chain())


def test_what_is_named_beside_a_layer_that_went_back_into_its_owner_is_refused() -> None:
    model = with_a_leaf_in_a_chain()
    hoisted = select(model, ".inner").replace(lambda inner: inner["only"])
    around = select(model, "inner.only").wrap(lambda layer: sl.Sum(layer))
    hoisted.undo()
    with pytest.raises(RecipeError, match=r"replace at 'inner.only\+Sum' .* beside 'inner.only', .*Undo that edit"):
        recipe(model)
    around.undo()
    assert recipe(model).edits == ()


def test_edits_in_a_mounted_tree_outlive_the_mount_and_those_before_it(tmp_path: Path) -> None:
    model = nn.Sequential(bare()).eval()

    def told() -> int:
        again(model, tmp_path, nn.Sequential(bare()).eval())
        return len(recipe(model))

    before = select(model, "query").wrap(lambda layer: sl.Residual(layer))
    mounting = select(model, "0").insert_after(sl.Identity())
    during = select(model, "query+Residual").wrap(lambda layer: sl.Sum(layer))
    assert told() == 3
    before.undo()
    assert told() == 2
    mounting.undo()
    assert told() == 1
    after = select(model, "query+Residual+Sum").wrap(lambda layer: sl.Parallel(layer))
    during.undo()
    assert told() == 1
    after.undo()
    assert recipe(model).edits == ()


def test_a_mount_that_goes_in_vain_keeps_its_edits() -> None:
    model = nn.Sequential(bare())
    mounting = select(model, "0").insert_after(sl.Identity())
    during = select(model, "query").wrap(lambda layer: sl.Residual(layer))
    before = recipe(model)
    with pytest.raises(RuntimeError), suture.editing(model):  # noqa: PT012 (the block is what is tested)
        mounting.undo()
        raise RuntimeError
    assert recipe(model) == before
    during.undo()
    mounting.undo()
    assert recipe(model).edits == ()


def test_edits_rolled_back_are_not_told() -> None:
    model = bare()
    edit = select(model, "query").wrap(lambda layer: sl.Sum(layer, sl.Linear(4, 4)))
    before = recipe(model)
    with pytest.raises(RuntimeError), suture.editing(model):  # noqa: PT012 (the block is what is tested)
        select(model, "query+Sum").wrap(lambda layer: sl.Residual(layer))
        edit.undo()
        raise RuntimeError
    assert recipe(model) == before


@pytest.mark.parametrize("after", [{}, 3, {"slot": 3}, {"slot": "query", "number": "x"}])
def test_a_place_that_is_none_is_named(after: Any) -> None:
    model = bare()
    before = repr(model)
    told: dict[str, Any] = {
        "do": "insert",
        "at": "",
        "after": after,
        "as": None,
        "layer": {"class": "ReLU", "arguments": {}},
    }
    with pytest.raises(RecipeError, match="Edit 1 of the recipe, insert ReLU"):
        Recipe([told]).apply(model)
    assert repr(model) == before


def test_apply_can_be_undone() -> None:
    model, fresh = bare(), bare()
    LoRA.on(model, "query", rank=2)
    select(model, "blocks.0").remove()
    edit = recipe(model).apply(fresh)
    edit.undo()
    assert repr(fresh) == repr(bare())
    assert recipe(fresh).edits == ()


def test_a_model_that_was_built_with_some_of_the_edits_gets_the_others() -> None:
    def built() -> sl.Chain:
        model = bare()
        model.append(sl.Linear(4, 2))
        return model

    model, fresh = built(), built()
    select(model, "query").remove()
    found = recipe(model)
    found.apply(fresh)
    assert repr(fresh) == repr(model)
    with pytest.raises(RecipeError, match="has the 2 edits of this recipe already"):
        found.apply(fresh)


# Classes


@suture.register("tests.Scaled")
class Scaled(nn.Module):
    def __init__(
        self, factor: float, bounds: tuple[int | None, ...] = (), *, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.factor = nn.Buffer(torch.tensor(factor, dtype=dtype))
        self.bounds = bounds

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


@suture.register("tests.Around")
class Around(sl.Chain):
    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__(before=sl.Linear(width, width), inside=layer, after=sl.Linear(width, width))


class NotRegistered(Scaled):
    pass


def test_registered_classes_are_made_again_from_their_arguments(tmp_path: Path) -> None:
    model = bare()
    select(model, "query").insert_after(Scaled(2.0, (1, None), dtype=torch.float32))
    select(model, "inner.up").wrap(lambda layer: Around(layer, width=4))
    around = Around(sl.Tanh(), 4)
    around.append(sl.SiLU())
    select(model, "act").insert_before(around)
    fresh = again(model, tmp_path)
    assert torch.equal(fresh(X), model(X))
    assert fresh.get_submodule("Scaled").bounds == (1, None)


def function(x: Tensor) -> Tensor:
    return x


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sl.Lambda(function), r"The insert at 'inner\..*' cannot be told: it calls the function 'function'"),
        (lambda: NotRegistered(2.0), r"NotRegistered is not registered, .*@suture.register"),
        (lambda: sl.Chain(nn.ReLU()), r"torch's own ReLU .* sl.ReLU, the same layer, does"),
        (lambda: sl.UseContext("side", "x", default=torch.ones(2)), "a tensor whose values are not among its weights"),
        (lambda: sl.UseContext("side", "x", default=object()), "made with <object object .*, which is no plain data"),
    ],
)
def test_what_has_no_description_can_be_put_in_and_is_named_by_the_recipe(make: Any, message: str) -> None:
    model = bare()
    edit = select(model, "act").insert_after(make())
    with pytest.raises(RecipeError, match=message):
        recipe(model)
    edit.undo()
    assert recipe(model).edits == ()


def test_an_attribute_that_was_set_since_is_told_as_it_is(tmp_path: Path) -> None:
    model = bare().eval()
    dropouts = Dropout.on(model, "query", p=0.1)
    dropouts.p = 0.3
    softer = sl.LeakyReLU(0.1)
    softer.negative_slope = 0.2
    select(model, "act").replace(softer)
    softer.negative_slope = 0.5
    model.append(sl.Concatenate(sl.Identity(), dim=0))
    vars(model["Concatenate"])["dim"] = -1
    select(model, "drop").replace(sl.Tanh())  # what the adapter asks for its p
    fresh = again(model, tmp_path).eval()
    assert torch.equal(fresh(X), model(X))


def test_another_class_of_the_same_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'tests.Scaled' is that of .*Scaled. Register .*Other under another"):

        @suture.register("tests.Scaled")
        class Other(nn.Module):
            pass


def test_a_part_and_an_adapted_root_have_no_recipe() -> None:
    model = bare()
    with pytest.raises(RecipeError, match=r"at 'inner' in its tree. Take the recipe of the whole model"):
        recipe(model["inner"])
    adapter = Dropout(sl.Chain(sl.Linear(4, 4))).inject()
    with pytest.raises(RecipeError, match="The model itself is the adapter Dropout"):
        recipe(adapter)


# What cannot be made


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"do": "remove", "at": "missing"}, r"Edit 2 of the recipe, remove missing, .* no layer at 'missing'"),
        ({"do": "remove", "at": "inner.norm.weight"}, "no layer at 'inner.norm.weight'"),
        (
            {"do": "insert", "at": "inner.up", "after": None, "layer": {"class": "Tanh", "arguments": {}}},
            "no composite",
        ),
        ({"do": "insert", "at": "", "after": {"slot": "gone"}, "layer": {"class": "Tanh", "arguments": {}}}, "'gone'"),
        (
            {"do": "insert", "at": "", "after": None, "layer": {"class": "os.system", "arguments": {}}},
            "No class is reg",
        ),
        ({"do": "insert", "at": "", "after": None, "layer": {"class": "Linear", "arguments": {}}}, "Linear"),
        (
            {"do": "insert", "at": "", "after": None, "layer": {"class": "Tanh", "arguments": {"x": 1}}},
            "not made with x",
        ),
        ({"do": "insert", "at": "", "after": None, "layer": {"what": 1}}, "describes no layer"),
        ({"do": "insert", "at": "", "after": None, "layer": 3}, "3 is no layer"),
        ({"do": "insert", "at": "", "after": None, "layer": {"dtype": "nn"}}, "torch has no dtype 'nn'"),
        ({"do": "adapt", "at": "query", "layer": {"class": "Tanh", "arguments": {}}}, "Tanh is no adapter"),
        ({"do": "adapt", "at": "query", "names": [], "layer": {"class": "Tanh"}}, "describes no layer"),
        ({"do": "dance", "at": ""}, "no edit called 'dance'"),
        ({"do": "remove"}, "does not say where"),
        ({"in": "missing", "do": "remove", "at": "query"}, "has no 'missing'"),
        ({"in": "inner.up", "do": "remove", "at": "query"}, "is a plain module"),
    ],
)
def test_what_cannot_be_made_is_named_and_the_model_is_as_it_was(told: dict[str, Any], message: str) -> None:
    model = bare()
    before = repr(model)
    with pytest.raises(RecipeError, match=message):
        Recipe(
            [{"do": "remove", "at": "query"} if told["do"] != "adapt" else {"do": "remove", "at": "inner"}, told]
        ).apply(model)
    assert repr(model) == before
    assert recipe(model).edits == ()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no JSON"),
        ("[]", "is no recipe"),
        ('{"format": "suture.recipe", "version": 2, "edits": []}', "version 2, where 1 can be read"),
        ('{"format": "suture.recipe", "version": 1, "edits": [1]}', "does not hold the edits"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "recipe.json").write_text(content)
    with pytest.raises(RecipeError, match=message):
        Recipe.load(tmp_path / "recipe.json")


def test_a_recipe_is_json_that_says_what_was_done(tmp_path: Path) -> None:
    model = bare()
    select(model, "query").wrap(lambda layer: sl.Sum(layer, low=sl.Linear(4, 4, bias=False)))
    recipe(model).save(tmp_path / "recipe.json")
    assert json.loads((tmp_path / "recipe.json").read_text()) == {
        "format": "suture.recipe",
        "version": 1,
        "edits": [
            {
                "do": "replace",
                "at": "query",
                "as": "query+Sum",
                "layer": {
                    "class": "Sum",
                    "arguments": {},
                    "children": {
                        "Linear": {"layer": "query"},
                        "low": {"class": "Linear", "arguments": {"in_features": 4, "out_features": 4, "bias": False}},
                    },
                },
            }
        ],
    }
    assert repr(recipe(model)) == "Recipe(replace query by Sum)"


def test_a_steered_model_is_steered_again(tmp_path: Path) -> None:
    model = bare()
    select(model, "blocks.#").adapt(lambda block: Steered(block, torch.randn(4), scale=0.5))
    fresh = again(model, tmp_path)
    assert torch.equal(fresh(X), model(X))
    assert not torch.equal(fresh(X), bare()(X))
