"""Conversion of panel fields to items of pipelines."""

from __future__ import annotations

import pytest

from bertkit.errors import DataError
from bertkit.extensions.serving.panels import PANELS

LINE_PANELS = [name for name, panel in PANELS.items() if "a line each" in panel.other]


@pytest.mark.parametrize("name", LINE_PANELS)
def test_panel_rejects_an_empty_field_of_lines(name: str) -> None:
    two, three = (PANELS[name].items("one", box) for box in (" b \n\nc\n", "b\nc\nd"))
    assert str(two) == str(PANELS[name].items("one", "b\nc")) != str(three)
    with pytest.raises(DataError, match="second box is empty"):
        PANELS[name].items("one", " \n ")
