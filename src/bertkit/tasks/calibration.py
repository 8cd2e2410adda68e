"""What dev teaches a classifier that has learned: when to give a label, and how sure to be."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

F = TypeVar("F", bound=np.floating)

CONFIDENCE_BINS = 15
"""Of confidence, as in Guo et al. 2017."""

MAX_LOG_TEMPERATURE = 6.0
"""The natural logarithm of the highest temperature, and of the inverse of the lowest."""


def best_threshold(scores: NDArray[np.float64], expected: NDArray[np.bool_]) -> float:
    """The probability from which to give a label so that its F1 on these rows is highest.

    It lies halfway between two rows; of several the nearest to 0.5, which it is where no row has
    the label. Shapes: (N,) both. Source: Yang 2001, "A study of thresholding strategies for text
    categorization" (SCut).
    """
    if not expected.any():
        return 0.5
    order = np.argsort(-scores, kind="stable")
    ordered, right = scores[order], np.cumsum(expected[order])
    last = np.append(np.flatnonzero(np.diff(ordered) < 0), len(ordered) - 1)  # of equal scores
    f1 = 2 * right[last] / (last + 1 + expected.sum())
    below = np.append(ordered, 0.0)[last + 1]
    thresholds = (ordered[last] + below) / 2
    best = thresholds[f1 == f1.max()]
    return float(best[np.abs(best - 0.5).argmin()])


def fit_temperature(probabilities: NDArray[np.float64], targets: NDArray[np.int64]) -> float:
    """What to divide logits by so that these labels are likeliest.

    One more row for each label is imagined, so that few rows, all of them right, do not make the
    model certain (Platt 1999, section 2.2). Shapes: (N, L), (N,).
    Source: Guo et al. 2017, "On Calibration of Modern Neural Networks", section 4.2.
    """
    logits = _logits(probabilities)
    count, labels = logits.shape
    wanted = np.full((count, labels), 1.0 / (count + labels))
    wanted[np.arange(count), targets] += count / (count + labels)
    told = (wanted * logits).sum()
    low, high = (
        -MAX_LOG_TEMPERATURE,
        MAX_LOG_TEMPERATURE,
    )  # the logarithm of the inverse temperature
    for _ in range(60):
        middle = (low + high) / 2
        # the slope of the negative log-likelihood, which is convex in the inverse temperature
        slope = (softmax(logits * np.exp(middle)) * logits).sum() - told
        low, high = (middle, high) if slope < 0 else (low, middle)
    return float(np.exp(-(low + high) / 2))


def tempered(probabilities: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    """Probabilities with their logits divided by a temperature. Shapes: (N, L) -> (N, L)."""
    return softmax(_logits(probabilities) / temperature)


def calibration_error(confidence: NDArray[np.float64], right: NDArray[np.bool_]) -> float:
    """How far confidence is from the share of right answers: expected calibration error.

    The mean difference in 15 bins of equal width, each as heavy as it has rows. Shapes: (N,) both.
    Source: Guo et al. 2017, equation 3.
    """
    bins = np.minimum((confidence * CONFIDENCE_BINS).astype(np.int64), CONFIDENCE_BINS - 1)
    off = np.bincount(bins, confidence - right, minlength=CONFIDENCE_BINS)
    return float(np.abs(off).sum() / len(confidence))


def softmax(logits: NDArray[F]) -> NDArray[F]:
    """Probabilities of labels. Shapes: (N, L) -> (N, L)."""
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True), logits.dtype)


def _logits(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.log(np.maximum(probabilities, 1e-30))
