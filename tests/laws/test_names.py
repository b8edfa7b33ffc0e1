"""Laws 2 and 4: a name is given once, no edit renames another layer, and base weights keep their keys."""

# Hypothesis draws values that have no static type.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from torch import nn

from suture import layers as sl
from suture.layers.recording import EditError
from suture.surgery.selection import select
from tests.laws.edits import Around, Handle, a_place, inject, places, plain_edit
from tests.laws.snapshots import check, keys_of
from tests.laws.trees import leaf, tree


class Naming(RuleBasedStateMachine):
    """Edits some of which nobody can undo any more: what was given up is gone, and nothing has another name."""

    model: sl.Composite

    def __init__(self) -> None:
        super().__init__()
        self.handles: list[Handle] = []
        self.seen: dict[int, tuple[nn.Module, set[str]]] = {}

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.model = tree(data.draw)

    @rule(data=st.data(), kept=st.booleans())
    def edit(self, data: st.DataObject, kept: bool) -> None:
        handle = plain_edit(self.model, data.draw)
        if kept:
            self.handles.append(handle)

    @precondition(lambda self: len(places(self.model)) > 0)
    @rule(data=st.data())
    def inject(self, data: st.DataObject) -> None:
        self.handles.append(inject(self.model, data.draw))

    @precondition(lambda self: len(self.handles) > 0)
    @rule(data=st.data())
    def undo(self, data: st.DataObject) -> None:
        with contextlib.suppress(EditError):
            self.handles.pop(data.draw(st.integers(0, len(self.handles) - 1))).undo()

    @precondition(lambda self: len(self.handles) > 0)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        self.handles.pop(data.draw(st.integers(0, len(self.handles) - 1)))
        # Handles are freed by themselves; the young generations hold what is in a cycle with one.
        gc.collect(1)

    @invariant()
    def names_are_identities(self) -> None:
        if not hasattr(self, "model"):
            return
        check(self.model)
        for place in places(self.model):
            if hasattr(place.layer, "moved"):
                continue
            _, paths = self.seen.setdefault(id(place.layer), (place.layer, set()))
            now = set(paths_of(self.model, place.layer))
            # A shared leaf has several, and one of them may go.
            assert not paths or paths & now, f"{sorted(paths)} became {sorted(now)}"
            paths |= now


def paths_of(model: sl.Composite, layer: nn.Module) -> Iterator[str]:
    return (place.path for place in model.places() if place.layer is layer)


def test_no_edit_renames_a_layer_that_it_did_not_bring() -> None:
    quiet = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)
    chosen = settings(max_examples=40, stateful_step_count=8, deadline=None, suppress_health_check=quiet)
    run_state_machine_as_test(Naming, settings=chosen)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_an_adapted_tree_has_every_key_of_the_bare_one_and_loads_its_weights(data: st.DataObject) -> None:
    model = tree(data.draw)
    bare, keys = {key: tensor.clone() for key, tensor in model.state_dict().items()}, keys_of(model)
    for _ in range(data.draw(st.integers(1, 4))):
        if places(model):
            place = a_place(model, data.draw)
            if list(place.parent).count(place.layer) == 1:
                Around(place.layer, [leaf(data.draw)], [leaf(data.draw)]).inject(place.parent)
    adapted = model.state_dict()
    assert [key for key in adapted if key in bare] == list(bare)
    assert all(keys[identity] <= all_keys for identity, all_keys in keys_of(model).items() if identity in keys)
    assert model.load_state_dict(adapted | bare, strict=True)
    missing, unexpected = model.load_state_dict(bare, strict=False)
    assert unexpected == []
    assert not set(missing) & set(bare)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_name_is_not_given_again_while_its_removal_can_be_undone(data: st.DataObject) -> None:
    model = tree(data.draw)
    if not places(model):
        return
    place = a_place(model, data.draw)
    parent, name = place.slot.home or place.parent, place.slot.name
    edit = select(model, lambda match: match.slot is place.slot).remove()
    # A layer of the same class, whose automatic name it would be.
    added = parent.append(type(name, (sl.Identity,), {})())
    assert parent.node.children.get(name) is None
    added.undo()
    edit.undo()
    assert model[place.path] is place.layer
