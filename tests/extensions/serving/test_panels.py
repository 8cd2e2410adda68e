"""The questions of the page "Ask": what its two boxes become."""

from __future__ import annotations

import pytest

from bertkit import tasks
from bertkit.errors import DataError
from bertkit.extensions.serving.panels import PANELS, task_panel

OF_LINES = [name for name, panel in PANELS.items() if "a line each" in panel.other]


@pytest.mark.parametrize("name", OF_LINES)
def test_a_box_of_lines_must_not_be_empty(name: str) -> None:
    two, three = (PANELS[name].items("one", box) for box in (" b \n\nc\n", "b\nc\nd"))
    assert str(two) == str(PANELS[name].items("one", "b\nc")) != str(three)
    with pytest.raises(DataError, match="second box is empty"):
        PANELS[name].items("one", " \n ")


@pytest.mark.parametrize("name", tasks.TASKS)
def test_a_tasks_own_item_comes_back_from_its_boxes(name: str) -> None:
    task = tasks.find(name)
    panel, item = task_panel(task), task.example_item
    text, other = (item, "") if isinstance(item, str) else item
    lines = other if isinstance(other, str) else "\n".join(other)
    expected = item if isinstance(item, str) else (text, other if other is lines else [*other])
    assert list(panel.items(text, lines)) == [expected]
