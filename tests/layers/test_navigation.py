"""Finding, reading and editing by position, name and path."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import nn

from suture import EditError
from suture import layers as sl


def model() -> sl.Chain:
    return sl.Chain(
        norm=sl.LayerNorm(4),
        blocks=sl.Stack(sl.Chain(up=sl.Linear(4, 8), down=sl.Linear(8, 4)), sl.Chain(up=sl.Linear(4, 4))),
        head=sl.Linear(4, 2),
    )


def names(tree: sl.Composite) -> list[str]:
    return [place.slot.name for place in tree.places() if place.depth == 1]


class TestReading:
    def test_length_iteration_and_positions_follow_the_wiring(self) -> None:
        tree = model()
        assert len(tree) == 3
        assert [type(layer) for layer in tree] == [sl.LayerNorm, sl.Stack, sl.Linear]
        assert tree[0] is tree["norm"]
        assert tree[-1] is tree.head

    def test_a_path_leads_to_what_is_owned_there(self) -> None:
        tree = model()
        assert tree["blocks.0.up"] is tree.layer("blocks.0", sl.Chain)["up"]

    def test_a_path_goes_through_plain_modules(self) -> None:
        plain = nn.Sequential(nn.Linear(2, 2))
        assert sl.Chain(plain=plain)["plain.0"] is plain[0]

    def test_a_slice_is_a_copy_that_shares_leaves(self) -> None:
        tree = model()
        part = tree[0:2]
        assert names(part) == ["norm", "blocks"]
        assert part["blocks.0.up"] is tree["blocks.0.up"]
        assert len(tree) == 3

    @pytest.mark.parametrize("path", ["nothing", "blocks.7", "blocks.0.nothing", ""])
    def test_no_such_path_says_what_there_is(self, path: str) -> None:
        with pytest.raises(KeyError, match="It has: "):
            model()[path]

    def test_no_such_position_says_how_many_there_are(self) -> None:
        with pytest.raises(IndexError, match="which has 3"):
            model()[3]

    def test_a_layer_of_another_class_is_named(self) -> None:
        with pytest.raises(TypeError, match="is a Linear, not a Stack"):
            model().layer("head", sl.Stack)

    def test_find_gives_the_first_or_none(self) -> None:
        tree = model()
        assert tree.find(sl.Linear) is tree["blocks.0.up"]
        assert tree.find(sl.Conv2d) is None

    def test_ensure_find_says_what_there_is(self) -> None:
        with pytest.raises(LookupError, match=r"no Conv2d in this Chain\. It holds: Chain, LayerNorm, Linear, Stack"):
            model().ensure_find(sl.Conv2d)

    def test_walk_gives_layers_with_what_calls_them(self) -> None:
        tree = model()
        assert [parent.path for _, parent in tree.walk(sl.Linear)] == ["blocks.0", "blocks.0", "blocks.1", ""]
        assert [layer for layer, _ in tree.walk(lambda layer, parent: parent is tree)] == list(tree)

    def test_torchs_own_classes_find_ours(self) -> None:
        assert len(model().layers(nn.Linear)) == 4

    def test_find_parent(self) -> None:
        tree = model()
        assert tree.find_parent(tree["blocks.0.down"]) is tree["blocks.0"]
        assert tree.find_parent(sl.Linear(1, 1)) is None


class TestEditing:
    @pytest.mark.parametrize(("position", "place"), [(0, 0), (1, 1), (3, 3), (9, 3), (-1, 2), (-9, 0)])
    def test_insert_counts_as_lists_do(self, position: int, place: int) -> None:
        tree = model()
        tree.insert(position, sl.ReLU())
        expected: list[Any] = [0, 1, 2]
        expected.insert(position, "new")
        assert names(tree).index("ReLU") == expected.index("new") == place

    def test_insert_before_and_after_a_child(self) -> None:
        tree = model()
        tree.insert_before(tree["blocks"], sl.ReLU())
        tree.insert_after(tree["blocks"], sl.Tanh())
        assert names(tree) == ["norm", "ReLU", "blocks", "Tanh", "head"]

    def test_a_child_of_a_child_is_said_to_be_deeper(self) -> None:
        tree = model()
        with pytest.raises(LookupError, match=r"child of 'blocks\.0', deeper in"):
            tree.replace(tree["blocks.0.up"], sl.Identity())

    def test_a_name_can_be_given(self) -> None:
        tree = model()
        tree.append(sl.ReLU(), name="last")
        assert names(tree)[-1] == "last"
        with pytest.raises(ValueError, match="'last' is taken"):
            tree.append(sl.ReLU(), name="last")

    @pytest.mark.parametrize("name", ["", "a.b", "forward", "walk", "a b", "training"])
    def test_names_that_cannot_be_paths_or_hide_something_are_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match="cannot be named"):
            model().append(sl.ReLU(), name=name)

    def test_pop_gives_an_edit_with_the_layer(self) -> None:
        tree = model()
        head = tree["head"]
        edit = tree.pop()
        assert edit.layers == (head,)
        assert names(tree) == ["norm", "blocks"]
        edit.undo()
        assert names(tree) == ["norm", "blocks", "head"]

    def test_items_and_attributes_are_edits(self) -> None:
        tree = model()
        identity, tanh = sl.Identity(), sl.Tanh()
        tree["norm"] = identity
        tree.head = tanh
        tree["blocks.0.up"] = sl.Linear(4, 8, bias=False)
        tree["new"] = sl.ReLU()
        assert tree[0] is identity
        assert tree["head"] is tanh
        assert tree.layer("blocks.0.up", sl.Linear).bias is None
        assert names(tree) == ["norm", "blocks", "head", "new"]

    def test_deleting_by_position_name_slice_and_attribute(self) -> None:
        tree = model()
        del tree["norm"]
        del tree[0]
        assert names(tree) == ["head"]
        del tree.head
        assert len(tree) == 0
        whole = model()
        del whole[0:2]
        assert names(whole) == ["head"]

    def test_a_layer_that_comes_back_keeps_its_key(self) -> None:
        tree = sl.Stack(*(sl.Linear(2, 2) for _ in range(3)))
        keys, first = list(tree.state_dict()), tree[0]
        edit = tree.pop(0)
        tree.append(first)
        assert list(tree.state_dict()) == keys
        assert [place.path for place in tree.places()] == ["1", "2", "0"]
        with pytest.raises(EditError):
            edit.undo()

    @pytest.mark.parametrize("wrong", [nn.ReLU, torch.relu, None, 3])
    def test_what_is_no_layer_is_refused(self, wrong: object) -> None:
        tree = model()
        with pytest.raises(TypeError, match="is a module"):
            tree.append(cast("Any", wrong))
        assert len(tree) == 3

    def test_a_layer_cannot_replace_itself(self) -> None:
        tree = model()
        with pytest.raises(ValueError, match="already"):
            tree.replace(tree["head"], tree["head"])

    def test_a_leaf_at_two_places_of_one_composite_asks_which(self) -> None:
        leaf = sl.ReLU()
        tree = sl.Chain(one=leaf, two=leaf)
        with pytest.raises(ValueError, match="at 2 places in this Chain, as 'one', 'two'"):
            tree.replace(leaf, sl.Tanh())
        tree["two"] = sl.Tanh()
        assert [type(layer) for layer in tree] == [sl.ReLU, sl.Tanh]
