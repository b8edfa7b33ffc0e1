"""Recipe, weights and the bare model give the edited one again, whatever was done to it in any order."""

# Hypothesis draws values that have no static type.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import contextlib
import copy
import gc
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, event, given, note, settings
from hypothesis import strategies as st

import suture
from suture import layers as sl
from suture.layers.recording import EditError
from suture.surgery.recipe import Recipe, RecipeError, recipe
from tests.laws import edits, trees
from tests.laws.edits import Handle, inject, places, plain_edit, several
from tests.laws.snapshots import appearance, differences, snapshot
from tests.laws.trees import Draw, tree

for _kind in (trees.Mix, trees.Shift, trees.Plain, trees.Drop, edits.Around, edits.Twice, edits.Instead):
    suture.register(_kind)

UNTOLD = (
    "Inside is not registered",
    "was edited",
    "is gone",
    "taken out again",
    "not in the tree as it was",
    "has its name beside",
)
"""What has no recipe: an adapter that edits by chance, a layer that was changed, taken out and put in again, and what
was put around a layer that had taken the place of the composite around it, when that was undone."""


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves that have a description."""
    described = (*(trees.Mix, trees.Shift, trees.Plain, trees.Drop), sl.Identity, lambda: sl.GetArg(0))
    monkeypatch.setattr(trees, "LEAVES", (*described, lambda: sl.SetContext("side", "given")))


QUIET = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large)


@given(data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=QUIET)
@pytest.mark.usefixtures("told")
def test_recipe_weights_and_the_bare_model_give_the_edited_one(data: st.DataObject) -> None:
    edit_and_repeat(data.draw)


@pytest.mark.long
@given(data=st.data())
@settings(max_examples=1500, deadline=None, suppress_health_check=QUIET)
@pytest.mark.usefixtures("told")
def test_recipe_weights_and_the_bare_model_give_the_edited_one_in_a_long_run(data: st.DataObject) -> None:
    edit_and_repeat(data.draw, steps=10)


def edit_and_repeat(draw: Draw, steps: int = 6) -> None:
    """Edits a tree by chance, and makes the edits again from their recipe; a recipe may be refused as `UNTOLD` says."""
    model = tree(draw)
    bare = copy.deepcopy(model)
    handles: list[Handle] = []
    for _ in range(draw(st.integers(1, steps))):
        step = draw(st.sampled_from(("edit", "edit", "several", "inject", "undo", "undo", "give up")))
        if step == "edit" or not places(model):
            handles.append(plain_edit(model, draw))
        elif step == "several":
            handles.append(several(model, draw))
        elif step == "inject":
            handles.append(inject(model, draw))
        elif handles and step == "undo":
            with contextlib.suppress(EditError):
                handles.pop(draw(st.integers(0, len(handles) - 1))).undo()
        elif handles:
            handles.pop(draw(st.integers(0, len(handles) - 1)))
            gc.collect()
        note(f"{step}\n{model}")
    try:
        found = recipe(model)
    except RecipeError as error:
        reason = next((part for part in UNTOLD if part in str(error)), None)
        if reason is None:
            raise
        event(reason)
        return
    note(f"{found.edits}")
    with tempfile.TemporaryDirectory() as folder:
        found.save(Path(folder, "recipe.json"))
        loaded = Recipe.load(Path(folder, "recipe.json"))
        assert loaded == found
        before = snapshot(bare)
        edit = loaded.apply(bare)
        note(f"{bare}")
        assert list(bare.state_dict()) == list(model.state_dict())
        suture.save(model, Path(folder, "weights"))
        suture.load(bare, Path(folder, "weights"))
    for fact in ("keys", "printed tree", "context", "output"):
        assert appearance(bare)[fact] == appearance(model)[fact], fact
    assert list(recipe(bare).edits) == list(found.edits)
    edit.undo()
    after = snapshot(bare)
    for facts in (before.facts, after.facts):
        del facts["output"]
    assert not differences(before, after)
