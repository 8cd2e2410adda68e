"""Optional base classes of tasks."""

from __future__ import annotations

import pytest

from bertkit import tasks
from bertkit.tasks.capabilities import (
    Calibrated,
    ChanceLevel,
    Labeled,
    NeedsReference,
    UsesDecoder,
    UsesPooling,
    compute_label_report,
)

EXPECTED = {
    Calibrated: {"answer", "classify"},
    Labeled: {"classify", "tag"},
    ChanceLevel: {*tasks.TASKS} - {"chat", "seq2seq"},
    UsesPooling: {"classify", "similarity"},
    UsesDecoder: {"chat", "dpo", "seq2seq"},
    NeedsReference: {"dpo"},
}


@pytest.mark.parametrize("base", EXPECTED)
def test_tasks_inherit_from_expected_bases(base: type) -> None:
    assert {name for name in tasks.TASKS if issubclass(tasks.find(name), base)} == EXPECTED[base]


@pytest.mark.parametrize("name", sorted(EXPECTED[Calibrated]))
def test_uncalibrated_keeps_options_of_new_task(name: str) -> None:
    task = tasks.find(name)()
    assert isinstance(task, Calibrated)
    assert task.uncalibrated() == task.options
    assert not task.chosen_on(task)


def test_compute_label_report_returns_none_without_labels() -> None:
    assert compute_label_report(tasks.find("choose")(), [], []) is None
    assert compute_label_report(tasks.find("tag")(("A", "B")), [], []) is None
