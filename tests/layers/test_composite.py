from __future__ import annotations

import gc
import weakref
from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from suture import layers as sl


def note(seen: list[str], path: str, *_: Any) -> None:
    seen.append(path)


class TestConstruction:
    def test_children_are_named_by_class_keyword_or_dictionary(self) -> None:
        assert list(sl.Chain(nn.Linear(1, 1), nn.Linear(1, 1), nn.ReLU(), last=nn.ReLU()).node.children) == [
            "Linear",
            "Linear_2",
            "ReLU",
            "last",
        ]
        assert list(sl.Chain({"norm": nn.ReLU(), "mlp": nn.ReLU()}).node.children) == ["norm", "mlp"]

    @pytest.mark.parametrize("wrong", [3, torch.relu, nn.ReLU, [nn.ReLU()], None])
    def test_what_is_no_module_is_refused(self, wrong: object) -> None:
        with pytest.raises(TypeError, match="is made of modules"):
            sl.Chain(cast("Any", wrong))

    @pytest.mark.parametrize("name", ["forward", "walk", "path", "a.b", "", "training"])
    def test_names_that_cannot_be_used_are_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match="cannot be named"):
            sl.Chain({name: nn.ReLU()})

    def test_a_composite_has_one_parent(self) -> None:
        inner = sl.Chain()
        outer = sl.Chain(place=inner)
        with pytest.raises(ValueError, match="one parent"):
            sl.Chain(inner)
        assert inner.parent is outer

    def test_a_leaf_may_stand_at_several_places(self) -> None:
        leaf = nn.Linear(2, 2)
        tree = sl.Chain(leaf, sl.Chain(leaf))
        assert len(list(tree.parameters())) == 2
        assert torch.equal(tree(torch.ones(1, 2)), leaf(leaf(torch.ones(1, 2))))


class TestTorch:
    def model(self) -> sl.Chain:
        tree = sl.Chain(query=nn.Linear(4, 4), up=sl.Residual(nn.Linear(4, 4), nn.ReLU()))
        tree.replace(tree["query"], sl.Sum(tree["query"], low=nn.Linear(4, 4, bias=False)))
        return tree

    def test_the_keys_of_the_bare_model_are_all_there_and_load_strictly(self) -> None:
        bare = sl.Chain(query=nn.Linear(4, 4), up=sl.Residual(nn.Linear(4, 4), nn.ReLU()))
        tree = self.model()
        assert set(bare.state_dict()) < set(tree.state_dict())
        added = {key: value for key, value in tree.state_dict().items() if key not in bare.state_dict()}
        assert list(added) == ["query+Sum.low.weight"]
        tree.load_state_dict({**bare.state_dict(), **added}, strict=True)
        edited = torch.zeros(4, 4)
        tree.load_state_dict({"query+Sum.low.weight": edited}, strict=False)
        x = torch.randn(2, 4)
        assert torch.equal(tree(x), bare(x))

    def test_functional_call(self) -> None:
        tree, x = self.model(), torch.randn(2, 4)
        zeros: dict[str, Tensor] = {name: torch.zeros_like(value) for name, value in tree.state_dict().items()}
        result = torch.func.functional_call(tree, zeros, (x,))
        assert torch.equal(result, torch.zeros(2, 4))

    def test_compile_with_a_full_graph_before_and_after_edits(self) -> None:
        tree, x = self.model(), torch.randn(2, 4)
        compiled = torch.compile(tree, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(x), tree(x))
        edit = tree.append(nn.Tanh())
        torch.testing.assert_close(compiled(x), tree(x))
        edit.undo()
        torch.testing.assert_close(compiled(x), tree(x))
        assert not any("_orig_mod" in key for key in tree.state_dict())

    def test_export_keeps_the_keys(self) -> None:
        tree, x = self.model(), torch.randn(2, 4)
        exported = torch.export.export(tree, (x,))
        assert list(exported.state_dict) == list(tree.state_dict())
        torch.testing.assert_close(exported.module()(x), tree(x))

    def test_hooks_of_every_layer_run(self) -> None:
        tree, seen = self.model(), list[str]()
        for place in tree.places():
            place.layer.register_forward_hook(partial(note, seen, place.path))
        tree(torch.randn(2, 4))
        assert sorted(seen) == sorted(place.path for place in tree.places())

    def test_gradients_are_those_of_the_hand_written_module(self) -> None:
        tree, x = self.model(), torch.randn(2, 4)
        query, low, up = tree.layers(nn.Linear)
        tree(x).sum().backward()
        found = [parameter.grad for parameter in tree.parameters()]
        tree.zero_grad()
        y = query(x) + low(x)
        (y + torch.relu(up(y))).sum().backward()
        for mine, theirs in zip(found, tree.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs.grad)


def test_a_tree_without_edits_is_freed_at_once() -> None:
    tree = sl.Chain(sl.Chain(sl.Residual(nn.Linear(2, 2))), sl.Sum(nn.Linear(2, 2), nn.Linear(2, 2)))
    tree(torch.ones(1, 2))
    alive = [weakref.ref(parameter) for parameter in tree.parameters()]
    gc.disable()
    try:
        del tree
        assert not any(reference() is not None for reference in alive)
    finally:
        gc.enable()


def test_an_empty_composite_is_true() -> None:
    assert bool(sl.Chain())


def test_add_module_and_setattr_are_edits() -> None:
    tree = sl.Chain(nn.ReLU())
    tree.add_module("last", nn.Tanh())
    assert len(tree) == 2
    assert torch.equal(tree(torch.tensor([-1.0])), torch.tensor([0.0]))


def test_the_structure_version_changes_with_every_edit_below_and_is_never_another_trees() -> None:
    tree, other = sl.Chain(inner=sl.Chain(nn.ReLU())), sl.Chain(nn.ReLU())
    versions = [tree.structure_version, other.structure_version]
    edit = tree.layer("inner", sl.Chain).append(nn.Tanh())
    versions.append(tree.structure_version)
    edit.undo()
    versions.append(tree.structure_version)
    assert len(set(versions)) == 4
