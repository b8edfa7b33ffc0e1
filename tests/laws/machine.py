"""A tree under random edits, in any order and taken back in any order that is accepted."""

# Hypothesis draws values that have no static type.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import copy
import pickle
import tempfile
from collections import Counter
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from suture import layers as sl
from suture.layers.edit import editing
from suture.layers.recording import EditError
from suture.surgery.adapter import Adapter
from suture.surgery.selection import SelectionError, select
from suture.weights.model_folder import load, save
from tests.laws.edits import Edited, Handle, inject, places, plain_edit, selected_edit, several
from tests.laws.elsewhere import WHERE
from tests.laws.snapshots import appearance, check, differences, keys_of, snapshot, state, without_tensors
from tests.laws.trees import Draw, tree


class BoomError(Exception):
    """Not an error of Suture's."""


class Editing(RuleBasedStateMachine):
    """Laws 2, 3, 4 and 6, and with them what must hold after every step.

    A deep copy made at the start is not edited, and gets all else that is done to the model: casts, modes, steps of an
    optimiser, freezing. When every edit is undone, the model is what it was by identity, and the copy by its values.
    """

    model: sl.Composite
    steps: ClassVar[Counter[str]] = Counter()
    """How often each rule was followed, and how often an edit or an undo was refused."""

    def __init__(self) -> None:
        super().__init__()
        self.handles: list[Handle] = []

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.model = tree(data.draw)
        self.at_the_start = snapshot(self.model)
        self.keys = keys_of(self.model)
        self.bare = set(self.model.state_dict())
        self.unedited = copy.deepcopy(self.model)
        self.parameters = list(self.model.parameters())
        self.is_as_made = True
        note(f"{self.model}")

    def did(self, step: str, handle: Handle | None = None) -> None:
        self.steps[step] += 1
        if handle is not None:
            self.handles.append(handle)
        note(f"{step}: {handle!r}\n{self.model}")

    def make(self, step: str, edit: Edited, draw: Draw) -> None:
        """Makes an edit; one that is refused changes nothing."""
        before, refused = snapshot(self.model), None
        try:
            self.did(step, edit(self.model, draw))
        except EditError as error:
            refused = str(error)
        if refused is not None:
            self.did(f"{step}, refused")
            assert not differences(before, snapshot(self.model)), f"a refused edit changed something: {refused}"

    # Edits

    @rule(data=st.data())
    def edit(self, data: st.DataObject) -> None:
        self.make("edit", plain_edit, data.draw)

    @rule(data=st.data())
    def edit_as_one(self, data: st.DataObject) -> None:
        self.make("several edits as one", several, data.draw)

    @precondition(lambda self: len(places(self.model)) > 0)
    @rule(data=st.data())
    def edit_what_is_selected(self, data: st.DataObject) -> None:
        self.make("edit of a selection", selected_edit, data.draw)

    @precondition(lambda self: len(places(self.model)) > 0)
    @rule(data=st.data())
    def inject(self, data: st.DataObject) -> None:
        self.make("inject", inject, data.draw)

    @rule(data=st.data(), where=st.sampled_from(sorted(WHERE)))
    def edit_elsewhere(self, data: st.DataObject, where: str) -> None:
        """In another thread, or in a task."""

        def edit(model: sl.Composite, draw: Draw) -> Handle:
            if places(model) and draw(st.booleans()):
                return WHERE[where](lambda draw: inject(model, draw), draw)
            return WHERE[where](lambda draw: several(model, draw), draw)

        self.make(f"edit in a {where}", edit, data.draw)

    @precondition(lambda self: len(self.handles) > 0)
    @rule(data=st.data(), where=st.sampled_from(("here", *sorted(WHERE))))
    def undo(self, data: st.DataObject, where: str) -> None:
        self.take_back(data.draw(st.integers(0, len(self.handles) - 1)), where)

    def take_back(self, number: int, where: str = "here") -> bool:
        before, handle = snapshot(self.model), self.handles[number]
        refused: EditError | None = None
        try:
            if where == "here":
                handle.undo()
            else:
                WHERE[where](lambda draw: handle.undo(), None)
        except EditError as error:
            refused = error
        if refused is not None:
            self.did("undo, refused")
            note(f"refused: {handle!r}: {refused}")
            assert number < len(self.handles) - 1, f"the last edit cannot be undone: {refused}"
            assert not differences(before, snapshot(self.model)), "a refused undo changed something"
            return False
        del self.handles[number]
        self.did("undo")
        note(f"undone: {handle!r}")
        return True

    # Failures

    @rule(data=st.data())
    def edit_and_fail(self, data: st.DataObject) -> None:
        before = snapshot(self.model)
        made: list[Handle] = []
        with pytest.raises(BoomError), editing(self.model):  # noqa: PT012 (the block is what is tested)
            for _ in range(data.draw(st.integers(0, 3))):
                try:
                    if self.handles and data.draw(st.booleans()):
                        handle = self.handles[data.draw(st.integers(0, len(self.handles) - 1))]
                        handle.undo()
                        note(f"inside: undone {handle!r}\n{self.model}")
                    elif places(self.model) and data.draw(st.booleans()):
                        made.append(inject(self.model, data.draw))
                        note(f"inside: {made[-1]!r}\n{self.model}")
                    else:
                        made.append(plain_edit(self.model, data.draw))
                        note(f"inside: {made[-1]!r}\n{self.model}")
                except EditError:
                    continue
            raise BoomError
        self.did("exception")
        assert not differences(before, snapshot(self.model)), "something is left of a block that failed"
        for handle in made:
            with pytest.raises(EditError):
                handle.undo()

    # What is no edit, and stays

    @rule(dtype=st.sampled_from((torch.float32, torch.float64, torch.bfloat16)))
    def cast(self, dtype: torch.dtype) -> None:
        self.model.to(dtype)
        self.unedited.to(dtype)
        self.is_as_made = False
        self.did(f"to({dtype})")

    @rule(mode=st.booleans())
    def train(self, mode: bool) -> None:
        self.model.train(mode)
        self.unedited.train(mode)
        self.is_as_made = False
        self.did(f"train({mode})")

    @rule()
    def optimise(self) -> None:
        for parameters in (self.parameters, list(self.unedited.parameters())):
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
            if parameters:
                torch.optim.SGD(parameters, lr=0.25).step()
            for parameter in parameters:
                parameter.grad = None
        self.is_as_made = False
        self.did("step of an optimiser")

    @precondition(lambda self: len(places(self.model)) > 0)
    @rule(data=st.data(), trained=st.booleans())
    def freeze(self, data: st.DataObject, trained: bool) -> None:
        chosen = data.draw(st.lists(st.sampled_from([place.path for place in places(self.model)]), min_size=1))
        selected = select(self.model, lambda match: match.path in chosen)
        try:
            selected.unfreeze() if trained else selected.freeze()
        except SelectionError:
            return
        for mine, other in zip(self.parameters, self.unedited.parameters(), strict=True):
            other.requires_grad_(mine.requires_grad)
        self.is_as_made = False
        self.did("freeze")

    @rule()
    def save_and_load(self) -> None:
        saved = {key: tensor.clone() for key, tensor in self.model.state_dict().items()}
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(1)
        assert self.model.load_state_dict(saved, strict=True)
        loaded = self.model.state_dict()
        assert all(torch.equal(loaded[key], tensor) for key, tensor in saved.items())
        # What is there of the bare model loads into it, under its own keys.
        bare = {key: tensor for key, tensor in saved.items() if key in self.bare}
        assert not copy.deepcopy(self.unedited).load_state_dict(bare, strict=False).unexpected_keys
        self.did("save and load")

    @rule()
    def save_and_load_files(self) -> None:
        saved = {key: tensor.clone() for key, tensor in self.model.state_dict().items()}
        with tempfile.TemporaryDirectory() as folder:
            save(self.model, folder)
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter.add_(1)
            load(self.model, folder)
        assert all(torch.equal(self.model.state_dict()[key], tensor) for key, tensor in saved.items())
        self.did("save and load files")

    # Copies

    @rule(data=st.data(), way=st.sampled_from(("deep", "pickled", "structural")))
    def copy(self, data: st.DataObject, way: str) -> None:
        before, seen = snapshot(self.model), appearance(self.model)
        if way == "deep":
            copied = copy.deepcopy(self.model)
        elif way == "pickled":
            copied = pickle.loads(pickle.dumps(self.model))
        else:
            copied = self.model.structural_copy()
        check(copied)
        assert appearance(copied) == seen
        shared = {id(parameter) for parameter in copied.parameters()} & {id(each) for each in self.model.parameters()}
        assert bool(shared) == (way == "structural" and bool(list(self.model.parameters())))
        adapters: list[Any] = [layer for layer in copied.layers(sl.Composite) if isinstance(layer, Adapter)]
        while adapters:
            chosen = adapters.pop(data.draw(st.integers(0, len(adapters) - 1)))
            try:
                chosen.eject()
            except EditError:
                continue
            check(copied)
            adapters = [
                layer for layer in copied.layers(sl.Composite) if isinstance(layer, Adapter) and layer in adapters
            ]
        assert not differences(before, snapshot(self.model)), "the copy shares structure with the original"
        self.did(f"{way} copy")

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "model"):
            check(self.model, self.keys)

    def teardown(self) -> None:
        if not hasattr(self, "model"):
            return
        while self.handles:
            self.take_back(len(self.handles) - 1)
            check(self.model, self.keys)
        now = snapshot(self.model)
        if self.is_as_made:
            assert not differences(self.at_the_start, now)
        assert not differences(without_tensors(self.at_the_start), without_tensors(now))
        assert appearance(self.model) == appearance(self.unedited)
        assert state(self.model) == state(self.unedited)
