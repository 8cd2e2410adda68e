"""Scores by hand."""

import math

import pytest

from bertkit import metrics


def test_two_labels_by_hand() -> None:
    # of three "1" two are found, one "0" is taken for "1": precision 2/3, recall 2/3
    scores = metrics.classification(["1", "1", "1", "0", "0"], ["1", "1", "0", "1", "0"])
    assert scores["accuracy"] == pytest.approx(3 / 5)
    assert scores["f1"] == pytest.approx(2 / 3)
    # (tp·tn - fp·fn) / √((tp+fp)(tp+fn)(tn+fp)(tn+fn)) = (2·1 - 1·1) / √(3·3·2·2)
    assert scores["matthews"] == pytest.approx(1 / 6)


def test_more_labels_are_averaged() -> None:
    scores = metrics.classification(["a", "b", "c", "c"], ["a", "b", "c", "b"])
    # f1: a 1, b 2/3, c 2/3
    assert scores["f1"] == pytest.approx((1 + 2 / 3 + 2 / 3) / 3)


def test_one_label_alone_is_no_error() -> None:
    assert metrics.classification(["a", "a"], ["a", "a"])["accuracy"] == 1.0


def test_regression_by_hand() -> None:
    scores = metrics.regression([1.0, 2.0, 3.0], [1.0, 2.0, 9.0])
    assert scores["spearman"] == pytest.approx(1.0)
    # covariance 8, standard deviations √2 and √38
    assert scores["pearson"] == pytest.approx(8 / math.sqrt(2 * 38))


def test_constants_have_no_correlation() -> None:
    assert metrics.regression([1, 1, 1], [1, 2, 3]) == {"pearson": 0.0, "spearman": 0.0}
