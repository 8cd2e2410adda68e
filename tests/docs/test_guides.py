"""What the guide to families shows is what the file says."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guide" / "add-a-family.md").read_text(encoding="utf-8")
FILE = (ROOT / "src" / "bertkit" / "families" / "distilbert.py").read_text(encoding="utf-8")


def test_the_guide_shows_the_whole_family() -> None:
    blocks = re.findall(r"```\n(.*?)```", GUIDE, re.S)
    assert [block for block in blocks if block not in FILE] == []
    shown = sum(block.count("\n") for block in blocks)
    assert shown > 0.6 * FILE.count("\n")
