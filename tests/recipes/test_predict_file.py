"""Prediction files, which keep all columns of their input."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.factories import tiny_folder, tiny_tokenizer

import bertkit
from bertkit import cli
from bertkit.recipes.predict_file import write_answers
from bertkit.tasks.labeled_text import LabelAnswer, LabelsAnswer

Captured = pytest.CaptureFixture[str]
Predict = Callable[..., Any]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Fine-tune a model that classifies texts of letters."""
    folder = tmp_path_factory.mktemp("predict")
    base = tiny_folder(folder / "base", tiny_tokenizer("abcdefghijklmnopqrstuvwxyz"))
    rows = "".join(f"{letter} {letter}\t{int(letter > 'm')}\n" for letter in "abcxyz")
    (folder / "rows.tsv").write_text(f"text\tlabel\n{rows}", encoding="utf-8")
    words = ["--train", str(folder / "rows.tsv"), "--dev", str(folder / "rows.tsv")]
    words += ["--model", str(base), "--out", str(folder / "out"), "--epochs", "1"]
    assert cli.run(["finetune", "classify", *words]) == 0
    return str(folder / "out")


INPUT = 'id;body;label\n1;"a; b";x\n2;c, d;y\n3;"e\n f";x\n'
COLUMNS = ["id", "body", "label", "predicted_label", "score", "scores.0", "scores.1", "truncated"]


