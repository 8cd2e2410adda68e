"""Tests of the decision threshold of two labels: set, optimized on dev, saved and applied."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.factories import tiny_folder, tiny_tokenizer

import bertkit
from bertkit.errors import ConfigError
from bertkit.pipelines import answering
from bertkit.tasks.calibration import best_threshold
from bertkit.tasks.classify import Classify
from bertkit.tasks.labeled_text import ClassifyOptions, LabelExample
from bertkit.tasks.task import Feature, by_example
from bertkit.text.encoding import Encoding

ROWS = [(f"{a} {b}", "spam" if a == "d" else "ham") for a in "abcd" for b in "abcd"]
TEXTS = [text for text, _ in ROWS]


def answers_of(task: Classify, positive: list[float]) -> list[Any]:
    """Return the answers if the second label has these probabilities."""
    examples = [LabelExample("a") for _ in positive]
    features = [[Feature(Encoding.of_ids(np.array([1])), i)] for i in range(len(positive))]
    rows = [np.log([[1 - p, p]]).astype(np.float32) for p in positive]
    return task.answers(by_example(examples, features, rows), torch.nn.Identity())


def build_task(*labels: str, **options: Any) -> Classify:
    return Classify.from_examples(
        [LabelExample("a", None, label) for label in labels], ClassifyOptions(**options)
    )


@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.9])
def test_second_label_is_predicted_at_or_above_threshold(threshold: float) -> None:
    positive = [0.1, 0.3, 0.6, 0.95]
    answers = answers_of(build_task("ham", "spam", threshold=threshold), positive)
    assert [a.label for a in answers] == ["spam" if p >= threshold else "ham" for p in positive]
    for answer, p in zip(answers, positive, strict=True):
        assert answer.score == pytest.approx(p if answer.label == "spam" else 1 - p, abs=1e-6)


def test_more_probable_label_is_predicted_without_threshold() -> None:
    answers = answers_of(build_task("ham", "spam"), [0.1, 0.49, 0.51])
    assert [answer.label for answer in answers] == ["ham", "ham", "spam"]


@pytest.mark.parametrize("calibrate", [False, True])
def test_dev_optimizes_the_threshold(calibrate: bool) -> None:
    task = build_task("ham", "spam", tune_threshold=True, calibrate=calibrate)
    positive = [0.05, 0.1, 0.2, 0.3, 0.35, 0.4]
    dev = [LabelExample("a", None, "spam" if p > 0.25 else "ham") for p in positive]
    before = answers_of(task, positive)
    tuned = task.calibrated(before, dev)
    assert tuned.chosen_on(task)
    after = answers_of(tuned, positive)
    assert task.score(before, dev)["f1"] == 0.0
    assert tuned.score(after, dev)["f1"] == 1.0
    assert tuned.calibrated(after, dev) is tuned
    assert tuned.uncalibrated() == task.options
    if not calibrate:
        expected = best_threshold(np.array(positive), np.array(positive) > 0.25)
        assert tuned.options.thresholds[1] == pytest.approx(expected, abs=1e-6)
    again = Classify.restore(tuned.labels, json.loads(json.dumps(tuned.settings())))
    assert [a.label for a in answers_of(again, positive)] == [a.label for a in after]


def test_threshold_and_its_optimization_cannot_be_combined() -> None:
    with pytest.raises(ConfigError, match="tune_threshold cannot be combined with threshold"):
        build_task("ham", "spam", tune_threshold=True, threshold=0.3)


@pytest.mark.parametrize("options", [{"threshold": 0.05}, {"tune_threshold": True}])
def test_predict_evaluate_and_pipeline_apply_threshold(
    options: dict[str, Any], tmp_path: Path
) -> None:
    base = tiny_folder(tmp_path / "base", tiny_tokenizer("abcd"), dropout=0.0)
    examples = [LabelExample(text, None, label, text) for text, label in ROWS]
    out = tmp_path / "out"
    scores = bertkit.finetune(
        "classify", base, train=examples, dev=examples, out=out, epochs=1, batch_size=4,
        precision="fp32", learning_rate=1e-4, **options,
    )  # fmt: skip
    name = "best_f1" if "tune_threshold" in options else "f1"
    answer = answering(out)
    assert isinstance(answer.task, Classify)
    least = answer.task._binary_threshold()
    assert least is not None
    predicted = bertkit.predict(out, TEXTS)
    expected = ["spam" if prediction.scores["spam"] >= least else "ham" for prediction in predicted]
    assert [prediction.label for prediction in predicted] == expected
    argmax = [max(prediction.scores, key=prediction.scores.__getitem__) for prediction in predicted]
    assert argmax != expected  # control
    evaluated = bertkit.evaluate(out, examples)
    assert evaluated["f1"] == pytest.approx(scores[name])
    assert [prediction.label for prediction in answer(TEXTS)] == expected


def test_an_exported_model_applies_the_threshold(tmp_path: Path) -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason="pip install 'bertkit[export]'")
    from bertkit.extensions.export.export import export

    model = tiny_folder(
        tmp_path / "model", tiny_tokenizer("abcd"), "classify", labels=("ham", "spam"), spread=0.3
    )
    plain = [answer.scores["spam"] for answer in bertkit.predict(model, TEXTS)]
    least = sorted(plain)[5]
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    options = {"pairs": False, "threshold": round(least - 1e-4, 6)}
    config["bertkit"] = {"task": {"name": "classify", "options": options}}
    (model / "config.json").write_text(json.dumps(config), encoding="utf-8")
    export(model, out=tmp_path / "exported", task="classify")
    labels = [answer.label for answer in bertkit.predict(tmp_path / "exported", TEXTS)]
    assert labels == [answer.label for answer in bertkit.predict(model, TEXTS)]
    assert labels.count("ham") == 5


def test_scores_of_two_labels_equal_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.metrics", reason="pip install 'bertkit[dev]'")
    random = np.random.default_rng(0)
    for rows in (2, 5, 40):
        for _ in range(20):
            actual = np.append(random.integers(0, 2, rows - 2), [0, 1])
            positive = np.round(random.random(rows), random.integers(1, 3)) * 0.98 + 0.01
            task = build_task("ham", "spam", threshold=0.3)
            answers = answers_of(task, positive.tolist())
            examples = [LabelExample("a", None, ("ham", "spam")[side]) for side in actual]
            scores = task.score(answers, examples)
            values = [answer.scores["spam"] for answer in answers]
            predicted = [answer.label == "spam" for answer in answers]
            assert scores["roc_auc"] == pytest.approx(sklearn.roc_auc_score(actual, values))
            assert scores["average_precision"] == pytest.approx(
                sklearn.average_precision_score(actual, values)
            )
            assert scores["balanced_accuracy"] == pytest.approx(
                sklearn.balanced_accuracy_score(actual, predicted)
            )
            assert set(scores) == set(task.score_names)


def test_rows_with_one_label_have_scores() -> None:
    task = build_task("ham", "spam")
    scores = task.score(answers_of(task, [0.2, 0.7]), [LabelExample("a", None, "ham")] * 2)
    assert (scores["balanced_accuracy"], scores["roc_auc"]) == (0.5, 0.5)
    assert scores["average_precision"] == 0.0
    assert not set(build_task("a", "b", "c").score_names) & {"roc_auc", "average_precision"}


def test_epochs_are_chosen_by_ranking_score(tmp_path: Path) -> None:
    base = tiny_folder(tmp_path / "base", tiny_tokenizer("abcd"))
    examples = [LabelExample(text, None, label, text) for text, label in ROWS]
    scores = bertkit.finetune(
        "classify", base, train=examples, dev=examples, out=tmp_path / "out", epochs=2,
        batch_size=8, precision="fp32", metric="roc_auc",
    )  # fmt: skip
    record = json.loads((tmp_path / "out" / "scores.json").read_text(encoding="utf-8"))
    assert record["metric"] == "roc_auc"
    assert scores["roc_auc"] == max(epoch["roc_auc"] for epoch in record["epochs"])
