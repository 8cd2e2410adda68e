"""Tests that the number of findings of `prose.py` does not rise."""

from __future__ import annotations

import pytest
from tests.architecture.prose import Passage, check, files_in, findings, markdown, python

CEILINGS = {
    "src/bertkit": 0.5, "docs": 0.5, "README.md": 0.0, "CONTRIBUTING.md": 2.0, "CHANGELOG.md": 0.0,
    "benchmarks": 0.5, "examples": 0.0, "tests": 1.0,
}  # fmt: skip
"""Findings per 1,000 words. Lower a number when a text improves."""


@pytest.mark.parametrize("path", CEILINGS)
def test_prose_has_few_findings(path: str) -> None:
    found, words = check(files_in(path))
    assert words > 100
    assert len(found) <= CEILINGS[path] * words / 1000, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The row is told apart by what stands beside it.", 4),
        ("Of those, none is drawn anew.", 3),
        ("Return the rows in the order of the file.", 0),
        ("Run `model told` to continue.", 0),
    ],
)
def test_findings_count_unclear_wordings(text: str, expected: int) -> None:
    assert len(list(findings(Passage(1, text)))) == expected


def test_python_passages_are_docstrings_messages_and_comments() -> None:
    source = (
        '"""Module."""\nasync def f():\n    """The sum."""\n    raise E("a row is told of")  # told'
    )
    texts = [passage.text for passage in python(source)]
    assert texts == ["Module.", "The sum.", "a row is told of", "told"]
    function = [passage for passage in python(source) if passage.is_function]
    assert [list(findings(passage)) for passage in function] == [["The sum.: begin with a verb"]]


def test_markdown_passages_exclude_code() -> None:
    page = "# Title\n\nText.\n\n```python\ntold = 1\n```\n<!-- told -->\n| a | b |\n"
    assert [p.text.strip() for p in markdown(page)] == ["# Title", "Text.", "| a | b |"]
