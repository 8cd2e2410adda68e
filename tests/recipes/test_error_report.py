"""Error reports: order, escaping, and the confusion matrix."""

import json
import re
from pathlib import Path

import pytest

from bertkit.recipes import error_report as mistakes
from bertkit.recipes.error_report import PAIR_ERRORS, SHOWN_ERRORS, write_mistakes
from bertkit.tasks.classify import Classify
from bertkit.tasks.confusion import label_report
from bertkit.tasks.labeled_text import ClassifyOptions, LabelAnswer, LabelExample

TASK = Classify(("x", "y"), ClassifyOptions())


def report_of(folder: Path, *rows: tuple[str, str, float]) -> tuple[list[dict[str, object]], str]:
    """Return the error report if x is predicted for each (text, label, probability of x)."""
    examples = [
        LabelExample(t, None, label, f"data/dev.tsv:{i}") for i, (t, label, _) in enumerate(rows)
    ]
    answers = [LabelAnswer("x", chance, {"x": chance, "y": 1 - chance}) for *_, chance in rows]
    write_mistakes(folder, TASK, answers, examples)
    lines = (folder / "errors.jsonl").read_text(encoding="utf-8").splitlines()
    page = (folder / "errors.html").read_text(encoding="utf-8")
    return [json.loads(line) for line in lines], page


def test_report_lists_only_errors_by_severity(tmp_path: Path) -> None:
    rows, page = report_of(tmp_path / "new", ("a", "x", 0.6), ("b", "y", 0.6), ("c", "y", 0.9))
    assert [row["where"] for row in rows] == ["data/dev.tsv:2", "data/dev.tsv:1"]
    assert rows[0] == {
        "where": "data/dev.tsv:2",
        "shown": "c",
        "expected": "y",
        "answered": "x (0.90)",
        "severity": 0.9,
    }
    assert "2 of 3 predictions" in page
    row = '<th scope="row">dev.tsv:{}</th><td class="full" data-name="text">{}</td>'
    assert page.index(row.format(2, "c")) < page.index(row.format(1, "b"))


def test_page_escapes_texts(tmp_path: Path) -> None:
    _, page = report_of(tmp_path, ("<script>alert(1)</script> & co", "y", 0.9))
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; co" in page


def test_page_is_limited_and_rows_are_complete(tmp_path: Path) -> None:
    rows, page = report_of(tmp_path, *((str(i), "y", 0.9) for i in range(SHOWN_ERRORS + 50)))
    assert page.count("<tr>") == SHOWN_ERRORS + 1
    assert len(rows) == SHOWN_ERRORS + 50


def labeled(folder: Path, pairs: list[tuple[str, str]], labels: tuple[str, ...]) -> str:
    """Return the page of (expected, predicted) rows, ordered by increasing severity."""
    task = Classify(labels, ClassifyOptions())
    examples = [
        LabelExample(f"text {i}", None, e, f"dev.tsv:{i}") for i, (e, _) in enumerate(pairs)
    ]
    answers = [
        LabelAnswer(given, 1.0, dict.fromkeys(labels, 0.5 - i / 10000))
        for i, (_, given) in enumerate(pairs)
    ]
    report = label_report(pairs, labels)
    write_mistakes(folder, task, answers, examples, report)
    return (folder / "errors.html").read_text(encoding="utf-8")


def test_matrix_cells_describe_the_rows_they_list(tmp_path: Path) -> None:
    pairs = [("a", "a"), ("a", "b"), ("a", "b"), ("c", "a")]
    page = labeled(tmp_path, pairs, ("a", "b", "c"))
    buttons = dict(re.findall(r'data-pair="([^"]+)" aria-label="([^"]+)"', page))
    assert buttons == {
        "0-*": "2: a missed",
        "*-0": "1: a wrongly given",
        "*-1": "2: b wrongly given",
        "2-*": "1: c missed",
        "0-1": "2: a predicted as b",
        "2-0": "1: c predicted as a",
    }
    assert re.findall(r'<tr data-pairs="([^"]+)"', page) == ["2-0", "0-1", "0-1"]


def test_page_contains_rare_confusions(tmp_path: Path) -> None:
    pairs = [("a", "b")] * (PAIR_ERRORS + 5) + [("b", "a")] * (SHOWN_ERRORS + 40)
    page = labeled(tmp_path, pairs, ("a", "b"))
    assert page.count('data-pairs="1-0"') == SHOWN_ERRORS
    assert page.count('data-pairs="0-1" data-more hidden') == PAIR_ERRORS
    assert f"the {SHOWN_ERRORS} worst" in page


def test_many_labels_show_most_confused_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mistakes, "MAX_MATRIX_LABELS", 3)
    names = tuple("abcd")
    page = labeled(tmp_path, [(n, n) for n in names] + [("a", "d")] * 2, names)
    assert "Confusion matrix" not in page
    assert "Most confused labels" in page
    assert '<th scope="row">a</th><td>d</td><td class="number" data-name="rows"><button' in page
