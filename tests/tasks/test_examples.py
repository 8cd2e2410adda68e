"""Tests of reading examples: log messages, content hashes and errors of bad rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertkit.data.row_errors import BadRows
from bertkit.errors import DataError
from bertkit.tasks import similarity
from bertkit.tasks.classify import Classify
from bertkit.tasks.examples import check_examples, read_examples, take
from bertkit.tasks.labeled_text import LabelExample


def tsv(path: Path, *rows: str) -> Path:
    path.write_text("text\tlabel\n" + "".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


def test_read_examples_logs_inferred_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tsv(tmp_path / "a.tsv", "one\tyes", "two\tno")
    assert [row.label for row in read_examples(Classify, file)] == ["yes", "no"]
    err = capsys.readouterr().err
    assert "2 rows" in err
    assert "text = 'text', label = 'label'" in err


def test_equal_rows_have_equal_hash(tmp_path: Path) -> None:
    file = tsv(tmp_path / "a.tsv", "one\tyes")
    moved = tsv(tmp_path / "b.tsv", "one\tyes")
    train, dev = take(Classify, file, None, "train"), take(Classify, moved, None, "dev")
    assert train.sha256 == dev.sha256
    assert train.file != dev.file
    rows, other = [LabelExample("one", None, "yes")], [LabelExample("one", None, "no")]
    train, dev = take(Classify, rows, None, "train"), take(Classify, other, None, "dev")
    assert train.sha256 != dev.sha256
    assert take(Classify, train, None, "train") is train
    with pytest.raises(DataError, match="dev: no rows"):
        take(Classify, [], None, "dev")


def test_read_examples_reports_all_bad_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tsv(tmp_path / "a.tsv", "one\tyes", "two\t", "\tno", "four\tno")
    with pytest.raises(BadRows, match=r"a\.tsv:3: no label.* \(2 rows .*a\.tsv:3, .*a\.tsv:4\)$"):
        read_examples(Classify, file)
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition("a.tsv")[2] for line in lines] == [
        ":3: no label; add a label or remove the row",
        ":4: the text is empty; remove the row",
    ]
    with pytest.raises(
        BadRows, match=r"train\[0\]: no label.* \(2 rows .*: train\[0\], train\[2\]\)"
    ):
        take(Classify, [("one", ""), ("two", "no"), ("three", "")], None, "train")
    assert "\ntrain[2]: no label" in capsys.readouterr().err


def test_check_examples_reports_all_unusable_rows(capsys: pytest.CaptureFixture[str]) -> None:
    task = Classify(("no", "yes"), Classify.Options())
    rows = [LabelExample("a", None, label, f"rows:{i}") for i, label in enumerate("xyz")]
    with pytest.raises(BadRows, match=r"rows:0: label 'x' is not .* \(3 rows cannot be used"):
        check_examples(task, rows)
    assert len(capsys.readouterr().err.splitlines()) == 3
    with pytest.raises(DataError, match=r"rows:0: label 'x' is not [^(]*$"):
        check_examples(task, rows[:1])
    pairs = [
        similarity.SimilarityExample(("a", "b"), None, "1"),
        similarity.SimilarityExample(("a",), None, "2"),
    ]
    with pytest.raises(DataError, match="1 texts, but 2 in"):  # each row is valid separately
        check_examples(
            similarity.Similarity((), similarity.SimilarityOptions(loss="ranking")), pairs
        )
