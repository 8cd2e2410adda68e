"""Examples: how a file was read is said, and a run knows them again by content."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertkit.errors import DataError
from bertkit.tasks.classify import Classify, Example
from bertkit.tasks.examples import read_examples, take_examples


def tsv(path: Path, *rows: str) -> Path:
    path.write_text("text\tlabel\n" + "".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


def test_what_was_guessed_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tsv(tmp_path / "a.tsv", "one\tyes", "two\tno")
    assert [row.label for row in read_examples(Classify, file)] == ["yes", "no"]
    err = capsys.readouterr().err
    assert "2 rows" in err
    assert "text = 'text', label = 'label'" in err


def test_the_same_rows_have_the_same_hash(tmp_path: Path) -> None:
    file = tsv(tmp_path / "a.tsv", "one\tyes")
    moved = tsv(tmp_path / "b.tsv", "one\tyes")
    train, dev = take_examples(Classify, file, moved, None)
    assert train.sha256 == dev.sha256
    assert train.file != dev.file
    rows, other = [Example("one", None, "yes")], [Example("one", None, "no")]
    train, dev = take_examples(Classify, rows, other, None)
    assert train.sha256 != dev.sha256
    assert take_examples(Classify, train, dev, None) == (train, dev)
    with pytest.raises(DataError, match="dev: no rows"):
        take_examples(Classify, rows, [], None)
