"""Tests of scores per label and the confusion matrix."""

from __future__ import annotations

import numpy as np
import pytest

from bertkit.tasks.confusion import MOST_LABELS, by_label, label_report


def test_label_scores_match_manual_values() -> None:
    pairs = [("a", "a"), ("a", "b"), ("a", "a"), ("b", "b"), ("c", "b")]
    report = label_report(pairs, ("b", "a", "c", "never"))
    assert report is not None
    assert list(report.labels) == ["b", "a", "c"]
    b = report.labels["b"]
    assert (b.precision, b.recall, b.support, b.answered) == (1 / 3, 1.0, 1, 3)
    assert b.f1 == pytest.approx(0.5)
    assert (report.labels["c"].precision, report.labels["c"].f1) == (0.0, 0.0)
    assert report.confusion is not None
    assert report.confusion.labels == ["b", "a", "c"]
    assert report.confusion.counts == [[1, 0, 0], [1, 2, 0], [1, 0, 0]]
    assert report.confused() == [("a", "b", 1), ("c", "b", 1)]


def test_label_scores_equal_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    expected, answered = rng.choice(list("abc"), 200), rng.choice(list("abc"), 200)
    report = label_report(zip(expected.tolist(), answered.tolist(), strict=True), tuple("abc"))
    assert report is not None
    assert report.confusion is not None
    assert sklearn.confusion_matrix(expected, answered).tolist() == report.confusion.counts
    sklearn_scores = sklearn.precision_recall_fscore_support(expected, answered)
    for index, label in enumerate(report.labels.values()):
        scores = (label.precision, label.recall, label.f1, label.support)
        assert scores == pytest.approx([figures[index] for figures in sklearn_scores])


def test_confusion_matrix_counts_entities_and_skips_multilabel() -> None:
    several = label_report([("a", "a"), (None, "b"), ("b", None)], ("a", "b"), compete=False)
    assert several is not None
    assert several.confusion is None
    assert "confusion" not in by_label(several)
    entities = label_report([("PER", "ORG"), ("PER", None), (None, "ORG")], ())
    assert entities is not None
    assert entities.confusion is not None
    assert entities.confusion.labels == ["ORG", "PER", None]
    assert entities.confusion.counts == [[0, 0, 0], [1, 0, 1], [1, 0, 0]]
    missed = label_report([("PER", "PER"), ("PER", None)], ())
    assert missed is not None
    assert missed.confusion is not None  # although no entity has a wrong type
    assert missed.confusion.counts == [[1, 1], [0, 0]]
    assert label_report([], ("a",)) is None


def test_only_answer_is_the_single_predicted_label() -> None:
    def only(*pairs: tuple[str | None, str | None]) -> str | None:
        report = label_report(pairs, ("a", "b"))
        assert report is not None
        return report.only_answer

    assert only(("a", "a"), ("b", "a")) == "a"
    assert only(("a", None), ("b", None)) == ""
    assert only(("a", "b"), ("b", "a")) is None
    assert only(("a", "a"), ("a", "a")) is None  # "a" is the only expected label


def test_console_lines_show_labels_with_lowest_scores() -> None:
    few = label_report([("good", "bad"), ("bad", "bad")], ("bad", "good"))
    assert few is not None
    head, bad, good, confused = few.lines()
    assert head.split() == ["label", "precision", "recall", "f1", "support"]
    assert bad.split() == ["bad", "0.500", "1.000", "0.667", "1"]
    assert good.split() == ["good", "0.000", "0.000", "0.000", "1"]
    assert confused.endswith("good → bad 1 of 1")
    names = [f"{i:02}" for i in range(MOST_LABELS + 5)]
    many = label_report([(n, n) for n in names] + [("16", "15")], names)
    assert many is not None
    assert len(many.lines()) == MOST_LABELS + 3
    assert any(line.startswith("16 ") for line in many.lines())
