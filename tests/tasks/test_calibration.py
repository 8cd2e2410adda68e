"""Tests of decision thresholds, temperature scaling and calibration error."""

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
def test_best_threshold_maximizes_f1(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.random(60).round(2)  # some scores are equal
    expected = rng.random(60) < scores * 0.6
    threshold = best_threshold(scores, expected)
    candidates = [f1(scores, expected, candidate) for candidate in np.linspace(0, 1, 1001)]
    assert f1(scores, expected, threshold) == pytest.approx(max(candidates))
    assert f1(scores, expected, 0.5) < max(candidates)  # control


def test_best_threshold_is_half_without_positive_rows() -> None:
    assert best_threshold(np.array([0.1, 0.9]), np.array([False, False])) == 0.5
    assert best_threshold(
        np.array([0.2, 0.4, 0.9]), np.array([False, True, True])
    ) == pytest.approx(0.3)


def sample_miscalibrated(
    temperature: float, rows: int = 4000
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return probabilities that are miscalibrated by this temperature, and sampled labels."""
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(rows, 3)) * 2
    calibrated = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    labels = (rng.random((rows, 1)) > calibrated.cumsum(-1)).sum(-1)
    return apply_temperature(calibrated, 1 / temperature), labels


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_fit_temperature_recovers_temperature(temperature: float) -> None:
    probabilities, labels = sample_miscalibrated(temperature)
    fitted = fit_temperature(probabilities, labels)
    assert fitted == pytest.approx(temperature, rel=0.1)
    after = apply_temperature(probabilities, fitted)
    right = after.argmax(-1) == labels
    assert calibration_error(after.max(-1), right) < 0.03
    if temperature > 1:
        assert calibration_error(probabilities.max(-1), right) > 0.1  # control
    assert (after.argmax(-1) == probabilities.argmax(-1)).all()


def test_fit_temperature_limits_confidence_with_few_rows() -> None:
    sure = np.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]])
    fitted = fit_temperature(sure, np.array([0, 1, 0]))
    assert 0.5 < apply_temperature(sure, fitted).max() < 0.95


def test_calibration_error_matches_manual_value() -> None:
    confidence, right = np.array([0.91, 0.93, 0.55]), np.array([True, False, True])
    by_hand = (abs(0.91 + 0.93 - 1) + abs(0.55 - 1)) / 3  # two are in the bin from 13/15 on
    assert calibration_error(confidence, right) == pytest.approx(by_hand)
    assert calibration_error(np.array([1.0]), np.array([True])) == 0.0
