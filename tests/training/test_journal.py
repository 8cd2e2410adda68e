"""Records of the journal, rewinding, and damaged lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertkit.errors import TrainingError
from bertkit.training.journal import Journal, skipped_lines


def test_rewind_removes_later_and_incomplete_records(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert journal.records() == []
    for step in range(1, 6):
        journal.write({"step": step, "loss": 1.0 / step})
    with journal.path.open("a") as file:
        file.write('{"step": 6, "lo')
    journal.rewind(3)
    assert [r["step"] for r in journal.records()] == [1, 2, 3]
    assert journal.path.read_text().endswith("}\n")
    journal.write({"step": 4, "loss": 0.5})
    assert [r["step"] for r in journal.records()] == [1, 2, 3, 4]
    journal.rewind(0)
    assert journal.path.read_text() == ""


def test_read_skips_and_counts_damaged_lines(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    lines = [b'{"step": 1, "loss": NaN}', b"\xff", b"[]", b'{"step": "2"}', b'{"step": 2}', b'{"s']
    journal.path.write_bytes(b"\n".join(lines))
    records, damaged = journal.read()
    assert [record["step"] for record in records] == [1, 2]
    assert damaged == 3  # The incomplete last line is not counted.
    assert journal.rewind(1) == 3
    assert journal.rewind(1) == 0
    assert skipped_lines(journal.path, 3).endswith("journal.jsonl: skipped 3 damaged lines")


def test_rewind_rejects_a_directory(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").mkdir()
    with pytest.raises(TrainingError, match=r"journal\.jsonl: not a file"):
        Journal(tmp_path).rewind(0)
