"""Scores of rankings compared with trec_eval."""

from __future__ import annotations

import numpy as np
import pytest

from bertkit.extensions.search.retrieval_metrics import retrieval_scores


def test_retrieval_scores_match_trec_eval() -> None:
    pytrec = pytest.importorskip("pytrec_eval", reason="pip install 'bertkit[dev]'")
    rng = np.random.default_rng(0)
    rankings, grades = [], []
    for _ in range(50):
        names = [f"d{i}" for i in rng.permutation(300)]
        rankings.append(names[: rng.integers(0, 200)])
        judged = rng.choice(names, 20, replace=False)
        grades.append({str(name): int(rng.integers(-1, 4)) for name in judged} | {"elsewhere": 1})
    bertkit_scores = retrieval_scores(rankings, grades)
    measures = {"ndcg_cut.10", "recip_rank", "map", "recall.10,100"}
    evaluator = pytrec.RelevanceEvaluator({str(i): g for i, g in enumerate(grades)}, measures)
    runs = {
        str(i): {name: float(-rank) for rank, name in enumerate(names)}
        for i, names in enumerate(rankings)
    }
    trec_scores = evaluator.evaluate(runs)
    trec_names = {
        "ndcg@10": "ndcg_cut_10",
        "mrr": "recip_rank",
        "map": "map",
        "recall@10": "recall_10",
        "recall@100": "recall_100",
    }
    for name, trec_name in trec_names.items():
        rows = [trec_scores.get(str(i), {}).get(trec_name, 0.0) for i in range(len(rankings))]
        assert bertkit_scores[name] == pytest.approx(np.mean(rows), abs=1e-6), name
