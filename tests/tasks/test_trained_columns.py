"""Tests that column names of training are reused for files that contain them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertkit.data.row_readers import Rows
from bertkit.errors import DataError
from bertkit.tasks.classify import Classify
from bertkit.tasks.examples import read_examples
from bertkit.tasks.task import Reading
from bertkit.tasks.trained_columns import as_learned, columns_in, with_columns

LEARNED = Reading(text_column="body", label_column="is_spam")


@pytest.fixture
def letters(tmp_path: Path) -> Path:
    """Path of a file whose column names are not recognized."""
    path = tmp_path / "letters.csv"
    path.write_text(
        "sender,body,is_spam,remark\n"
        "one of us,win a prize now,yes,seen in the shop\n"
        "one of them,see you at noon,no,seen in the street\n",
        encoding="utf-8",
    )
    return path


def test_config_json_contains_named_columns() -> None:
    settings = Classify(("no", "yes")).settings()
    assert with_columns(settings, Reading()) == settings
    written = with_columns(settings, Reading(label_column="is_spam"))
    assert written["bertkit"]["task"]["columns"] == {"label_column": "is_spam"}
    assert written["bertkit"]["task"]["name"] == "classify"
    assert columns_in(written) == Reading(label_column="is_spam")
    assert columns_in(settings) == columns_in({}) == Reading()
    damaged = {"bertkit": {"task": {"columns": {"label_column": 7}}}}
    assert columns_in(damaged) == Reading()


def test_trained_columns_are_used_if_file_has_them(letters: Path) -> None:
    rows = read_examples(Classify, letters, learned=LEARNED)
    assert [(row.text, row.label) for row in rows] == [
        ("win a prize now", "yes"),
        ("see you at noon", "no"),
    ]
    part, table = Reading(text_column="body", label_column="gone"), Rows.read(letters)
    assert as_learned(Reading(), part, table, labeled=True) == Reading(text_column="body")
    assert as_learned(Reading(), LEARNED, table, labeled=False) == Reading(text_column="body")


def test_trained_columns_precede_default_names(tmp_path: Path) -> None:
    path = tmp_path / "answered.csv"  # predict --out adds a column "label" to the input
    path.write_text("text,is_spam,label\nwin a prize,yes,no\n", encoding="utf-8")
    (row,) = read_examples(Classify, path, learned=Reading(label_column="is_spam"))
    assert row.label == "yes"


def test_named_columns_override_trained_columns(letters: Path) -> None:
    named = Reading(text_column="remark")
    expected = Reading(text_column="remark", label_column="is_spam")
    table = Rows.read(letters)
    assert as_learned(named, LEARNED, table, labeled=True) == expected
    swapped = Reading(text_column="is_spam")
    assert as_learned(swapped, LEARNED, table, labeled=True) == swapped


def test_config_json_keeps_column_numbers(tmp_path: Path) -> None:
    settings = Classify(("no", "yes")).settings()
    learned = columns_in(
        with_columns(settings, Reading(text_column="2", label_column="1", header=False))
    )
    assert learned == Reading(text_column="2", label_column="1")
    path = tmp_path / "plain.csv"
    path.write_text("spam,win a prize now\nham,see you at noon\n", encoding="utf-8")
    rows = read_examples(Classify, path, Reading(header=False), learned=learned)
    assert [row.label for row in rows] == ["spam", "ham"]
    with pytest.raises(DataError, match="or header=False if the first line is data"):
        read_examples(Classify, path, learned=learned)
