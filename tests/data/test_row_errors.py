"""All rows that cannot be used are named at once."""

from __future__ import annotations

import re

import pytest

from bertkit.data.row_errors import BadRows, each_of, show, shown, some
from bertkit.errors import DataError

Captured = pytest.CaptureFixture[str]


def halved(number: int) -> int:
    if number % 2:
        raise DataError(f"a.csv:{number}: odd; give an even one")
    return number // 2


def test_all_are_read_or_all_that_are_bad_are_named() -> None:
    assert each_of(halved, [2, 4]) == [1, 2]
    assert each_of(halved, []) == []
    with pytest.raises(DataError, match=r"^a\.csv:3: odd; give an even one$") as one:
        each_of(halved, [2, 3])
    assert not isinstance(one.value, BadRows)
    several = "a.csv:1: odd; give an even one (2 rows cannot be used: a.csv:1, a.csv:3)"
    with pytest.raises(BadRows, match=f"^{re.escape(several)}$"):
        each_of(halved, [1, 2, 3])


def test_of_many_the_first_are_named() -> None:
    rows = iter(range(1, 10**9, 2))
    with pytest.raises(BadRows, match=r"1,000 or more rows .*: a\.csv:1, .* and 995 more\)$"):
        each_of(halved, rows)
    assert next(rows) == 2001  # no more were read
    assert some("abcde") == "a, b, c, d, e"
    assert some("abcdefg") == "a, b, c, d, e and 2 more"


def test_each_bad_row_is_logged(capsys: Captured) -> None:
    with pytest.raises(BadRows), shown():
        each_of(halved, [1, 2, 3])
    assert capsys.readouterr().err == (
        "a.csv:1: odd; give an even one\na.csv:3: odd; give an even one\n"
    )
    with shown():
        assert each_of(halved, [2]) == [1]
    show(["x"] * 103, "left out: ")
    lines = capsys.readouterr().err.splitlines()
    assert (len(lines), lines[0], lines[-1]) == (101, "left out: x", "… and 3 more")
