from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.laws.machine import Editing

Editing.TestCase.settings = settings(
    max_examples=300,
    stateful_step_count=10,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)
TestEditing = Editing.TestCase
