"""Columns of a labeled file are recognized by their names, or named by the user."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bertkit.data.columns import LABELS, PAIRS, TEXTS, Roles, choose_columns, choose_text
from bertkit.data.row_readers import Rows
from bertkit.errors import DataError


def table(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "rows.tsv"
    path.write_text("".join(line.replace("|", "\t") + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("header", "roles"),
    [("text|label", Roles("text", "label")), ("Label|Text", Roles("Text", "Label")),
     ("idx|sentence|label", Roles("sentence", "label")), ("text|labels", Roles("text", "labels")),
     ("title|text|label", Roles("text", "label")), ("text|intent|label", Roles("text", "label")),
     ("sentence1|sentence2|label", Roles("sentence1", "label", "sentence2")),
     ("question|sentence|label", Roles("question", "label", "sentence")),
     ("id|question1|question2|is_duplicate", Roles("question1", "is_duplicate", "question2")),
     ("premise|hypothesis|gold_label", Roles("premise", "gold_label", "hypothesis")),
     ("Quality|#1 ID|#2 ID|#1 String|#2 String", Roles("#1 String", "Quality", "#2 String"))],
)  # fmt: skip
def test_choose_columns_recognizes_names(header: str, roles: Roles, tmp_path: Path) -> None:
    row = "|".join("a" for _ in header.split("|"))
    assert choose_columns(Rows.read(table(tmp_path, header, row))) == roles


NO_HEADER = r", or header=False if the first line is data \(columns: "


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["text|intent|lang", "where is it|find|en"],
         r"a known name for the label; set label_column= \(columns: text, intent, lang"),
        (["body|label", "a fine day|x"],
         r"no column has a known name for the text; set text_column=" + NO_HEADER),
        (
            ["ham|see you at noon, and not a moment later", "spam|win a prize"],
            r"rows\.tsv: no column has a known name for the text and the label; set "
            r"text_column= and label_column="
            + NO_HEADER
            + r"ham, see you at noon, and not a mom\.\.\.\)",
        ),
        (["sentence_A|sentence_B|relatedness_score|entailment_judgment", "a|b|1.5|NEUTRAL"],
         r"the label could be 'relatedness_score' or 'entailment_judgment'; set label_"),
    ],
)  # fmt: skip
def test_columns_without_a_known_name_must_be_named(
    lines: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        choose_columns(Rows.read(table(tmp_path, *lines)))


def test_columns_without_a_header_must_be_named(tmp_path: Path) -> None:
    found = Rows.read(table(tmp_path, "ham|see you at noon", "spam|win a prize"), header=False)
    with pytest.raises(DataError, match=r"text_column= and label_column= \(columns: 1, 2\)"):
        choose_columns(found)
    assert choose_columns(found, text="2", label="1") == Roles("2", "1")


def test_named_columns_precede_known_names(tmp_path: Path) -> None:
    found = Rows.read(table(tmp_path, "text|text2|label|score", "a|b|x|1.5"))
    assert choose_columns(found, text="text2") == Roles("text2", "label")
    assert choose_columns(found, label="score", pair="text2") == Roles("text", "score", "text2")
    assert choose_columns(found, labeled=False) == Roles("text", None)
    assert choose_text(found) == "text"
    assert choose_text(found, "text2") == "text2"


def test_text_column_without_pair_selects_single_texts(tmp_path: Path) -> None:
    found = Rows.read(table(tmp_path, "sentence1|sentence2|label", "a|b|x"))
    assert choose_columns(found, text="sentence2") == Roles("sentence2", "label")


def test_roles_have_readable_text() -> None:
    assert str(Roles("a", "b", "c")) == "text = 'a', pair = 'c', label = 'b'"
    assert str(Roles("a", None)) == "text = 'a'"


@pytest.mark.parametrize("role", ["text", "pair", "label"])
def test_choose_columns_rejects_a_missing_column(role: str, tmp_path: Path) -> None:
    found = Rows.read(table(tmp_path, "text|label", "a|x"))
    with pytest.raises(DataError, match=r"rows\.tsv: no column 'labl'; did you mean 'label'"):
        choose_columns(found, **{role: "labl"})


def test_column_numbers_require_header_false(tmp_path: Path) -> None:
    found = Rows.read(table(tmp_path, "ham|see you at noon", "spam|win a prize"))
    message = r"no column '2'; set header=False to name columns by number \(columns: ham, see"
    with pytest.raises(DataError, match=message):
        choose_columns(found, text="2", label="1")


@pytest.mark.parametrize("header", ["Text\ttext\tlabel", "text\tLABEL\tLabel"])
def test_columns_that_differ_only_in_case_must_be_named(header: str, tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(f"{header}\na\tb\tc\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"a.tsv: .* two names differ only in case"):
        choose_columns(Rows.read(path))
    first, second, third = header.split("\t")
    assert choose_columns(Rows.read(path), text=first, label=third) == Roles(first, third)
    assert choose_columns(Rows.read(path), text=second, label=third) == Roles(second, third)


def test_pair_column_is_not_the_text(tmp_path: Path) -> None:
    found = Rows.read(table(tmp_path, "text|sentence1|label", "a fine day|a grim day|x"))
    assert choose_columns(found, pair="text") == Roles("sentence1", "label", "text")


def test_rows_without_labels_have_only_a_text(tmp_path: Path) -> None:
    found = Rows.read(table(tmp_path, "text", "a fine day"))
    with pytest.raises(DataError, match=r"no column has a known name for the label"):
        choose_columns(found)
    assert choose_columns(found, labeled=False) == Roles("text", None)


def test_guide_lists_recognized_names() -> None:
    guide = Path(__file__).parents[2] / "docs" / "guide" / "fine-tuning.md"
    text = guide.read_text("utf-8")
    for role, names in (("text", TEXTS), ("second text", PAIRS), ("label", ("label", *LABELS))):
        row = next(line for line in text.splitlines() if line.startswith(f"| {role} | `--"))
        assert tuple(re.findall("`([^`]+)`", row.split("|")[3])) == names
