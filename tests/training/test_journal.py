"""The journal: one record a line, and nothing from a future that was undone."""

from __future__ import annotations

from pathlib import Path

from bertkit.training.journal import Journal, draw


def test_rewind_drops_what_is_ahead_and_what_is_cut(tmp_path: Path) -> None:
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


def test_the_picture_is_the_same_for_the_same_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert "<svg" in draw(tmp_path).read_text(encoding="utf-8")
    for step in range(1, 6):
        journal.write({"step": step, "loss": 1.0 / step})
    journal.write({"step": 5, "held_out": {"mlm": 0.2, "nsp": 0.1}})
    picture = draw(tmp_path).read_text(encoding="utf-8")
    assert picture.count("<path") > 5
    assert len(list(tmp_path.iterdir())) == 2
