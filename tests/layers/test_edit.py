"""Edits as handles and as blocks, and every edit that is refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn

from suture import Adapter, EditError, editing, select
from suture import layers as sl


class Beside(sl.Sum, Adapter[nn.Module]):
    def __init__(self, target: nn.Module) -> None:
        with self.setup_adapter(target):
            super().__init__(target, sl.Linear(2, 2))


def linear() -> sl.Linear:
    return sl.Linear(2, 2)


def model() -> sl.Chain:
    return sl.Chain(one=linear(), two=sl.Chain(three=linear(), four=sl.ReLU()), rest=sl.Chain())


def facts(tree: sl.Composite) -> list[object]:
    return [
        [(place.path, id(place.layer), id(place.parent)) for place in tree.places()],
        list(tree.state_dict()),
        repr(tree),
    ]


def refused(edit: Callable[[], object], tree: sl.Composite, error: type[Exception], match: str) -> None:
    before = facts(tree)
    with pytest.raises(error, match=match):
        edit()
    assert facts(tree) == before


# Handles


def test_an_edit_names_what_it_changed() -> None:
    tree = model()
    edit = tree.replace(tree["one"], sl.ReLU())
    assert repr(edit) == "Edit(the replacement of 'one' by 'one' (ReLU))"
    edit.undo()
    assert repr(edit).endswith("(undone)")


def test_an_edit_of_many_places_names_the_first_and_says_how_many() -> None:
    tree = sl.Stack(*(linear() for _ in range(210)))
    edit = select(tree, "#").replace(lambda layer: sl.ReLU())
    assert repr(edit) == (
        "Edit(210 changes: the replacement of '0' by '0' (ReLU); the replacement of '1' by '1' (ReLU); "
        "the replacement of '2' by '2' (ReLU); ...)"
    )


def test_an_edit_that_is_undone_cannot_be_undone_again() -> None:
    tree = model()
    edit = tree.remove(tree["one"])
    edit.undo()
    refused(edit.undo, tree, EditError, "undone already")


def test_a_model_does_not_keep_what_nobody_can_undo() -> None:
    tree = model()
    tree.remove(tree["one"])
    assert [slot.swaps for slot in tree.node.slots] == [[], [], []]


def test_freezing_is_no_edit() -> None:
    tree = model()
    with pytest.raises(ZeroDivisionError), editing(tree) as edit:  # noqa: PT012 (the block is what is tested)
        select(tree, "one").freeze()
        raise ZeroDivisionError
    assert repr(edit) == "Edit(nothing)"
    assert not tree.layer("one", sl.Linear).weight.requires_grad


# Blocks


def test_a_block_of_edits_is_undone_as_one() -> None:
    tree = model()
    before = facts(tree)
    with editing(tree) as edit:
        tree.remove(tree["one"])
        with editing(tree):
            tree.append(sl.ReLU())
    edit.undo()
    assert facts(tree) == before


def test_an_inner_block_that_fails_leaves_the_outer_one() -> None:
    tree = model()
    with editing(tree):
        tree.remove(tree["one"])
        with pytest.raises(ZeroDivisionError), editing(tree):  # noqa: PT012 (the block is what is tested)
            tree.append(sl.ReLU())
            raise ZeroDivisionError
    assert [place.path for place in tree.places()] == ["two", "two.three", "two.four", "rest"]


def test_a_block_in_a_task_is_not_that_of_another() -> None:
    mine, other = model(), model()
    bare = facts(mine)

    async def fail(opened: asyncio.Event, edited: asyncio.Event) -> None:
        with pytest.raises(ZeroDivisionError), editing(mine):  # noqa: PT012 (the block is what is tested)
            mine.remove(mine["one"])
            opened.set()
            await edited.wait()
            raise ZeroDivisionError

    async def edit(opened: asyncio.Event, edited: asyncio.Event) -> None:
        await opened.wait()
        other.remove(other["one"])
        edited.set()

    async def both() -> None:
        opened, edited = asyncio.Event(), asyncio.Event()
        await asyncio.gather(fail(opened, edited), edit(opened, edited))

    asyncio.run(both())
    assert facts(mine) == bare
    assert [place.path for place in other.places()] == ["two", "two.three", "two.four", "rest"]


def test_a_block_in_a_thread_is_not_that_of_another() -> None:
    tree = model()
    with pytest.raises(ZeroDivisionError), editing(tree):  # noqa: PT012 (the block is what is tested)
        thread = threading.Thread(target=lambda: tree.append(sl.Tanh(), "kept"))
        thread.start()
        thread.join()
        raise ZeroDivisionError
    assert isinstance(tree["kept"], sl.Tanh)


# Refusals


def test_a_composite_has_one_parent() -> None:
    tree = model()
    two, rest = tree["two"], tree.layer("rest", sl.Chain)
    refused(lambda: rest.append(two), tree, EditError, "has one parent. Put in a copy")
    refused(lambda: sl.Chain(two), tree, ValueError, "has a place already, at 'two'")
    rest.append(tree.layer("two", sl.Chain).structural_copy())


def test_a_composite_is_not_put_inside_itself() -> None:
    tree = model()
    rest = tree.layer("rest", sl.Chain)
    refused(lambda: rest.append(tree), tree, EditError, "inside itself")
    refused(lambda: rest.append(rest), tree, EditError, "one parent")
    refused(lambda: rest.append(sl.Residual(sl.Chain(tree))), tree, EditError, "inside itself")


def test_an_adapter_is_injected_once() -> None:
    tree = model()
    adapter = Beside(tree["one"]).inject(tree)
    refused(lambda: adapter.inject(tree), tree, EditError, "injected already")


def test_a_target_that_is_not_there_is_refused() -> None:
    tree = model()
    refused(lambda: Beside(linear()).inject(tree), tree, LookupError, "not a child of")
    refused(lambda: Beside(tree["two.three"]).inject(tree), tree, LookupError, "a child of 'two', deeper in")
    gone = tree.remove(tree["one"]).layers[0]
    refused(lambda: Beside(gone).inject(tree), tree, LookupError, "not a child of")


def test_of_a_leaf_at_two_places_one_says_which() -> None:
    leaf = linear()
    tree = sl.Chain(a=leaf, b=leaf)
    for edit in (
        lambda: tree.replace(leaf, sl.ReLU()),
        lambda: tree.remove(leaf),
        lambda: tree.insert_after(leaf, sl.ReLU()),
        lambda: Beside(leaf).inject(tree),
    ):
        refused(edit, tree, ValueError, "at 2 places in this Chain, as 'a', 'b'. Say which")
    tree[1] = sl.ReLU()
    assert tree[0] is leaf


def test_a_name_that_can_return_is_not_given_away() -> None:
    tree = model()
    removal = tree.remove(tree["one"])
    refused(lambda: tree.append(linear(), "one"), tree, ValueError, "'one' is taken")
    del removal
    tree.append(sl.ReLU(), "one")
    assert isinstance(tree["one"], sl.ReLU)


def test_a_home_of_what_is_called_elsewhere_is_not_moved() -> None:
    tree = model()
    two, rest = tree.layer("two", sl.Chain), tree.layer("rest", sl.Chain)
    three = two["three"]
    select(tree, "two").replace(lambda layer: sl.Residual(three))
    refused(lambda: rest.append(two), tree, EditError, "has its home there, at 'two'")
    refused(lambda: sl.Chain(two), tree, ValueError, "has a place already, at 'two'")
    assert tree["two.three"] is three


def test_what_was_taken_out_can_be_edited_and_returns_as_it_is_then() -> None:
    tree = model()
    removal = tree.remove(tree["two"])
    (two,) = removal.layers
    assert isinstance(two, sl.Chain)
    assert list(two.state_dict()) == ["three.weight", "three.bias"]
    inner = two.replace(two["three"], sl.Sum(two["three"], linear()))
    removal.undo()
    assert [key for key in tree.state_dict() if key.endswith("weight")] == [
        "one.weight",
        "two.three.weight",
        "two.three+Sum.Linear_2.weight",
    ]
    inner.undo()
    assert torch.equal(tree(torch.ones(1, 2)), two(tree["one"](torch.ones(1, 2))))


def test_a_failure_while_a_layer_is_made_leaves_nothing() -> None:
    tree = model()

    def fail(layer: nn.Module) -> nn.Module:
        if layer is tree["two.three"]:
            raise ZeroDivisionError("three")
        return sl.ReLU()

    refused(lambda: select(tree, sl.Linear).replace(fail), tree, ZeroDivisionError, "three")
