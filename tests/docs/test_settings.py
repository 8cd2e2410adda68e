"""The settings reference and the guides agree with the code."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from bertkit.extensions.serving.limits import Limits
from bertkit.objectives.distill import Terms
from bertkit.recipes import finetune
from bertkit.recipes import model_card as card
from bertkit.recipes.run_file import FREE
from bertkit.tasks import TASKS, find

GUIDES = Path(__file__).parents[2] / "docs" / "guide"
GUIDE = (GUIDES / "pretrain.md").read_text(encoding="utf-8")
TUNING = (GUIDES / "fine-tuning.md").read_text(encoding="utf-8")


def section(page: str, title: str) -> str:
    """Return the text between a heading and the next heading, or "" if the heading is missing."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", page, re.M | re.S)
    return found[1] if found else ""


def test_settings_reference_describes_every_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(GUIDES.parent / "_ext")
    site_reference = importlib.import_module("site_reference")
    page = site_reference.settings()
    assert re.findall(r"^\| `.*\|\s*\|$", page, re.M) == []
    tables = {"Fine-tuning": finetune.Finetune, "Server limits": Limits, "Distillation": Terms}
    for title, kind in tables.items():
        rows = re.findall(r"^\| `(\w+)", section(page, title), re.M)
        assert set(kind.__struct_fields__) <= set(rows), title


def test_task_table_matches_classes_and_policies() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section(TUNING, "The tasks").splitlines()
        if line.startswith("| `")
    ]
    documented = {row[0].strip("`"): (row[5].strip("`"), row[6].replace("`", "")) for row in rows}
    assert documented == {name: (card.AUTO[name], ", ".join(find(name).long)) for name in TASKS}


@pytest.mark.parametrize(("page", "free"), [(GUIDE, FREE), (TUNING, finetune.FREE)])
def test_settings_free_on_resume_are_documented(page: str, free: tuple[str, ...]) -> None:
    sentence = re.search(r"may\s+differ when a run is resumed: (.*?)\.\s", page, re.S)
    assert sentence is not None
    assert tuple(re.findall(r"`(\w+)`", sentence[1])) == free


def test_section_ends_at_next_heading() -> None:
    page = "## one\nA.\n### two\nB.\n"
    assert section(page, "one") == "A.\n"
    assert section(page, "two") == "B.\n"
    assert section(page, "three") == ""
