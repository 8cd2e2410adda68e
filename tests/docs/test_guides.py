"""The guide to families shows the code of its file."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guide" / "add-a-family.md").read_text(encoding="utf-8")
FILE = (ROOT / "src" / "bertkit" / "families" / "distilbert.py").read_text(encoding="utf-8")


def test_family_guide_shows_complete_file() -> None:
    blocks = re.findall(r"```\n(.*?)```", GUIDE, re.S)
    assert [block for block in blocks if block not in FILE] == []
    shown = sum(block.count("\n") for block in blocks)
    assert shown > 0.6 * FILE.count("\n")
