"""Commands of retrieval: index, search, mine, and scoring a search."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from bertkit.commands.command import command
from bertkit.config import Count
from bertkit.console import print_json
from bertkit.data.documents import Columns
from bertkit.nn.precision import Inference
from bertkit.recipes import judge as judging
from bertkit.recipes.index import index as indexing
from bertkit.retrieval.search import Searcher
from bertkit.text.long import Long

STORE = "A folder, or http://host:port/NAME for a collection of a Qdrant server."

Store = Annotated[str, Parameter(help=STORE)]
Where = Annotated[
    list[str] | None,
    Parameter(help="Only documents with such a field: year>=1960; all that are given."),
]


def _index(documents: list[Path], /, **rest: Any) -> None:
    print_json(indexing(documents, **rest))


index = command(
    _index,
    "Put documents into a store, to be searched; prints JSON. A document replaces the one of its "
    "id, and the same command goes on after a stop.",
    {
        "model": (str, "A model folder or hub id that makes vectors of texts."),
        "store": (str, STORE),
        "length": (Count | None, "Tokens of a passage; by default the most the model reads.", None),
        "long": (
            Long,
            "Of longer documents: overlapping passages, the first, or an error.",
            "window",
        ),
        "sync": (bool, "Take out what is in the store and not among these documents.", False),
        "precision": (Inference, "Of the numbers the model computes with.", "auto"),
    },
    positional={
        "documents": (
            list[Path],
            "Files or folders: .jsonl, .csv or .tsv, a document a row; .txt, .md or .html.",
        )
    },
    columns=Columns,
)


def search(
    store: Store,
    query: str,
    /,
    *,
    top: int = 10,
    where: Where = None,
    hybrid: bool = False,
    rerank: str | None = None,
    model: str | None = None,
    long: Long = "error",
    precision: Inference = "fp32",
    json: bool = False,
) -> None:
    """The documents of a store that answer a query best, each with its best passage.

    Parameters
    ----------
    top
        How many documents.
    hybrid
        Join what is found by meaning and by words.
    rerank
        A cross-encoder, which reads the query together with the best passages.
    model
        The store's model, where it is not at its place any more.
    json
        Print a line of JSON for each.
    """
    searcher = Searcher(store, model=model, rerank=rerank, precision=precision)
    hits = searcher(query, top=top, where=where or (), hybrid=hybrid, long=long)
    if json:
        for hit in hits:
            print_json(hit)
        return
    if not hits:
        print("nothing found", file=sys.stderr)
    for place, hit in enumerate(hits, 1):
        fields = "".join(f"  {k}={v}" for k, v in hit.fields.items() if v is not None)
        print(f"{place:3}  {hit.score:.3f}  {hit.id}  [{hit.start}:{hit.end}]{fields}")
        print(f"     {_shown(hit.text)}")


def _shown(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 240 else words[:239] + "…"


def judge(
    store: Store,
    /,
    *,
    queries: Path,
    judgments: Path,
    hybrid: bool = False,
    rerank: str | None = None,
    model: str | None = None,
    precision: Inference = "fp32",
) -> None:
    """Score a search on judged queries: nDCG, MRR, MAP and recall; prints JSON.

    Parameters
    ----------
    queries
        .jsonl rows {id, text}, or .tsv lines of id and text.
    judgments
        Lines of query, document and grade, or TREC's query, 0, document and grade.
    hybrid
        Join what is found by meaning and by words.
    rerank
        A cross-encoder, which reads the query together with the best passages.
    model
        The store's model, where it is not at its place any more.
    """
    searcher = Searcher(store, model=model, rerank=rerank, precision=precision)
    print_json(judging.evaluate_retrieval(searcher, queries, judgments, hybrid=hybrid))


def mine(
    store: Store,
    /,
    *,
    queries: Path,
    judgments: Path,
    out: Path,
    learner: Literal["similarity", "respond"] = "similarity",
    negatives: int = 4,
    skip: int = 0,
    margins: bool = False,
    rerank: str | None = None,
    model: str | None = None,
    precision: Inference = "fp32",
) -> None:
    """Rows to train on: queries, passages that answer them, and some that only seem to.

    Parameters
    ----------
    queries
        .jsonl rows {id, text}, or .tsv lines of id and text.
    judgments
        Lines of query, document and grade, or TREC's query, 0, document and grade.
    out
        The .jsonl file to be made.
    learner
        The task that learns from it: similarity (a bi-encoder) or respond (a cross-encoder).
    negatives
        How many in a row.
    skip
        Leave out as many of the best, which may answer the query though nobody judged them.
    margins
        By how much the re-ranker prefers the answer, for a bi-encoder that learns from it.
    rerank
        A cross-encoder, which orders the negatives, and whose margins are taken.
    model
        The store's model, where it is not at its place any more.
    """
    searcher = Searcher(store, model=model, rerank=rerank, precision=precision)
    found = judging.mine(
        searcher,
        queries,
        judgments,
        out,
        learner=learner,
        negatives=negatives,
        skip=skip,
        margins=margins,
    )
    print_json(found)
