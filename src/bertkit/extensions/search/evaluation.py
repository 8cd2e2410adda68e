"""Score a search on judged queries, and draw from it what a better model learns from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from bertkit.config import Count
from bertkit.errors import ConfigError, DataError
from bertkit.extensions.search.judgments import judged, read_judgments, read_queries
from bertkit.extensions.search.retrieval_metrics import retrieval_scores
from bertkit.extensions.search.searcher import CANDIDATE_PASSAGES, Searcher
from bertkit.extensions.search.store import ID_FIELD, Condition, Hit
from bertkit.nn.precision import Inference
from bertkit.progress import progress
from bertkit.storage import refuse_used, writing

SCORED_DOCUMENTS = 1000
"""Documents of a query that are scored, as trec_eval does by default: `map` is over so many, and
with a re-ranker over those that it reads."""

MINED_DOCUMENTS = 100
"""Documents of a query that negatives are drawn from."""

QUERIES_AT_ONCE = 64
"""Queries asked together."""


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
    """Evaluate a search on queries: nDCG, MRR, MAP and recall.

    Returns: ndcg@10, mrr, map, recall@10 and recall@100 over the queries that a document answers.
    Raises: DataError when there is no such query, or none of the documents is in the store.

    Args:
        store: A folder, or http://host:port/NAME for a collection of a Qdrant server.
        queries: .jsonl rows {id, text}, or .tsv lines of id and text.
        judgments: Lines of query, document and grade, or TREC's query, 0, document and grade.
        hybrid: Join what is found by meaning and by words.
        rerank: A cross-encoder, which reads queries with the best passages.
        model: The store's model, where it is not at its place any more.
        precision: Precision of the computation.
        device: auto, cpu or a CUDA device such as cuda:0. auto is a GPU if PyTorch finds one.
    """
    searcher = _searcher(store, rerank=rerank, model=model, precision=precision, device=device)
    texts, graded = _judged(searcher, queries, judgments)
    top = SCORED_DOCUMENTS if searcher.rerank is None else CANDIDATE_PASSAGES
    hits = dict(_asked(searcher, texts, hybrid, top))
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

    Negatives are the best documents for the query that are not judged to answer it, without the
    `skip` best, which may answer it too. For `respond` (a cross-encoder) these are candidates; for
    `similarity` columns. With `margins` a label says how much better the searcher's re-ranker finds
    the answer than the negative, a row for each: what a bi-encoder learns by loss margin_mse
    (Hofstätter et al. 2020).
    Raises: DataError when no query has both, ConfigError for settings that do not go together.

    Args:
        store: A folder, or http://host:port/NAME for a collection of a Qdrant server.
        queries: .jsonl rows {id, text}, or .tsv lines of id and text.
        judgments: Lines of query, document and grade, or TREC's query, 0, document and grade.
        out: The .jsonl file to be made.
        learner: The task that learns from it: a bi-encoder's, or a cross-encoder's.
        negatives: Number of hard negatives per query.
        skip: Leave out as many of the best, which may answer the query though nobody judged them.
        margins: By how much the re-ranker prefers the answer, for a bi-encoder to learn.
        rerank: A cross-encoder, which reads queries with the best passages.
        model: The store's model, where it is not at its place any more.
        precision: Precision of the computation.
        device: auto, cpu or a CUDA device such as cuda:0. auto is a GPU if PyTorch finds one.
    """
    searcher = _searcher(store, rerank=rerank, model=model, precision=precision, device=device)
    if margins and (searcher.rerank is None or learner != "similarity"):
        raise ConfigError("margins: they are a re-ranker's (--rerank), and for similarity alone")
    if negatives < 1 or skip < 0:
        raise ConfigError("negatives: ask for one at least, and skip none or more")
    refuse_used(out)
    asked, graded = _judged(searcher, queries, judgments)
    rows = 0
    with writing(out) as partial, partial.open("w", encoding="utf-8") as file:
        for query, hits in _asked(searcher, asked, False, MINED_DOCUMENTS):
            answers = list(_answers(searcher, asked[query], graded[query]))
            texts = {answer.text for answer in answers}  # a copy of an answer is no negative
            wrong = [h for h in hits if graded[query].get(h.id, 0) <= 0 and h.text not in texts]
            wrong = wrong[skip : skip + negatives]
            for right in answers:
                if len(wrong) < negatives:
                    continue  # rows are to have equally many
                for row in _rows(searcher, asked[query], right, wrong, learner, margins):
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
                    rows += 1
        if not rows:
            raise DataError(
                f"{judgments}: no query has an answer in the store and {negatives} other "
                "documents; check the ids, or ask for fewer negatives"
            )
    return {"queries": len(graded), "rows": rows}


def _searcher(store: str | Searcher, **models: Any) -> Searcher:
    return store if isinstance(store, Searcher) else Searcher(store, **models)


def _judged(
    searcher: Searcher, queries: Path, judgments: Path
) -> tuple[dict[str, str], dict[str, Mapping[str, int]]]:
    """The queries that a document answers, and their judgments.

    Raises: DataError when none of these documents is in the store, so that all scores would be 0.
    """
    texts = read_queries(queries)
    graded = judged(texts, read_judgments(judgments), judgments)
    answers = sorted({name for row in graded.values() for name, g in row.items() if g > 0})
    if not searcher.store.digests(answers):
        raise DataError(
            f"{judgments}: none of its {len(answers):,} documents that answer a query is in "
            f"{searcher.store.place}, {answers[0]!r} for example; check the ids, and that the "
            "columns are query, document and grade"
        )
    return {query: texts[query] for query in graded}, graded


def _asked(
    searcher: Searcher, queries: Mapping[str, str], hybrid: bool, top: int
) -> Iterator[tuple[str, list[Hit]]]:
    """What is found for each query, in their order."""
    names = list(queries)
    with progress() as bar:
        task = bar.add_task("searching", total=len(names), note="")
        for start in range(0, len(names), QUERIES_AT_ONCE):
            part = names[start : start + QUERIES_AT_ONCE]
            texts = [queries[name] for name in part]
            hits = searcher.many(texts, top=top, hybrid=hybrid, long="truncate", distinct=False)
            yield from zip(part, hits, strict=True)
            bar.advance(task, len(part))


def _answers(searcher: Searcher, query: str, grades: Mapping[str, int]) -> Iterator[Hit]:
    """The best passage of each document that answers the query and is in the store."""
    vector = searcher.embed([query], long="truncate")[0]
    for name, grade in grades.items():
        if grade > 0:
            yield from searcher.store.by_vector(vector, 1, [Condition(ID_FIELD, "=", name)])


def _rows(
    searcher: Searcher,
    query: str,
    right: Hit,
    wrong: list[Hit],
    learner: str,
    margins: bool,
) -> Iterator[dict[str, Any]]:
    texts = [hit.text for hit in wrong]
    if learner == "respond":
        yield {"context": query, "response": right.text, "candidates": [right.text, *texts]}
    elif margins:
        assert searcher.rerank is not None
        best, *others = searcher.rerank(query, [right.text, *texts]).tolist()
        for text, score in zip(texts, others, strict=True):
            yield _triple(query, right.text, {"negative": text}) | {"label": best - score}
    else:
        names = {f"negative{i}": text for i, text in enumerate(texts, 1)}
        yield _triple(query, right.text, names)


def _triple(query: str, positive: str, negatives: Mapping[str, str]) -> dict[str, Any]:
    return {"anchor": query, "positive": positive, **negatives}
