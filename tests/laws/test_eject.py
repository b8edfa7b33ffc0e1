"""Law 3, eject is exact, and with it what holds after every step: names are identities, each has one parent."""

from __future__ import annotations

import sys

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.laws.machine import Editing

QUIET = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.large_base_example)


def run(examples: int, steps: int) -> None:
    chosen = settings(max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=QUIET)
    run_state_machine_as_test(Editing, settings=chosen)


def test_random_edits_taken_back_in_any_order_leave_the_tree_as_it_was() -> None:
    run(examples=120, steps=12)


@pytest.mark.long
def test_long_random_edits_taken_back_in_any_order_leave_the_tree_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    run(examples=900, steps=20)
    with capsys.disabled():
        sys.stdout.write(f"\n{sum(Editing.steps.values())} steps: {dict(Editing.steps.most_common())}\n")
