"""Evaluation of a search on queries with relevance judgments, and mining of hard negatives."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from bertkit.config import Count
from bertkit.errors import ConfigError, DataError
from bertkit.extensions.search.judgments import read_judgments, read_queries, select_judged
from bertkit.extensions.search.retrieval_metrics import retrieval_scores
from bertkit.extensions.search.searcher import CANDIDATE_PASSAGES, Searcher
from bertkit.extensions.search.store import ID_FIELD, Condition, Hit
from bertkit.nn.precision import Inference
from bertkit.progress import progress
from bertkit.storage import check_unused, writing

SCORED_DOCUMENTS = 1000
"""Number of documents that are scored per query, as in trec_eval. `map` uses all of them. With a
cross-encoder, only the documents that the cross-encoder re-ranks are scored."""

MINED_DOCUMENTS = 100
"""Number of documents per query from which negatives are selected."""

QUERY_BATCH_SIZE = 64
"""Number of queries that are searched together."""


def evaluate_retrieval(
    store: str | Searcher,
    /,
    *,
    queries: Path,
    judgments: Path,
    hybrid: bool = False,
    rerank: str | None = None,
    model: str | None = None,
    precision: Inference = "fp32",
    device: str = "auto",
) -> dict[str, float]:
    """Evaluate search on judged queries: nDCG, MRR, MAP and recall.

    Args:
        store: Directory of the store, or http://host:port/NAME for a collection on a Qdrant server.
        queries: File of queries: .jsonl with the fields id and text, or .tsv with the columns id
            and text.
        judgments: File of relevance judgments. Each line contains query, document and grade, or
            query, 0, document and grade (TREC).
        hybrid: Whether to combine vector search with keyword search.
        rerank: Cross-encoder to re-rank the best passages with. Default: no re-ranking.
        model: Directory or hub id of the store's embedding model. Default: the one that is recorded
            in the store.
        precision: Precision of the computation.
        device: Device, such as cpu or cuda:0. auto selects a GPU if PyTorch finds one.

    Returns:
        ndcg@10, mrr, map, recall@10, recall@100, and the number of evaluated queries. Queries
        without a relevant document are skipped.

    Raises:
        DataError: If no query has a relevant document, or the store contains none of the relevant
            documents.
    """
    searcher = _open_searcher(store, rerank=rerank, model=model, precision=precision, device=device)
    texts, graded = _load_judged(searcher, queries, judgments)
    top = SCORED_DOCUMENTS if searcher.rerank is None else CANDIDATE_PASSAGES
    hits = dict(_search(searcher, texts, hybrid, top))
    scores = retrieval_scores([[h.id for h in hits[q]] for q in graded], list(graded.values()))
    return {**scores, "queries": len(graded)}


def mine(
    store: str | Searcher,
    /,
    *,
    queries: Path,
    judgments: Path,
    out: Path,
    learner: Literal["similarity", "respond"] = "similarity",
    negatives: Count = 4,
    skip: int = 0,
    margins: bool = False,
    rerank: str | None = None,
    model: str | None = None,
    precision: Inference = "fp32",
    device: str = "auto",
) -> dict[str, int]:
    """Mine hard negatives to train an embedding model.

    The negatives of a query are the documents that the search ranks highest among those not judged
    relevant. The very best of them may be relevant even though nobody judged them; `skip` leaves
    them out. For `respond` (a cross-encoder), the negatives are written as candidates. For
    `similarity` (a bi-encoder), each negative is written to a separate column.

    With `margins`, each row contains one negative. Its label is the score that the cross-encoder
    computes for the positive document minus its score for the negative. Train on these rows with
    the loss margin_mse (Hofstätter et al. 2020).

    Args:
        store: Directory of the store, or http://host:port/NAME for a collection on a Qdrant server.
        queries: File of queries: .jsonl with the fields id and text, or .tsv with the columns id
            and text.
        judgments: File of relevance judgments. Each line contains query, document and grade, or
            query, 0, document and grade (TREC).
        out: The .jsonl file to write. It must not exist.
        learner: Task that the rows are for: similarity (bi-encoder) or respond (cross-encoder).
        negatives: Number of hard negatives per query.
        skip: Number of highest-ranked negatives to skip, because they may be relevant without a
            judgment.
        margins: Whether to add the score margins of the cross-encoder, which the loss margin_mse
            needs.
        rerank: Cross-encoder to re-rank the best passages with. Required by --margins.
        model: Directory or hub id of the store's embedding model. Default: the one that is recorded
            in the store.
        precision: Precision of the computation.
        device: Device, such as cpu or cuda:0. auto selects a GPU if PyTorch finds one.

    Returns:
        The numbers of queries and rows.

    Raises:
        ConfigError: If an option is invalid, or options cannot be combined.
        DataError: If no query has both a relevant document in the store and enough negatives.
    """
    searcher = _open_searcher(store, rerank=rerank, model=model, precision=precision, device=device)
    if margins and (searcher.rerank is None or learner != "similarity"):
        raise ConfigError("--margins requires --rerank and --learner similarity")
    if negatives < 1 or skip < 0:
        raise ConfigError("--negatives must be at least 1, and --skip at least 0")
    check_unused(out)
    texts, graded = _load_judged(searcher, queries, judgments)
    rows = 0
    with writing(out) as partial, partial.open("w", encoding="utf-8") as file:
        for query, hits in _search(searcher, texts, False, MINED_DOCUMENTS):
            positives = list(_positives(searcher, texts[query], graded[query]))
            # A copy of a relevant passage is not a negative.
            known = {hit.text for hit in positives}
            wrong = [h for h in hits if graded[query].get(h.id, 0) <= 0 and h.text not in known]
            wrong = wrong[skip : skip + negatives]
            for positive in positives:
                if len(wrong) < negatives:
                    # All rows must have the same number of negatives.
                    continue
                for row in _rows(searcher, texts[query], positive, wrong, learner, margins):
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
                    rows += 1
        if not rows:
            raise DataError(
                f"{judgments}: no query has both a relevant document in the store and {negatives} "
                "negatives; check the ids, or reduce --negatives"
            )
    return {"queries": len(graded), "rows": rows}


def _open_searcher(store: str | Searcher, **models: Any) -> Searcher:
    return store if isinstance(store, Searcher) else Searcher(store, **models)


def _load_judged(
    searcher: Searcher, queries: Path, judgments: Path
) -> tuple[dict[str, str], dict[str, Mapping[str, int]]]:
    """Read the queries that have relevant documents, and their judgments.

    Raises:
        DataError: If the store contains none of the relevant documents, because all scores would be
            0.
    """
    texts = read_queries(queries)
    graded = select_judged(texts, read_judgments(judgments), judgments)
    relevant = sorted({name for row in graded.values() for name, g in row.items() if g > 0})
    if not searcher.store.digests(relevant):
        raise DataError(
            f"{judgments}: the store {searcher.store.location} contains none of the relevant "
            f"documents ({len(relevant):,}, such as {relevant[0]!r}); check the ids, and that the "
            "columns are query, document and grade"
        )
    return {query: texts[query] for query in graded}, graded


def _search(
    searcher: Searcher, queries: Mapping[str, str], hybrid: bool, top: int
) -> Iterator[tuple[str, list[Hit]]]:
    """Yield the id and hits of each query, in order."""
    names = list(queries)
    with progress() as bar:
        task = bar.add_task("searching", total=len(names), note="")
        for start in range(0, len(names), QUERY_BATCH_SIZE):
            batch = names[start : start + QUERY_BATCH_SIZE]
            texts = [queries[name] for name in batch]
            hits = searcher.many(texts, top=top, hybrid=hybrid, long="truncate", distinct=False)
            yield from zip(batch, hits, strict=True)
            bar.advance(task, len(batch))


def _positives(searcher: Searcher, query: str, grades: Mapping[str, int]) -> Iterator[Hit]:
    """Yield the best passage of each relevant document in the store."""
    vector = searcher.embed([query], long="truncate")[0]
    for name, grade in grades.items():
        if grade > 0:
            yield from searcher.store.by_vector(vector, 1, [Condition(ID_FIELD, "=", name)])


def _rows(
    searcher: Searcher, query: str, positive: Hit, negatives: list[Hit], learner: str, margins: bool
) -> Iterator[dict[str, Any]]:
    texts = [hit.text for hit in negatives]
    if learner == "respond":
        yield {"context": query, "response": positive.text, "candidates": [positive.text, *texts]}
    elif margins:
        assert searcher.rerank is not None
        best, *scores = searcher.rerank(query, [positive.text, *texts]).tolist()
        for text, score in zip(texts, scores, strict=True):
            yield _triple(query, positive.text, {"negative": text}) | {"label": best - score}
    else:
        names = {f"negative{i}": text for i, text in enumerate(texts, 1)}
        yield _triple(query, positive.text, names)


def _triple(query: str, positive: str, negatives: Mapping[str, str]) -> dict[str, Any]:
    return {"anchor": query, "positive": positive, **negatives}
