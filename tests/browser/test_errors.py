"""Error list in a browser: a cell of the confusion matrix shows only its errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.recipes.test_error_report import labeled


def test_confusion_cell_lists_only_its_errors(tab: Any, tmp_path: Path) -> None:
    labeled(tmp_path, [("a", "a"), ("a", "b"), ("a", "b"), ("c", "a")], ("a", "b", "c"))
    tab.goto((tmp_path / "errors.html").as_uri())
    rows = tab.locator("#errors tbody tr:visible")
    assert rows.count() == 3
    tab.get_by_role("button", name="2: a predicted as b").click()
    assert rows.locator("td:nth-child(4)").all_inner_texts() == ["b (1.00)", "b (1.00)"]
    assert tab.locator("#shown").inner_text().startswith("2 listed of 2: a predicted as b")
    tab.get_by_role("button", name="1: a wrongly given").click()
    assert rows.locator("th").all_inner_texts() == ["dev.tsv:3"]
    assert tab.locator('[aria-pressed="true"]').count() == 1
    tab.get_by_role("button", name="Show the worst errors").click()
    assert rows.count() == 3
