"""Tests of multi-label rows: one-hot columns, lists and unsupported separators."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.factories import tiny_folder, tiny_tokenizer

import bertkit
from bertkit.checkpoint.weights import read_tensors
from bertkit.data.labels import join_labels
from bertkit.errors import DataError
from bertkit.tasks.classify import Classify
from bertkit.tasks.labeled_text import ClassifyOptions, LabelExample
from bertkit.tasks.task import Reading

ROWS = [("a b c", []), ("b c d", ["toxic"]), ("d c a", ["insult", "toxic"]), ("c c a", ["insult"])]
ONE_HOT = Reading(label_column="toxic,insult")


def write_one_hot(path: Path, values: tuple[str, str] = ("0", "1")) -> Path:
    lines = ["text,toxic,insult"]
    for text, labels in ROWS:
        lines.append(",".join([text, *(values[n in labels] for n in ("toxic", "insult"))]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("values", [("0", "1"), ("0.0", "1.0"), ("False", "True")])
def test_one_hot_columns_are_parsed_as_label_lists(tmp_path: Path, values: tuple[str, str]) -> None:
    examples, _ = Classify.reader.read(
        write_one_hot(tmp_path / "a.csv", values), ONE_HOT, labeled=True
    )
    assert [(e.text, sorted(json.loads(e.label or ""))) for e in examples] == ROWS
    task = Classify.from_examples(examples, ClassifyOptions())
    assert task.options.multi_label
    assert task.labels == ("insult", "toxic")


def test_one_hot_columns_and_lists_train_equal_models(tmp_path: Path) -> None:
    base = tiny_folder(tmp_path / "base", tiny_tokenizer("abcd"))
    file = write_one_hot(tmp_path / "a.csv")
    lists = tmp_path / "a.jsonl"
    rows = [json.dumps({"text": text, "label": labels}) for text, labels in ROWS]
    lists.write_text("\n".join(rows), encoding="utf-8")
    settings: dict[str, Any] = {"epochs": 1, "batch_size": 2, "precision": "fp32"}
    first = bertkit.finetune(
        "classify", base, train=file, dev=file, out=tmp_path / "one",
        label_column="toxic,insult", **settings,
    )  # fmt: skip
    second = bertkit.finetune(
        "classify", base, train=lists, dev=lists, out=tmp_path / "two", **settings
    )
    assert first == second
    weights = [read_tensors(tmp_path / name) for name in ("one", "two")]
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])
    scores = bertkit.evaluate(tmp_path / "one", file)  # the model records its columns
    assert scores["rows"] == 4


def test_one_hot_columns_reject_unknown_names_and_values(tmp_path: Path) -> None:
    file = write_one_hot(tmp_path / "a.csv")
    with pytest.raises(DataError, match=r"no column 'insulting'; did you mean 'insult'\?"):
        Classify.reader.read(file, Reading(label_column="toxic,insulting"), labeled=True)
    file.write_text(file.read_text().replace("d c a,1,1", "d c a,1,2"), encoding="utf-8")
    with pytest.raises(DataError, match=r"a\.csv:4: expected 0 or 1 in column 'insult', got '2'"):
        Classify.reader.read(file, ONE_HOT, labeled=True)


def test_column_name_can_contain_comma(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text("text\ta,b\nx y z\tgood\nx z y\tbad\n", encoding="utf-8")
    examples, _ = Classify.reader.read(file, Reading(label_column="a,b"), labeled=True)
    assert [e.label for e in examples] == ["good", "bad"]


def examples(*labels: str) -> list[LabelExample]:
    return [LabelExample(f"text {i}", None, label) for i, label in enumerate(labels)]


@pytest.mark.parametrize("label", ["a|b", "a, b", '["a", "b"]', "['a', 'b']", "a b"])
def test_lists_of_labels_warn_without_multi_label(
    label: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Classify.from_examples(examples("a", "b", label, "a c"), ClassifyOptions())
    err = capsys.readouterr().err
    assert err.count("warning: ") == 1
    assert f"{label!r} was read as one label, but 'a' and 'b' are also labels" in err
    assert "set multi_label" in err


def test_empty_names_in_lists_are_rejected() -> None:
    with pytest.raises(DataError, match="expected a list"):
        Classify.from_examples(examples('["a"]', '["b", " "]'), ClassifyOptions())
    assert Classify.from_examples(examples('["a"]', '["b "]'), ClassifyOptions()).labels == (
        "a",
        "b",
    )


@pytest.mark.parametrize("label", ["a, b", "a,b", "a;b", "a b", "b / a"])
def test_other_separators_warn(label: str, capsys: pytest.CaptureFixture[str]) -> None:
    for rows in (examples("a", "b", label), examples("a", "b", label, "a|b")):
        Classify.from_examples(rows, ClassifyOptions(multi_label=True))
        err = capsys.readouterr().err
        assert err.count("warning: ") == 1
        assert f"{label!r} was read as one label" in err
        assert "separate labels with |" in err


def test_rows_with_one_label_each_warn(capsys: pytest.CaptureFixture[str]) -> None:
    Classify.from_examples(examples("a, b", "c, d"), ClassifyOptions(multi_label=True))
    assert "warning: no row has several labels; separate labels with |" in capsys.readouterr().err


@pytest.mark.parametrize("labels", [("a|b", "a"), ('["a"]', '["b"]'), ("a, b|c", "c"), ("[]", "a")])
def test_separated_labels_do_not_warn(
    labels: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    Classify.from_examples(examples(*labels), ClassifyOptions(multi_label=True))
    Classify.from_examples(examples("a, b", "a", "b"), ClassifyOptions(multi_label=False))
    assert capsys.readouterr().err == ""


def test_lists_quote_names_with_commas() -> None:
    assert join_labels(["a", "a, b", "b"]) == "a, 'a, b', b"
