from __future__ import annotations

import copy

import pytest
from torch import nn

from suture import layers as sl
from suture.surgery.adapter import Adapter


class Beside(sl.Sum, Adapter[nn.Module]):
    def __init__(self, target: nn.Module) -> None:
        with self.setup_adapter(target):
            super().__init__(target, branch=sl.Chain(sl.Linear(2, 2)))


class Inside(sl.Chain, Adapter[sl.Chain]):
    """Moves the first layer of its target to the end, and puts another in its place."""

    def __init__(self, target: sl.Chain, around_first: bool) -> None:
        self.around_first = around_first
        with self.setup_adapter(target):
            super().__init__(target)

    def inject(self, parent: nn.Module | None = None) -> Inside:
        if self.around_first:
            super().inject(parent)
        moving = self.target[0]
        self.target.remove(moving)
        self.target.append(moving)
        self.target.insert(0, sl.Linear(2, 2))
        self.target.replace(self.target[0], sl.Tanh())
        return self if self.around_first else super().inject(parent)


def paths(model: sl.Composite, adapter: Adapter[nn.Module]) -> list[str]:
    brought = {id(layer) for layer in adapter.brought}
    return [place.path for place in model.places() if id(place.layer) in brought]


def test_an_adapter_tells_what_it_brought_and_not_what_was_there() -> None:
    model = sl.Chain(one=sl.Linear(2, 2), two=sl.Chain(three=sl.Linear(2, 2)))
    adapter = Beside(model["two"])
    assert adapter.brought == ()
    adapter.inject()
    assert paths(model, adapter) == ["two+Beside", "two+Beside.branch", "two+Beside.branch.Linear"]
    adapter.eject()
    assert adapter.brought == ()


@pytest.mark.parametrize("around_first", [True, False])
def test_what_was_moved_was_not_brought(around_first: bool) -> None:
    inner = sl.Chain(one=sl.Linear(2, 2), two=sl.ReLU())
    model = sl.Chain(inner=inner)
    adapter = Inside(inner, around_first).inject(model)
    assert {type(layer) for layer in adapter.brought} >= {Inside, sl.Tanh}
    assert not {id(layer) for layer in inner[1:]} & {id(layer) for layer in adapter.brought}


def test_what_is_put_into_an_adapter_later_and_what_adapts_it_again_are_not_its_own() -> None:
    model = sl.Chain(one=sl.Linear(2, 2))
    first = Beside(model["one"]).inject(model)
    model.layer("one+Beside.branch", sl.Chain).append(sl.Linear(2, 2))
    second = Beside(first.layer("branch.Linear")).inject(first.layer("branch", sl.Chain))
    assert paths(model, first) == ["one+Beside", "one+Beside.branch", "one+Beside.branch.Linear"]
    assert paths(model, second) == [
        f"one+Beside.branch.Linear+Beside{name}" for name in ("", ".branch", ".branch.Linear")
    ]


def test_an_adapter_of_a_root_brought_what_is_around_it() -> None:
    root = sl.Chain(sl.Linear(2, 2))
    adapter = Beside(root).inject()
    assert {type(layer) for layer in adapter.brought} == {Beside, sl.Chain, sl.Linear}
    assert not {id(layer) for layer in root.modules()} & {id(layer) for layer in adapter.brought}


def test_a_copy_brought_its_own_layers() -> None:
    model = sl.Chain(one=sl.Linear(2, 2))
    Beside(model["one"]).inject(model)
    copied = copy.deepcopy(model)
    adapter = copied.layer("one+Beside", Beside)
    assert paths(copied, adapter) == ["one+Beside", "one+Beside.branch", "one+Beside.branch.Linear"]
