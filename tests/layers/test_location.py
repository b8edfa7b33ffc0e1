"""An exception inside a model keeps its type and says where it happened, once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from suture import layers as sl


class Fails(nn.Module):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def forward(self, *args: object) -> object:
        raise self.error


def notes_of(call: Callable[[], object], kind: type[BaseException]) -> list[str]:
    with pytest.raises(kind) as caught:
        call()
    return getattr(caught.value, "__notes__", [])


def model_with(layer: nn.Module) -> sl.Chain:
    return sl.Chain(blocks=sl.Stack(sl.Chain(up=nn.Linear(4, 8)), sl.Chain(sum=sl.Sum(bad=layer))))


@pytest.mark.parametrize("error", [ValueError("v"), KeyError("k"), RuntimeError("r"), ZeroDivisionError()])
def test_the_exception_is_the_original(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        model_with(Fails(error))(torch.ones(1, 4))
    assert caught.value is error


def test_the_note_says_path_class_and_arguments() -> None:
    (note,) = notes_of(lambda: model_with(Fails(ValueError()))(torch.ones(2, 4)), ValueError)
    first = note.splitlines()[0]
    assert first == "In layer 'blocks.1.sum.bad' (Fails), called with a (2, 8) tensor of float32 on cpu:"


def test_the_note_shows_the_tree_around_with_the_layer_marked() -> None:
    (note,) = notes_of(lambda: model_with(Fails(ValueError()))(torch.ones(2, 4)), ValueError)
    marked = [line for line in note.splitlines() if line.startswith("▸")]
    assert len(marked) == 1
    assert "bad: Fails" in marked[0]


@pytest.mark.parametrize("depth", [0, 1, 5, 20])
def test_there_is_one_note_whatever_the_depth(depth: int) -> None:
    model = sl.Chain(Fails(ValueError()))
    for _ in range(depth):
        model = sl.Chain(model)
    assert len(notes_of(lambda: model(1), ValueError)) == 1


@pytest.mark.parametrize(
    "kind", [sl.Chain, sl.Sum, sl.Parallel, sl.Residual, sl.Concatenate, sl.Passthrough, sl.Distribute]
)
def test_every_composite_locates(kind: type[sl.Composite]) -> None:
    (note,) = notes_of(lambda: kind(inner=Fails(ValueError()))(torch.ones(1)), ValueError)
    assert note.startswith("In layer 'inner' (Fails)")


def test_a_raised_again_exception_is_not_noted_twice() -> None:
    error = ValueError()
    model = model_with(Fails(error))
    for _ in range(3):
        notes_of(lambda: model(torch.ones(1, 4)), ValueError)
    assert len(error.__notes__) == 1


def test_a_tree_inside_a_plain_module_is_located_from_its_own_root() -> None:
    plain = nn.Sequential(sl.Chain(inner=Fails(ValueError())))
    (note,) = notes_of(lambda: sl.Chain(plain)(1), ValueError)
    assert note.startswith("In layer 'inner' (Fails)")


def test_the_path_is_the_home_of_an_adapted_layer() -> None:
    model = sl.Chain(query=nn.Linear(2, 2))
    model.replace(model["query"], sl.Sum(model["query"], nn.Linear(2, 2)))
    (note,) = notes_of(lambda: model(torch.ones(1, 3)), RuntimeError)
    assert note.startswith("In layer 'query' (Linear), called with a (1, 3) tensor")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit()])
def test_what_is_no_error_is_left_alone(error: BaseException) -> None:
    assert notes_of(lambda: sl.Chain(Fails(error))(1), type(error)) == []
