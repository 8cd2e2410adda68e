"""Metrics that evaluate rankings of documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray


def retrieval_scores(
    retrieved: Sequence[Sequence[str]], grades: Sequence[Mapping[str, int]]
) -> dict[str, float]:
    """Compute ndcg@10, mrr, map, recall@10 and recall@100, each as the mean over queries.

    Args:
        retrieved: Ids of the documents found for each query, best first. mrr and map use all of
            them.
        grades: For each query, the relevance grade of each judged document, by id. A grade of 0 or
            less means not relevant. Each query must have at least one relevant document.

    Returns:
        The metrics by name.

    Source:
        trec_eval, with linear gains.
    """
    rows = [_scores(ids, graded) for ids, graded in zip(retrieved, grades, strict=True)]
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def _scores(ids: Sequence[str], grades: Mapping[str, int]) -> dict[str, float]:
    """Compute the metrics for one query."""
    gains = np.array([max(grades.get(name, 0), 0) for name in ids], dtype=np.float64)
    ideal = np.sort([grade for grade in grades.values() if grade > 0])[::-1]
    ranks = np.flatnonzero(gains) + 1
    return {
        "ndcg@10": _discounted(gains[:10]) / _discounted(ideal[:10]),
        "mrr": float(1 / ranks[0]) if len(ranks) else 0.0,
        "map": float((np.arange(1, len(ranks) + 1) / ranks).sum() / len(ideal)),
        "recall@10": float((ranks <= 10).sum() / len(ideal)),
        "recall@100": float((ranks <= 100).sum() / len(ideal)),
    }


def _discounted(gains: NDArray[np.float64]) -> float:
    """Compute the discounted cumulative gain."""
    return float((gains / np.log2(np.arange(len(gains)) + 2)).sum())
