"""Scores of answers against labels; the formulas are scikit-learn's and scipy's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike


def classification(predicted: Sequence[str], actual: Sequence[str]) -> dict[str, float]:
    """accuracy, F1 and Matthews correlation.

    F1 is that of the second label in sorted order when there are two (GLUE's "1"), else the
    mean over labels (macro).
    """
    from sklearn import metrics

    labels = sorted({*predicted, *actual})
    binary = len(labels) == 2
    f1 = metrics.f1_score(
        actual,
        predicted,
        average="binary" if binary else "macro",
        pos_label=labels[1] if binary else 1,
        zero_division=0.0,
    )
    matthews = metrics.matthews_corrcoef(actual, predicted) if len(labels) > 1 else 0.0
    return {
        "accuracy": float(np.mean(np.asarray(predicted) == np.asarray(actual))),
        "f1": float(f1),
        "matthews": float(matthews),
    }


def regression(predicted: ArrayLike, actual: ArrayLike) -> dict[str, float]:
    """Pearson's and Spearman's correlation; 0 where either side is constant."""
    from scipy import stats

    x, y = np.asarray(predicted, dtype=np.float64), np.asarray(actual, dtype=np.float64)
    if len(x) < 2 or np.ptp(x) == 0.0 or np.ptp(y) == 0.0:
        return {"pearson": 0.0, "spearman": 0.0}
    return {
        "pearson": float(stats.pearsonr(x, y).statistic),
        "spearman": float(stats.spearmanr(x, y).statistic),
    }
