"""The list of errors: all that is wrong, the worst first, safe to open."""

import json
from pathlib import Path

from bertkit.recipes.mistakes import MOST, write_mistakes
from bertkit.tasks.classify import Classify, Example, LabelAnswer, Options

TASK = Classify(("x", "y"), Options())


def listed(folder: Path, *rows: tuple[str, str, float]) -> tuple[list[dict[str, object]], str]:
    """The list of answers x to these texts, each with its label and the chance of x."""
    examples = [
        Example(t, None, label, f"data/dev.tsv:{i}") for i, (t, label, _) in enumerate(rows)
    ]
    answers = [LabelAnswer("x", chance, {"x": chance, "y": 1 - chance}) for *_, chance in rows]
    write_mistakes(folder, TASK, answers, examples)
    lines = (folder / "errors.jsonl").read_text(encoding="utf-8").splitlines()
    page = (folder / "errors.html").read_text(encoding="utf-8")
    return [json.loads(line) for line in lines], page


def test_the_worst_stand_first_and_nothing_right_is_listed(tmp_path: Path) -> None:
    rows, page = listed(tmp_path / "new", ("a", "x", 0.6), ("b", "y", 0.6), ("c", "y", 0.9))
    assert [row["where"] for row in rows] == ["data/dev.tsv:2", "data/dev.tsv:1"]
    assert rows[0] == {
        "where": "data/dev.tsv:2",
        "shown": "c",
        "expected": "y",
        "answered": "x (0.90)",
        "severity": 0.9,
    }
    assert "2 of 3 answers" in page
    row = '<th scope="row">dev.tsv:{}</th><td>{}</td><td>y</td><td>x'
    assert page.index(row.format(2, "c")) < page.index(row.format(1, "b"))


def test_texts_are_text_on_the_page(tmp_path: Path) -> None:
    _, page = listed(tmp_path, ("<script>alert(1)</script> & co", "y", 0.9))
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; co" in page


def test_the_page_stays_short_and_the_rows_complete(tmp_path: Path) -> None:
    rows, page = listed(tmp_path, *((str(i), "y", 0.9) for i in range(MOST + 50)))
    assert page.count("<tr>") == MOST + 1
    assert len(rows) == MOST + 50
