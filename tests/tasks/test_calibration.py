"""A threshold has the best F1 of all, and a temperature undoes what was done to logits."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from bertkit.tasks.calibration import (
    apply_temperature,
    best_threshold,
    calibration_error,
    fit_temperature,
)


def f1(scores: NDArray[np.float64], expected: NDArray[np.bool_], threshold: float) -> float:
    given = scores >= threshold
    return float(2 * (given & expected).sum() / max(given.sum() + expected.sum(), 1))


@pytest.mark.parametrize("seed", range(5))
def test_no_threshold_is_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.random(60).round(2)  # some are equal
    expected = rng.random(60) < scores * 0.6
    threshold = best_threshold(scores, expected)
    others = [f1(scores, expected, one) for one in np.linspace(0, 1, 1001)]
    assert f1(scores, expected, threshold) == pytest.approx(max(others))
    assert f1(scores, expected, 0.5) < max(others)  # the control


def test_without_rows_of_a_label_the_threshold_is_a_half() -> None:
    assert best_threshold(np.array([0.1, 0.9]), np.array([False, False])) == 0.5
    assert best_threshold(
        np.array([0.2, 0.4, 0.9]), np.array([False, True, True])
    ) == pytest.approx(0.3)


def drawn(temperature: float, rows: int = 4000) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Probabilities that are too sure by this temperature, and labels drawn from honest ones."""
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(rows, 3)) * 2
    honest = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    labels = (rng.random((rows, 1)) > honest.cumsum(-1)).sum(-1)
    return apply_temperature(honest, 1 / temperature), labels


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_temperature_is_found_again(temperature: float) -> None:
    probabilities, labels = drawn(temperature)
    fitted = fit_temperature(probabilities, labels)
    assert fitted == pytest.approx(temperature, rel=0.1)
    after = apply_temperature(probabilities, fitted)
    right = after.argmax(-1) == labels
    assert calibration_error(after.max(-1), right) < 0.03
    if temperature > 1:
        assert calibration_error(probabilities.max(-1), right) > 0.1  # the control
    assert (after.argmax(-1) == probabilities.argmax(-1)).all()


def test_few_rows_that_are_right_do_not_make_certain() -> None:
    sure = np.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]])
    fitted = fit_temperature(sure, np.array([0, 1, 0]))
    assert 0.5 < apply_temperature(sure, fitted).max() < 0.95


def test_the_error_is_that_of_a_count() -> None:
    confidence, right = np.array([0.91, 0.93, 0.55]), np.array([True, False, True])
    by_hand = (abs(0.91 + 0.93 - 1) + abs(0.55 - 1)) / 3  # two are in the bin from 13/15 on
    assert calibration_error(confidence, right) == pytest.approx(by_hand)
    assert calibration_error(np.array([1.0]), np.array([True])) == 0.0
