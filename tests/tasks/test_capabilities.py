"""Optional base classes of tasks."""

from __future__ import annotations

import pytest

from bertkit import tasks
from bertkit.tasks.capabilities import Calibrated

CALIBRATED = [name for name in tasks.TASKS if issubclass(tasks.find(name), Calibrated)]


@pytest.mark.parametrize("name", CALIBRATED)
def test_uncalibrated_keeps_options_of_a_new_task(name: str) -> None:
    task = tasks.find(name)()
    assert isinstance(task, Calibrated)
    assert task.uncalibrated() == task.options
    assert not task.chosen_on(task)


def test_calibrated_tasks_are_classify_and_answer() -> None:
    assert CALIBRATED == ["answer", "classify"]
