"""Predictions for rows passed from Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.factories import tiny_folder, tiny_tokenizer

import bertkit
from bertkit.errors import ConfigError, DataError

TEXTS = ["a", "b c", "d d d"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("predict") / "model"
    return tiny_folder(
        directory, tiny_tokenizer("abcd"), "classify", labels=("no", "yes"), length=8
    )


def test_predict_accepts_all_row_types(folder: Path, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    classify = bertkit.pipeline("classify", folder)
    expected = classify(TEXTS)
    table = pandas.DataFrame({"id": [1, 2, 3], "body": TEXTS, "label": ["x", "y", "z"]})
    path = tmp_path / "rows.csv"
    table.to_csv(path, index=False)
    for rows in (TEXTS, table["body"], np.array(TEXTS), [{"text": text} for text in TEXTS]):
        assert bertkit.predict(classify, rows) == expected
        assert classify(rows) == expected
    for rows in (table, path):
        assert bertkit.predict(folder, rows, text_column="body") == expected
    reading = bertkit.Reading(text_column="body")
    assert classify(table, reading=reading) == expected
    assert bertkit.predict(classify, "b c") == expected[1:2]
    assert repr(classify).startswith(f"<TaskPipeline classify of <{folder}: bert, ")
    assert "labels: no, yes" in repr(classify)
    assert (bertkit.frame(expected, table).predicted_label == [a.label for a in expected]).all()


def test_predict_errors_name_the_row_or_keyword(folder: Path) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"body": ["a", None], "other": ["b", "c"]})
    with pytest.raises(DataError, match=r"^rows\.iloc\[1\]: the text is empty; remove the row"):
        bertkit.predict(folder, table, text_column="body")
    with pytest.raises(DataError, match=r"^rows: .*; set text_column="):
        bertkit.predict(folder, table)
    with pytest.raises(DataError, match=r"^rows: no column 'bod'; did you mean 'body'\?"):
        bertkit.predict(folder, table, text_column="bod")
    with pytest.raises(ConfigError, match="txt: predict has no such setting"):
        bertkit.predict(folder, table, txt="body")


def test_predict_reports_truncated_texts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["a", "a b c d a b c d a b"]
    assert [answer.truncated for answer in bertkit.predict(folder, texts)] == [False, True]
    assert "1 of 2 texts were truncated to the maximum length" in capsys.readouterr().err
    with pytest.raises(DataError, match="the limit is 8"):
        bertkit.predict(folder, texts, long="error")


def test_predict_rejects_a_file_name_as_text(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    # The file does not exist, so the string is a text.
    assert len(bertkit.predict(folder, str(path))) == 1
    path.write_text("text\na b\nc\n", encoding="utf-8")
    with pytest.raises(
        DataError, match=r"rows\.csv: expected a text, got the name of a file; pass a pathlib\.Path"
    ):
        bertkit.predict(folder, str(path))
    assert len(bertkit.predict(folder, path)) == 2


def test_step_batching_predicts_all_texts_together(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertkit.recipes.predict_file.ITEMS_PER_CHUNK", 2)
    answer = bertkit.pipeline("classify", folder)
    sizes: list[int] = []

    def answers(self: Any, part: Sequence[Any], long: Any = None) -> list[Any]:
        sizes.append(len(part))
        return [object()] * len(part)

    monkeypatch.setattr(type(answer), "answers", answers)
    for batching, expected in (("sequence", [2, 1]), ("step", [3])):
        monkeypatch.setattr(type(answer.task), "batching", batching)
        assert len(bertkit.predict(answer, TEXTS)) == 3
        assert sizes == expected
        sizes.clear()
