"""Queries and relevance judgments in BEIR and TREC format."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertkit.errors import DataError
from bertkit.extensions.search.judgments import read_judgments, read_queries, select_judged


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_read_queries_accepts_jsonl_and_tsv(tmp_path: Path) -> None:
    lines = '{"_id": 1, "text": " What lifts? "}\n\n{"id": "b", "text": "Why?"}\n'
    assert read_queries(write(tmp_path / "a.jsonl", lines)) == {"1": "What lifts?", "b": "Why?"}
    assert read_queries(write(tmp_path / "a.tsv", "1\tWhat lifts?\nb\tWhy?\tNow?\n")) == {
        "1": "What lifts?",
        "b": "Why?\tNow?",
    }


def test_read_judgments_accepts_beir_and_trec(tmp_path: Path) -> None:
    expected = {"1": {"d 1": 2, "d2": 0}, "2": {"d2": 1}}
    beir = "query-id\tcorpus-id\tscore\n1\td 1\t2\n1\td2\t0\n2\td2\t1\n"
    assert read_judgments(write(tmp_path / "a.tsv", beir)) == expected
    trec = "1 0 d1 2\n1 0 d2 0\n2 0 d2 1\n"
    assert read_judgments(write(tmp_path / "b.txt", trec)) == {
        "1": {"d1": 2, "d2": 0},
        "2": {"d2": 1},
    }


def test_judgments_header_accepts_any_column_order(tmp_path: Path) -> None:
    text = "corpus-id\tscore\tquery-id\nd1\t2\tq1\n"
    assert read_judgments(write(tmp_path / "a.tsv", text)) == {"q1": {"d1": 2}}


def test_judgments_first_line_with_decimal_grade_is_data(tmp_path: Path) -> None:
    assert read_judgments(write(tmp_path / "a.tsv", "q1\td1\t1.0\nq1\td2\t0.0\n")) == {
        "q1": {"d1": 1, "d2": 0}
    }
    assert read_judgments(write(tmp_path / "b", "1 0 12 1.0\n")) == {"1": {"12": 1}}


def test_read_queries_splits_lines_only_at_newlines(tmp_path: Path) -> None:
    text = "what\u2028is\x85this"
    assert read_queries(write(tmp_path / "a.tsv", f"1\t{text}\r\n")) == {"1": text}
    for number in (1, 1.0):
        line = f'{{"id": {number}, "text": "{text}"}}'
        assert read_queries(write(tmp_path / "a.jsonl", line)) == {"1": text}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tsv", "1 no tab", r"a.tsv:1: expected .* got no tab"),
        ("a.tsv", "1\tA\n1\tB", r"a.tsv:2: the query id '1' already exists"),
        ("a.tsv", "1\t ", r"a.tsv:1: the query is empty"),
        ("a.jsonl", '{"id": 1}', r"a.jsonl:1: field 'text' not found"),
        ("a.jsonl", '{"id": 1, "text": null}', r"a.jsonl:1: field 'text' .* got NoneType"),
        ("a.jsonl", '{"id": null, "text": "A"}', r"a.jsonl:1: field 'id' .* got NoneType"),
        ("a.tsv", "1\tA\n1 \tB", r"a.tsv:2: the query id '1' already exists"),
        ("a.csv", "1,A", r"a.csv: unsupported file type"),
    ],
)
def test_read_queries_rejects_invalid_lines(
    name: str, text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        read_queries(write(tmp_path / name, text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 d1 1\n1 d2", r"q:2: expected .* got 2 columns"),
        ("1 d1 1\n1 d2 high", r"q:2: the grade must be an integer, got 'high'"),
        ("1 d1 0.5", r"q:1: the grade must be an integer, got '0.5'"),
        ("1 d1 0 1\n1 d2 0 1", r"q:2: in a file with four columns, .* got 'd2'; use query, 0"),
        ("topic\tpage\tgrade\n1\td1\t1", r"q:1: cannot find .* in topic, page, grade; rename"),
    ],
)
def test_read_judgments_rejects_invalid_lines(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        read_judgments(write(tmp_path / "q", text))


def test_select_judged_keeps_queries_with_relevant_documents() -> None:
    queries = {"1": "a", "2": "b", "3": "c"}
    grades = {"1": {"d": 1}, "2": {"d": 0}, "9": {"d": 1}}
    assert select_judged(queries, grades, Path("q")) == {"1": {"d": 1}}
    with pytest.raises(DataError, match="q: no query has a relevant document"):
        select_judged({"3": "c"}, grades, Path("q"))
