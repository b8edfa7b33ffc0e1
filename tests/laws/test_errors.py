"""Law 8: an exception inside a tree is the original one, with one note that says where it happened and with what."""

# Hypothesis draws values that have no static type.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import contextlib
import gc
import weakref
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from suture import layers as sl
from suture.surgery.selection import select
from tests.laws.edits import a_place, plain_edit
from tests.laws.snapshots import X, entries_for, outcome
from tests.laws.trees import tree

EXAMPLES = settings(max_examples=80, deadline=None)


class OddError(Exception):
    """An exception whose construction Suture could not repeat."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(first, second)
        self.pair = (first, second)


class Failing(nn.Module):
    """Raises one exception, and remembers what it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.error = OddError(1, 2)
        self.called_with: tuple[Any, ...] | None = None

    def forward(self, *args: Any) -> Any:
        self.called_with = tuple(tuple(arg.shape) if isinstance(arg, Tensor) else type(arg) for arg in args)
        raise self.error


def with_failure(data: st.DataObject) -> tuple[sl.Composite, Failing]:
    """An edited tree with one failing leaf in it."""
    model, failing = tree(data.draw), Failing()
    for _ in range(data.draw(st.integers(0, 2))):
        plain_edit(model, data.draw)
    assume(len(list(model.places())))
    place = a_place(model, data.draw)
    select(model, lambda match: match.slot is place.slot).replace(failing)
    return model, failing


@given(data=st.data())
@EXAMPLES
def test_the_exception_is_the_original_with_one_note_that_says_where(data: st.DataObject) -> None:
    model, failing = with_failure(data)
    path = next(place.path for place in model.places() if place.layer is failing)
    with pytest.raises(Exception) as caught:  # noqa: PT011 (something else may fail before)
        model(X, context=entries_for(model))
    notes = caught.value.__notes__
    assert len(notes) == 1
    assume(failing.called_with is not None)
    assert caught.value is failing.error
    head, _, shown = notes[0].partition("\n")
    assert f"{path!r} (Failing)" in head
    for shape in failing.called_with or ():
        assert not isinstance(shape, tuple) or f"a {shape} tensor of float32 on cpu" in head
    marked = [line for line in shown.splitlines() if line.startswith("▸")]
    assert len(marked) == 1
    assert "Failing" in marked[0]
    assert len(shown.splitlines()) <= 12


@given(data=st.data())
@EXAMPLES
def test_a_call_after_one_that_failed_is_as_the_first(data: st.DataObject) -> None:
    model, failing = with_failure(data)
    working = select(model, lambda match: match.layer is failing).replace(sl.Identity())
    clean = outcome(model)
    working.undo()
    with pytest.raises(Exception):  # noqa: B017, PT011 (something else may fail before)
        model(X, context=entries_for(model))
    select(model, lambda match: match.layer is failing).replace(sl.Identity())
    assert outcome(model) == clean


@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_no_tensor_outlives_a_call_that_failed(data: st.DataObject) -> None:
    model, failing = with_failure(data)
    x = torch.ones(2, 4)
    alive = weakref.ref(x)
    gc.disable()
    try:
        with contextlib.suppress(Exception):
            model(x, context=entries_for(model))
        failing.error.__traceback__ = None
        del x
        assert alive() is None
    finally:
        gc.enable()
