"""Tests that documentation and code name next to a promise exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = sorted((ROOT / "src").rglob("*.py"))
TEST = re.compile(r"\btest: (tests/[\w/]+\.py)(?:::(test_\w+))?")


def named_tests() -> list[tuple[str, str]]:
    """Return the file and the function of each test that a page or a module names."""
    texts = (path.read_text(encoding="utf-8") for path in [*PAGES, *MODULES])
    return sorted({found for text in texts for found in TEST.findall(text)})


@pytest.mark.parametrize(("file", "function"), named_tests())
def test_named_test_exists(file: str, function: str) -> None:
    code = (ROOT / file).read_text(encoding="utf-8")
    assert f"def {function or 'test_'}" in code


def test_readme_promises_contain_tests() -> None:
    names = TEST.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(names) >= 6


def test_control_missing_test_is_found() -> None:
    with pytest.raises(FileNotFoundError):
        test_named_test_exists("tests/docs/test_missing.py", "")
    with pytest.raises(AssertionError):
        test_named_test_exists("tests/docs/test_promises.py", "test_no_such_promise")
