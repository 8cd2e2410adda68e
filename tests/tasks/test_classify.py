"""Labelled rows: which column is what, and what task they pose."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bertkit.data.tables import rows
from bertkit.errors import DataError
from bertkit.tasks.classify import Classify, Columns, Example, choose_columns, examples


def table(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "rows.tsv"
    path.write_text("".join(line.replace("|", "\t") + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("lines", "columns"),
    [
        (["text|label", "a day|x"], Columns("text", "label")),
        (["label|text", "x|a day"], Columns("text", "label")),
        (["idx|sentence|label", "1|a day|x"], Columns("sentence", "label")),
        (
            ["sentence1|sentence2|label", "a|b|x"],
            Columns("sentence1", "label", "sentence2"),
        ),
        (["question|sentence|label", "a|b|x"], Columns("question", "label", "sentence")),
        (["question1|question2|label", "a|b|x"], Columns("question1", "label", "question2")),
        (
            ["premise|hypothesis|gold_label", "a|b|x"],
            Columns("premise", "gold_label", "hypothesis"),
        ),
        (
            ["Quality|#1 ID|#2 ID|#1 String|#2 String", "1|7|8|a|b"],
            Columns("#1 String", "Quality", "#2 String"),
        ),
        # without a header: fewest different values is the label, most letters the text
        (["a fine day of rain|yes", "a grim day|no", "a day|no"], Columns("1", "2")),
        (["yes|a fine day of rain", "no|a grim day", "no|a day"], Columns("2", "1")),
    ],
)
def test_columns_are_guessed(lines: list[str], columns: Columns, tmp_path: Path) -> None:
    assert choose_columns(rows(table(tmp_path, *lines))) == columns


def test_named_columns_win(tmp_path: Path) -> None:
    found = rows(table(tmp_path, "text|text2|label|score", "a|b|x|1.5"))
    assert choose_columns(found, text="text2") == Columns("text2", "label")
    assert choose_columns(found, label="score", pair="text2") == Columns("text", "score", "text2")
    assert choose_columns(found, labelled=False) == Columns("text", None)


def test_what_was_guessed_can_be_said() -> None:
    assert str(Columns("a", "b", "c")) == "text = 'a', pair = 'c', label = 'b'"
    assert str(Columns("a", None)) == "text = 'a'"


def test_a_column_that_is_not_there(tmp_path: Path) -> None:
    found = rows(table(tmp_path, "text|label", "a|x"))
    for role in ("text", "pair", "label"):
        with pytest.raises(DataError, match=r"rows\.tsv: no column 'labl'; did you mean 'label'"):
            choose_columns(found, **{role: "labl"})


def test_a_column_that_cannot_be_told(tmp_path: Path) -> None:
    found = rows(table(tmp_path, "text", "a"))
    with pytest.raises(DataError, match=r"which column is the label; name it with --label"):
        choose_columns(found)


def test_examples_keep_their_line(tmp_path: Path) -> None:
    path = table(tmp_path, "text|label", "a| x ", "", "b|y")
    found = rows(path)
    assert examples(found, choose_columns(found)) == [
        Example("a", None, "x", 2),
        Example("b", None, "y", 4),
    ]
    found = rows(table(tmp_path, "text|label", "a|x", "b|"))
    with pytest.raises(DataError, match=r"rows\.tsv:3: no label"):
        examples(found, choose_columns(found))


def labelled(*labels: str) -> list[Example]:
    return [Example("a", None, label, line) for line, label in enumerate(labels, 2)]


def test_labels_are_sorted_as_people_count() -> None:
    assert Classify.of(labelled("10", "9", "2", "2")).labels == ("2", "9", "10")
    assert Classify.of(labelled("no", "yes", "3", "10")).labels == ("3", "10", "no", "yes")


def test_quantities_are_told_from_names() -> None:
    assert Classify.of(labelled("1.5", "2")).regression
    assert not Classify.of(labelled("1", "2")).regression
    assert not Classify.of(labelled("1.0", "2.0")).regression
    assert not Classify.of(labelled("1.5", "high")).regression
    assert not Classify.of(labelled("1.5", "nan")).regression
    assert Classify.of(labelled("1", "2"), regression=True).regression
    assert Classify.of(labelled("1.5", "2"), regression=False).labels == ("1.5", "2")
    assert Classify.of(labelled("1.5", "2")).labels == ("score",)


def test_labels_that_do_not_fit() -> None:
    with pytest.raises(DataError, match="only one label, 'x'"):
        Classify.of(labelled("x", "x"))
    task = Classify(("fair", "good"))
    assert task.target(labelled("good")[0], "dev.tsv") == 1
    with pytest.raises(DataError, match=r"dev\.tsv:2: label 'god' is not .* did you mean 'good'"):
        task.target(labelled("god")[0], "dev.tsv")
    number = Classify(("score",))
    assert number.target(labelled("1e-1")[0], "dev.tsv") == 0.1
    for word in ("high", "nan", "inf"):
        with pytest.raises(DataError, match=r"dev\.tsv:2: label .* is not a number"):
            number.target(labelled(word)[0], "dev.tsv")


def test_scores_are_those_of_the_task() -> None:
    outputs = torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 1.0], [0.0, 1.0]])
    scores = Classify(("no", "yes")).score(outputs, labelled("no", "yes", "yes", "yes"))
    assert scores["accuracy"] == 0.75
    assert scores["f1"] == pytest.approx(0.8)  # precision 1, recall 2/3
    assert scores["matthews"] == pytest.approx((1 * 2 - 0 * 1) / (2 * 2 * 1 * 3) ** 0.5)
    line = torch.tensor([[1.0], [2.0], [3.0]])
    scores = Classify(("score",)).score(line, labelled("2", "4", "6"))
    assert scores == pytest.approx({"pearson": 1.0, "spearman": 1.0})
