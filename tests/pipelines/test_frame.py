"""Tests of data frames of predictions."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from bertkit.errors import DataError
from bertkit.pipelines.fill_mask import Candidate, MaskAnswer
from bertkit.pipelines.frame import frame
from bertkit.tasks.labeled_text import LabelAnswer

ANSWERS = [
    LabelAnswer("good", 0.75, {"good": 0.75, "bad": 0.25}),
    LabelAnswer("bad", 0.5, {"good": 0.5, "bad": 0.5}, truncated=True),
]


def test_frame_has_one_column_per_score() -> None:
    pytest.importorskip("pandas")
    table = frame(ANSWERS, ["a film", "a dull one"])
    assert list(table.columns) == [
        "text",
        "label",
        "score",
        "scores.good",
        "scores.bad",
        "truncated",
    ]
    assert table["label"].tolist() == ["good", "bad"]
    assert table["scores.bad"].tolist() == [0.25, 0.5]
    assert next(iter(frame(ANSWERS).columns)) == "label"
    assert frame(ANSWERS[0], "a film")["text"].tolist() == ["a film"]
    with pytest.raises(DataError, match="1 rows, but 2 predictions"):
        frame(ANSWERS, ["a film"])


def test_frame_keeps_columns_and_index_of_rows() -> None:
    pandas = pytest.importorskip("pandas")
    rows = pandas.DataFrame({"review": ["a", "b"], "label": ["good", "good"]}, index=[7, 3])
    table = frame(ANSWERS, rows)
    assert table.index.tolist() == [7, 3]
    assert (table["label"] == table["predicted_label"]).tolist() == [True, False]
    assert list(rows.columns) == ["review", "label"]
    again = frame(ANSWERS, rows.assign(predicted_label="mine"))
    assert again["predicted_label"].tolist() == ["mine", "mine"]
    assert again["predicted_predicted_label"].tolist() == table["predicted_label"].tolist()
    assert list(frame(ANSWERS, rows["review"]).columns)[:2] == ["review", "label"]
    assert frame(ANSWERS, rows["review"]).index.tolist() == [7, 3]
    dicts = [{"id": 1}, {"id": 2}]
    assert frame(ANSWERS, dicts)["id"].tolist() == [1, 2]
    pairs = frame(ANSWERS, [("a", "b"), ("c", "d")])
    assert list(pairs.columns)[:2] == ["text", "pair"]


@pytest.mark.parametrize(
    ("labels", "values"),
    [(["1", "0"], [1, 0]), (["-1", "10"], [-1, 10]), (["01", "10"], ["01", "10"]),
     (["true", "false"], [True, False]), (["True", "False"], [True, False]),
     (["1.0", "0.0"], [1.0, 0.0]), (["0.5", "-2.0"], [0.5, -2.0]), (["1.0", "1"], ["1.0", "1"]),
     (["True", "yes"], ["True", "yes"]), (["nan", "None"], ["nan", "None"]),
     (["1", "one"], ["1", "one"])],
)  # fmt: skip
def test_frame_restores_label_types(labels: list[str], values: list[object]) -> None:
    pytest.importorskip("pandas")
    assert frame([LabelAnswer(label, 0.5, {}) for label in labels])["label"].tolist() == values
    assert [type(item) for item in frame([LabelAnswer(x, 0.5, {}) for x in labels])["label"]] == [
        type(value) for value in values
    ]


def test_label_types_match_all_labels_and_rows() -> None:
    pytest.importorskip("pandas")
    scores = {"1": 0.2, "2": 0.5, "3+": 0.3}
    answers = [LabelAnswer("2", 0.5, scores), LabelAnswer("1", 0.5, scores)]
    # The labels stay strings, because the label "3+" is not a number.
    assert frame(answers)["label"].tolist() == ["2", "1"]
    answers = [LabelAnswer(label, 0.5, {}) for label in "21"]
    assert frame(answers, {"stars": [2, 1]})["label"].tolist() == [2, 1]
    assert frame(answers, {"stars": ["1", "2"]})["label"].tolist() == ["2", "1"]
    assert frame(answers[:1], "a text")["text"].tolist() == ["a text"]


def test_frame_has_column_for_vectors_and_lists() -> None:
    pytest.importorskip("pandas")
    vectors = np.arange(6, dtype=np.float32).reshape(2, 3)
    table = frame(vectors, ["a", "b"])
    assert table["vector"][1].tolist() == [3, 4, 5]
    masks = [[MaskAnswer(0, [Candidate("cat", 0.5)])]]
    assert frame(masks, ["a [MASK]"])["answer"][0][0]["candidates"][0]["token"] == "cat"


def test_frame_requires_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(DataError, match="pip install pandas"):
        frame(ANSWERS)
