"""Errors of several rows are reported together."""

from __future__ import annotations

import re

import pytest

from bertkit.data.row_errors import BadRows, log_errors, log_messages, read_each, shorten_list
from bertkit.errors import DataError

Captured = pytest.CaptureFixture[str]


def halved(number: int) -> int:
    if number % 2:
        raise DataError(f"a.csv:{number}: odd; give an even one")
    return number // 2


def test_read_each_reports_all_bad_rows() -> None:
    assert read_each(halved, [2, 4]) == [1, 2]
    assert read_each(halved, []) == []
    with pytest.raises(DataError, match=r"^a\.csv:3: odd; give an even one$") as error:
        read_each(halved, [2, 3])
    assert not isinstance(error.value, BadRows)
    several = "a.csv:1: odd; give an even one (2 rows cannot be used: a.csv:1, a.csv:3)"
    with pytest.raises(BadRows, match=f"^{re.escape(several)}$"):
        read_each(halved, [1, 2, 3])


def test_read_each_reports_first_of_many_errors() -> None:
    rows = iter(range(1, 10**9, 2))
    with pytest.raises(BadRows, match=r"1,000 or more rows .*: a\.csv:1, .* and 995 more\)$"):
        read_each(halved, rows)
    # Reading stops after 1,000 errors.
    assert next(rows) == 2001
    assert shorten_list("abcde") == "a, b, c, d, e"
    assert shorten_list("abcdefg") == "a, b, c, d, e and 2 more"


def test_bad_rows_are_logged(capsys: Captured) -> None:
    with pytest.raises(BadRows), log_errors():
        read_each(halved, [1, 2, 3])
    assert capsys.readouterr().err == (
        "a.csv:1: odd; give an even one\na.csv:3: odd; give an even one\n"
    )
    with log_errors():
        assert read_each(halved, [2]) == [1]
    log_messages(["x"] * 103, "left out: ")
    lines = capsys.readouterr().err.splitlines()
    assert (len(lines), lines[0], lines[-1]) == (101, "left out: x", "… and 3 more")
