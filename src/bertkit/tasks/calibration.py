"""Calibration of a trained classifier: its thresholds and temperature are optimized on dev."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

F = TypeVar("F", bound=np.floating)

CONFIDENCE_BINS = 15
"""Number of bins into which confidences are divided, as in Guo et al. 2017."""

MAX_LOG_TEMPERATURE = 6.0
"""Natural logarithm of the highest temperature. The lowest temperature is the inverse of it."""


def best_threshold(scores: NDArray[np.float64], expected: NDArray[np.bool_]) -> float:
    """Return the threshold with which the predictions of a label have the highest F1.

    The threshold is halfway between the probabilities of two examples. Among equally good
    thresholds, the threshold nearest to 0.5 is returned. If no example has the label, the threshold
    is 0.5.

    Args:
        scores: Probability of the label for each example.
        expected: Whether each example has the label.

    Returns:
        The lowest probability with which the label is predicted.

    Shapes:
        scores and expected: (N,).

    Source:
        Yang 2001, "A study of thresholding strategies for text categorization" (SCut).
    """
    if not expected.any():
        return 0.5
    order = np.argsort(-scores, kind="stable")
    ordered, right = scores[order], np.cumsum(expected[order])
    # Index of the last example of each group with equal scores.
    last = np.append(np.flatnonzero(np.diff(ordered) < 0), len(ordered) - 1)
    f1 = 2 * right[last] / (last + 1 + expected.sum())
    below = np.append(ordered, 0.0)[last + 1]
    thresholds = (ordered[last] + below) / 2
    best = thresholds[f1 == f1.max()]
    return float(best[np.abs(best - 0.5).argmin()])


def fit_temperature(probabilities: NDArray[np.float64], targets: NDArray[np.int64]) -> float:
    """Return the temperature with which the targets have the highest likelihood.

    Targets are smoothed as if each label had one more example. Otherwise, a model would become
    certain because of a few correct predictions (Platt 1999, section 2.2).

    Args:
        probabilities: Probabilities of the labels, without a temperature.
        targets: Index of the label of each example.

    Returns:
        The temperature by which to divide the logits.

    Shapes:
        probabilities: (N, L); targets: (N,).

    Source:
        Guo et al. 2017, "On Calibration of Modern Neural Networks", section 4.2.
    """
    logits = _logits(probabilities)
    count, labels = logits.shape
    smoothed = np.full((count, labels), 1.0 / (count + labels))
    smoothed[np.arange(count), targets] += count / (count + labels)
    expected = (smoothed * logits).sum()
    # Find the minimum by bisection over the logarithm of the inverse temperature. This is possible
    # because the negative log-likelihood is convex in the inverse temperature.
    low, high = -MAX_LOG_TEMPERATURE, MAX_LOG_TEMPERATURE
    for _ in range(60):
        middle = (low + high) / 2
        slope = (softmax(logits * np.exp(middle)) * logits).sum() - expected
        low, high = (middle, high) if slope < 0 else (low, middle)
    return float(np.exp(-(low + high) / 2))


def apply_temperature(
    probabilities: NDArray[np.float64], temperature: float
) -> NDArray[np.float64]:
    """Return the probabilities that result from dividing the logits by a temperature.

    Args:
        probabilities: Probabilities of the labels.
        temperature: The temperature.

    Shapes:
        probabilities: (N, L); returns (N, L).
    """
    return softmax(_logits(probabilities) / temperature)


def calibration_error(confidence: NDArray[np.float64], right: NDArray[np.bool_]) -> float:
    """Compute the expected calibration error over 15 bins of equal width.

    Args:
        confidence: Probability of each prediction.
        right: Whether each prediction is right.

    Returns:
        The mean absolute difference between the confidence and the accuracy of a bin, weighted by
        the number of examples in the bin.

    Shapes:
        confidence and right: (N,).

    Source:
        Guo et al. 2017, equation 3.
    """
    bins = np.minimum((confidence * CONFIDENCE_BINS).astype(np.int64), CONFIDENCE_BINS - 1)
    gaps = np.bincount(bins, confidence - right, minlength=CONFIDENCE_BINS)
    return float(np.abs(gaps).sum() / len(confidence))


def softmax(logits: NDArray[F]) -> NDArray[F]:
    """Compute the softmax over the last dimension, in the precision of the logits."""
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True), logits.dtype)


def _logits(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.log(np.maximum(probabilities, 1e-30))