def test_predict_uses_the_column_names_of_training(
    model: str, tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / "in.csv").write_text("body,is_late,more\na b c d,0,a b c d\nx y z z,1,c d e f\n")
    words = ["--file", str(tmp_path / "in.csv"), "--out", str(tmp_path / "out.csv")]
    assert cli.run(["predict", model, *words]) == 2
    assert "set --text-column" in capsys.readouterr().err
    folder = Path(shutil.copytree(model, tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["bertkit"]["task"]["columns"] = {"text_column": "body", "label_column": "is_late"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert cli.run(["predict", str(folder), *words]) == 0
    assert "text = 'body'" in capsys.readouterr().err
    assert cli.run(["evaluate", str(folder), str(tmp_path / "out.csv")]) == 0
    # The predicted columns are not used.
    assert "text = 'body', label = 'is_late'" in capsys.readouterr().err
    (out,) = bertkit.predict(folder, [{"more": "a b", "body": "x y", "is_late": None}])
    assert out == bertkit.pipeline("classify", folder)("x y")


@pytest.mark.parametrize("piped", [False, True])
def test_predict_keeps_input_columns(
    piped: bool, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    (tmp_path / "in.csv").write_text(INPUT, encoding="utf-8")
    words = ["predict", model, "--text-column", "body", "--separator", ";", "--file"]
    words.append("-" if piped else str(tmp_path / "in.csv"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(INPUT.encode())))
    assert cli.run(words) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    out = tmp_path / "out.csv"
    assert cli.run([*words, "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert (printed.out, "out.csv: 3 rows" in printed.err) == ("", True)
    with out.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == COLUMNS
    assert [row["body"] for row in rows] == ["a; b", "c, d", "e\n f"]
    for row, answer in zip(rows, answers, strict=True):
        assert row["predicted_label"] == answer["label"]
        assert float(row["scores.1"]) == pytest.approx(answer["scores"]["1"], abs=1e-6)

    assert cli.run([*words, "--out", str(tmp_path / "out.jsonl")]) == 0
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    first = json.loads(lines[0])
    assert list(first) == [*COLUMNS[:5], "scores", "truncated"]
    assert first["scores"] == pytest.approx(answers[0]["scores"], abs=1e-6)

    capsys.readouterr()
    assert cli.run([*words, "--out", str(tmp_path / "out.tsv")]) == 2
    assert "'e\\n f': .tsv does not support tabs and line breaks" in capsys.readouterr().err
    assert not (tmp_path / "out.tsv").exists()


def test_predict_accepts_named_pair_columns(model: str, tmp_path: Path) -> None:
    lines = "first,second,kind\n" + "".join(f"{a} b,c {a},{a > 'm'}\n" for a in "abcxyz")
    (tmp_path / "in.csv").write_text(lines, encoding="utf-8")
    files = [word for name in ("train", "dev") for word in (f"--{name}", str(tmp_path / "in.csv"))]
    columns = ["--text-column", "first", "--pair-column", "second", "--label-column", "kind"]
    words = ["--model", str(Path(model).parent / "base"), "--out", str(tmp_path / "pairs")]
    assert cli.run(["finetune", "classify", *words, *files, *columns, "--epochs", "1"]) == 0

    (tmp_path / "new.csv").write_text("one,two\na b,c d\ne f,g h\n", encoding="utf-8")
    words = ["--file", str(tmp_path / "new.csv"), "--text-column", "one", "--pair-column", "two"]
    assert (
        cli.run(["predict", str(tmp_path / "pairs"), *words, "--out", str(tmp_path / "o.csv")]) == 0
    )
    rows = list(csv.DictReader((tmp_path / "o.csv").read_text(encoding="utf-8").splitlines()))
    assert [(row["one"], row["two"]) for row in rows] == [("a b", "c d"), ("e f", "g h")]


def test_predict_keeps_json_values(model: str, tmp_path: Path) -> None:
    rows = [{"text": "a b", "n": 7, "more": {"x": [1, None]}}, {"text": "c", "n": None, "more": 1}]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    for kind in ("jsonl", "tsv"):
        words = ["--file", str(tmp_path / "in.jsonl"), "--out", str(tmp_path / f"out.{kind}")]
        assert cli.run(["predict", model, *words]) == 0
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    for line, row in zip(lines, rows, strict=True):
        assert {**json.loads(line), **row} == json.loads(line)
    table = [line.split("\t") for line in (tmp_path / "out.tsv").read_text().splitlines()]
    assert table[1][:3] == ["a b", "7", '{"x": [1, null]}']
    assert table[2][1] == ""


def test_predict_accepts_texts_on_stdin(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("a b\nc\n"))
    assert cli.run(["predict", model, "--out", str(tmp_path / "a.csv")]) == 0
    lines = (tmp_path / "a.csv").read_text().splitlines()
    assert lines[0] == "text,label,score,scores.0,scores.1,truncated"
    assert [line.split(",")[0] for line in lines[1:]] == ["a b", "c"]


def test_dash_reads_texts_from_stdin(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    answers = []
    for words in ([], ["-"]):
        monkeypatch.setattr(sys, "stdin", io.StringIO("a b\ny z\n"))
        assert cli.run(["predict", model, *words]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]
    assert answers[0].count("\n") == 2
    monkeypatch.setattr(sys, "stdin", None)  # stdin is closed, for example by `<&-`.
    assert cli.run(["predict", model]) == 2
    assert "stdin: no text; pass one text per line" in capsys.readouterr().err


def test_predict_reports_truncated_rows(model: str, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "in.csv").write_text("text\na\n" + "b " * 99 + "\n", encoding="utf-8")
    words = ["predict", model, "--file", str(tmp_path / "in.csv")]
    assert cli.run(words) == 0
    printed = capsys.readouterr()
    assert [json.loads(line)["truncated"] for line in printed.out.splitlines()] == [False, True]
    assert "1 of 2 texts were truncated to the maximum length" in printed.err
    assert cli.run([*words, "--long", "error"]) == 2


@pytest.mark.parametrize(
    ("out", "message"),
    [("a.xlsx", "must be a .csv, .tsv or .jsonl file"), ("in.csv", "already exists")],
)
def test_predict_rejects_invalid_output_paths(
    out: str, message: str, tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / "in.csv").write_text("text\na\n", encoding="utf-8")
    words = ["--file", str(tmp_path / "in.csv"), "--out", str(tmp_path / out)]
    assert cli.run(["predict", "nowhere", *words]) == 2
    assert message in capsys.readouterr().err


def test_write_answers_stores_entities_as_json(tmp_path: Path) -> None:
    from bertkit.tasks.tag import TagAnswer

    answered = [({"where": "a.txt:1"}, TagAnswer([], ["a"], ["O"]))]
    assert write_answers(tmp_path / "a.csv", answered) == 1
    assert (tmp_path / "a.csv").read_text() == (
        'where,entities,words,tags\na.txt:1,[],"[""a""]","[""O""]"\n'
    )


def test_write_answers_stores_labels_as_list(tmp_path: Path) -> None:
    answers = [LabelsAnswer(["x", "y"], {"x": 0.5, "y": 0.75}), LabelsAnswer([], {"x": 0, "y": 0})]
    write_answers(tmp_path / "a.csv", [({"text": "t"}, answer) for answer in answers])
    assert (tmp_path / "a.csv").read_text().splitlines() == [
        "text,labels,scores.x,scores.y,truncated",
        't,"[""x"", ""y""]",0.5,0.75,false',
        "t,[],0,0,false",
    ]


def test_input_columns_are_not_overwritten(tmp_path: Path) -> None:
    row = {"label": "gold", "scores.a": "mine"}
    write_answers(tmp_path / "a.jsonl", [(row, LabelAnswer("a", 1.0, {"a": 1.0}))])
    held = json.loads((tmp_path / "a.jsonl").read_text())
    assert (held["label"], held["predicted_label"]) == ("gold", "a")
    write_answers(tmp_path / "a.csv", [(row, LabelAnswer("a", 1.0, {"a": 1.0}))])
    assert "predicted_scores.a" in (tmp_path / "a.csv").read_text()


def predicted(model: str, file: Path, out: str, *words: str) -> list[dict[str, Any]]:
    path = file.with_name(out)
    assert cli.run(["predict", model, "--file", str(file), "--out", str(path), *words]) == 0
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    with path.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


def test_second_prediction_keeps_the_first(model: str, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text,label\na b,x\ny z,y\n", encoding="utf-8")
    once = predicted(model, tmp_path / "in.csv", "once.csv")
    twice = predicted(model, tmp_path / "once.csv", "twice.csv", "--text-column", "text")
    for row, first in zip(twice, once, strict=True):
        assert {**row, **first} == row
        assert row["predicted_predicted_label"] == first["predicted_label"]


def test_predict_keeps_parquet_columns(model: str, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {"text": ["a b", "y z"], "label": ["x", "y"], "n": [1, 2], "ok": [True, False]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "in.parquet")
    rows = predicted(model, tmp_path / "in.parquet", "out.csv")
    assert [(row["text"], row["label"], row["n"]) for row in rows] == [
        ("a b", "x", "1"),
        ("y z", "y", "2"),
    ]
    assert rows[0]["predicted_label"] in "01"
    (first, _) = predicted(model, tmp_path / "in.parquet", "out.jsonl")
    assert (first["n"], first["ok"]) == (1, True)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_predict_keeps_fields_of_later_rows(kind: str, model: str, tmp_path: Path) -> None:
    rows = [{"body": "a"}, {"body": "b", "label": 7}]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    words = ("--text-column", "body")
    first, second = predicted(model, tmp_path / "in.jsonl", f"out.{kind}", *words)
    assert first.get("label") in ("", None)
    assert str(second["label"]) == "7"
    assert first["predicted_label"] in ("0", "1")


def test_predict_keeps_a_carriage_return_in_a_cell(model: str, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_bytes(b'text,other\n"c\rd",1\na,2\n')
    rows = predicted(model, tmp_path / "in.csv", "out.csv")
    assert [(row["text"], row["other"]) for row in rows] == [("c\rd", "1"), ("a", "2")]


@pytest.mark.parametrize("out", ["out.jsonl", "out.csv"])
def test_predict_rejects_lone_surrogates_before_writing(
    out: str, model: str, tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n{"text": "b", "more": "\\ud800"}\n')
    words = ["--file", str(tmp_path / "in.jsonl"), "--out", str(tmp_path / out)]
    assert cli.run(["predict", model, *words]) == 2
    assert "in.jsonl:2: lone surrogate" in capsys.readouterr().err
    assert not (tmp_path / out).exists()
