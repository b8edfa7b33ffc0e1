"""A tree under random edits, in any order and taken back in any order that is accepted."""

# Hypothesis draws values that have no static type.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from suture import layers as sl
from suture.layers.edit import editing
from suture.layers.recording import EditError
from suture.surgery.adapter import Adapter
from tests.laws.edits import Handle, inject, places, plain_edit, several
from tests.laws.snapshots import appearance, check, differences, keys_of, snapshot
from tests.laws.trees import tree


class BoomError(Exception):
    """Not an error of Suture's."""


class Editing(RuleBasedStateMachine):
    """Law 3, and with it what must hold after every step."""

    model: sl.Composite

    def __init__(self) -> None:
        super().__init__()
        self.handles: list[Handle] = []

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.model = tree(data.draw)
        self.at_the_start = snapshot(self.model)
        self.keys = keys_of(self.model)
        note(f"{self.model}")

    def made(self, handle: Handle) -> None:
        self.handles.append(handle)
        note(f"{handle!r}\n{self.model}")

    # Edits

    @rule(data=st.data())
    def edit(self, data: st.DataObject) -> None:
        self.made(plain_edit(self.model, data.draw))

    @rule(data=st.data())
    def edit_as_one(self, data: st.DataObject) -> None:
        self.made(several(self.model, data.draw))

    @precondition(lambda self: len(places(self.model)) > 0)
    @rule(data=st.data())
    def inject(self, data: st.DataObject) -> None:
        self.made(inject(self.model, data.draw))

    @precondition(lambda self: len(self.handles) > 0)
    @rule(data=st.data())
    def undo(self, data: st.DataObject) -> None:
        self.take_back(data.draw(st.integers(0, len(self.handles) - 1)))

    def take_back(self, number: int) -> bool:
        before = snapshot(self.model)
        refused: EditError | None = None
        try:
            self.handles[number].undo()
        except EditError as error:
            refused = error
        if refused is not None:
            note(f"refused: {self.handles[number]!r}: {refused}")
            assert number < len(self.handles) - 1, f"the last edit cannot be undone: {refused}"
            assert not differences(before, snapshot(self.model)), "a refused undo changed something"
            return False
        note(f"undone: {self.handles[number]!r}\n{self.model}")

        del self.handles[number]
        return True

    # Failures

    @rule(data=st.data())
    def edit_and_fail(self, data: st.DataObject) -> None:
        before = snapshot(self.model)
        made: list[Handle] = []
        with pytest.raises(BoomError), editing(self.model):  # noqa: PT012 (the block is what is tested)
            for _ in range(data.draw(st.integers(0, 3))):
                if self.handles and data.draw(st.booleans()):
                    handle = self.handles[data.draw(st.integers(0, len(self.handles) - 1))]
                    try:
                        handle.undo()
                    except EditError:
                        continue
                    note(f"inside: undone {handle!r}\n{self.model}")
                elif places(self.model) and data.draw(st.booleans()):
                    made.append(inject(self.model, data.draw))
                    note(f"inside: {made[-1]!r}\n{self.model}")
                else:
                    made.append(plain_edit(self.model, data.draw))
                    note(f"inside: {made[-1]!r}\n{self.model}")
            raise BoomError
        assert not differences(before, snapshot(self.model)), "something is left of a block that failed"
        for handle in made:
            with pytest.raises(EditError):
                handle.undo()

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

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "model"):
            check(self.model, self.keys)

    def teardown(self) -> None:
        if hasattr(self, "model"):
            while self.handles:
                self.take_back(len(self.handles) - 1)
                check(self.model, self.keys)
            assert not differences(self.at_the_start, snapshot(self.model))
