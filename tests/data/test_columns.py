"""Which column of a labelled file is what: never one of several."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertkit.data.columns import Roles, choose_columns
from bertkit.data.tables import rows
from bertkit.errors import DataError


def table(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "rows.tsv"
    path.write_text("".join(line.replace("|", "\t") + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("lines", "roles"),
    [
        (["text|label", "a day|x"], Roles("text", "label")),
        (["label|text", "x|a day"], Roles("text", "label")),
        (["idx|sentence|label", "1|a day|x"], Roles("sentence", "label")),
        (
            ["sentence1|sentence2|label", "a|b|x"],
            Roles("sentence1", "label", "sentence2"),
        ),
        (["question|sentence|label", "a|b|x"], Roles("question", "label", "sentence")),
        (["question1|question2|label", "a|b|x"], Roles("question1", "label", "question2")),
        (
            ["premise|hypothesis|gold_label", "a|b|x"],
            Roles("premise", "gold_label", "hypothesis"),
        ),
        (
            ["Quality|#1 ID|#2 ID|#1 String|#2 String", "1|7|8|a|b"],
            Roles("#1 String", "Quality", "#2 String"),
        ),
        # without a header: fewest different values is the label, most letters the text
        (["a fine day of rain|yes", "a grim day|no", "a day|no"], Roles("1", "2")),
        (["yes|a fine day of rain", "no|a grim day", "no|a day"], Roles("2", "1")),
    ],
)
def test_columns_are_guessed(lines: list[str], roles: Roles, tmp_path: Path) -> None:
    assert choose_columns(rows(table(tmp_path, *lines))) == roles


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        # fewest different values would be the language
        (
            ["text|intent|lang", "where is it|find|en", "book it|order|en", "wo|find|de"],
            r"which column is the label: it could be 'intent' or 'lang'; name it with label_col",
        ),
        (
            ["sentence_A|sentence_B|relatedness_score|entailment_judgment", "a|b|1.5|NEUTRAL"],
            r"which column is the label: it could be 'relatedness_score' or 'entailment_judgment'",
        ),
        (
            ["qtext|label|atext", "who was it ?|0|it was a man", "who was she ?|1|no one at all"],
            r"which column is the text: it could be 'qtext' or 'atext'; name it with text_column=",
        ),
        (
            ["title|text|label", "a very fine title|x|0"],
            r"'title' beside 'text' could be the second text of a pair; name it with pair_column=",
        ),
        (
            ["gj04|1|*|he went to it", "cj99|0||she saw it there"],
            r"label: it could be '1' or '2' or",
        ),
    ],
)
def test_nothing_is_guessed_among_several(lines: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said):
        choose_columns(rows(table(tmp_path, *lines)))


def test_the_only_column_that_is_left_is_the_label(tmp_path: Path) -> None:
    found = rows(table(tmp_path, "id|text|intent", "1|where is it|find", "2|book it|order"))
    assert choose_columns(found) == Roles("text", "intent")
    found = rows(table(tmp_path, "qtext|label|atext", "who was it ?|0|it was a man"))
    assert choose_columns(found, text="qtext", pair="atext") == Roles("qtext", "label", "atext")
    assert choose_columns(found, text="atext") == Roles("atext", "label")


def test_named_columns_win(tmp_path: Path) -> None:
    found = rows(table(tmp_path, "text|text2|label|score", "a|b|x|1.5"))
    assert choose_columns(found, text="text2") == Roles("text2", "label")
    assert choose_columns(found, label="score", pair="text2") == Roles("text", "score", "text2")
    assert choose_columns(found, labelled=False) == Roles("text", None)


def test_what_was_guessed_can_be_said() -> None:
    assert str(Roles("a", "b", "c")) == "text = 'a', pair = 'c', label = 'b'"
    assert str(Roles("a", None)) == "text = 'a'"


def test_a_column_that_is_not_there(tmp_path: Path) -> None:
    found = rows(table(tmp_path, "text|label", "a|x"))
    for role in ("text", "pair", "label"):
        with pytest.raises(DataError, match=r"rows\.tsv: no column 'labl'; did you mean 'label'"):
            choose_columns(found, **{role: "labl"})


def test_a_column_that_cannot_be_told(tmp_path: Path) -> None:
    found = rows(table(tmp_path, "text", "a"))
    with pytest.raises(
        DataError, match=r"which column is the label: no tab .*; name it with label_column="
    ):
        choose_columns(found)


def test_a_column_has_one_role(tmp_path: Path) -> None:
    table_ = rows(table(tmp_path, "text|sentence1|label", "a fine day|a grim day|x"))
    assert choose_columns(table_, pair="text") == Roles("sentence1", "label", "text")


def test_a_named_column_in_the_first_row_makes_it_the_header(tmp_path: Path) -> None:
    found = rows(table(tmp_path, "body|topic", "a fine day|x"))
    assert found.unnamed
    assert choose_columns(found, text="body") == Roles("body", "topic")
    assert found.rows == [{"body": "a fine day", "topic": "x"}]
    assert "named by the first line" in found.said


IDS = ("ticket_id|body|topic", "17|where is it now|find", "4|book it for me|order", "9|a b c|find")


def test_integers_that_are_all_different_are_no_label(tmp_path: Path) -> None:
    found = rows(table(tmp_path, *IDS))
    assert choose_columns(found) == Roles("body", "topic")
    assert choose_columns(found, label="ticket_id") == Roles("body", "ticket_id")
    alone = rows(table(tmp_path, *(line.rpartition("|")[0] for line in IDS)), header=True)
    with pytest.raises(DataError, match="label: 'ticket_id' holds integers that are all different"):
        choose_columns(alone)


@pytest.mark.parametrize(
    "lines",
    [
        ["body|label", "a b c|1", "b c d|2", "c d e|3"],  # a usual name
        ["body|Score", "a b c|1", "b c d|2", "c d e|3"],
        ["body|stars", "a b c|1", "b c d|2", "c d e|2"],  # one comes again
        ["body|stars", "a b c|1", "b c d|2", "c d e|2.5"],  # one is no integer
        ["body|stars", "a b c|1", "b c d|2"],  # two tell nothing
    ],
)
def test_other_numbers_are_labels(lines: list[str], tmp_path: Path) -> None:
    roles = choose_columns(rows(table(tmp_path, *lines), header=True))
    assert roles == Roles("body", lines[0].partition("|")[2])


def test_one_column_lacks_labels(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("text\na fine day\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"rows have one column, 'text', and labels are lacking"):
        choose_columns(rows(path))
    assert choose_columns(rows(path), labelled=False) == Roles("text", None)
