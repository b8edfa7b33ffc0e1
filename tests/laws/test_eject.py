"""Law 3, eject is exact, and with it what holds after every step: names are identities, each has one parent."""

from __future__ import annotations

import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from tests.laws.edits import Around, places
from tests.laws.machine import Editing
from tests.laws.snapshots import check, differences, keys_of, snapshot
from tests.laws.trees import leaf, tree

QUIET = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.large_base_example)


def run(examples: int, steps: int) -> None:
    chosen = settings(max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=QUIET)
    run_state_machine_as_test(Editing, settings=chosen)


def test_random_edits_taken_back_in_any_order_leave_the_tree_as_it_was() -> None:
    run(examples=120, steps=12)


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=QUIET)
def test_adapters_that_keep_their_target_are_ejected_in_every_order(data: st.DataObject) -> None:
    model = tree(data.draw)
    if not places(model):
        return
    before, keys = snapshot(model), keys_of(model)
    bare = [place.layer for place in places(model)]
    adapters: list[Around] = []
    for _ in range(data.draw(st.integers(1, 6))):
        # Side by side and around one another, not around what another one brought.
        found = [place for place in places(model) if any(place.layer is each for each in (*bare, *adapters))]
        place = data.draw(st.sampled_from(found))
        if list(place.parent).count(place.layer) == 1:
            adapters.append(Around(place.layer, [leaf(data.draw)], [leaf(data.draw)]).inject(place.parent))
    for adapter in data.draw(st.permutations(adapters)):
        adapter.eject()
        check(model, keys)
    assert not differences(before, snapshot(model))


@pytest.mark.long
def test_long_random_edits_taken_back_in_any_order_leave_the_tree_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    run(examples=900, steps=20)
    with capsys.disabled():
        sys.stdout.write(f"\n{sum(Editing.steps.values())} steps: {dict(Editing.steps.most_common())}\n")
