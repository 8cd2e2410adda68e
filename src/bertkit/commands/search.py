"""Commands of retrieval: index, search, mine, and scoring a search."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from bertkit.commands.command import Own, command
from bertkit.config import Count
from bertkit.console import print_json
from bertkit.data.documents import Columns
from bertkit.memory import limit_onednn_cache
from bertkit.nn.precision import Inference
from bertkit.recipes import judge as judging
from bertkit.recipes.index import index as indexing
from bertkit.retrieval.search import Searcher
from bertkit.text.long import Long

STORE = "A folder, or http://host:port/NAME for a collection of a Qdrant server."

STORED: Own = {"store": (str, STORE)}

ASKING: Own = {
    "rerank": (str | None, "A cross-encoder, which reads queries with the best passages.", None),
    "model": (str | None, "The store's model, where it is not at its place any more.", None),
    "precision": (Inference, "Of the numbers the models compute with.", "fp32"),
}
"""Of every command that searches: who answers."""

HYBRID: Own = {"hybrid": (bool, "Join what is found by meaning and by words.", False)}

JUDGED: Own = {
    "queries": (Path, ".jsonl rows {id, text}, or .tsv lines of id and text."),
    "judgments": (
        Path,
        "Lines of query, document and grade, or TREC's query, 0, document and grade.",
    ),
}


def _index(documents: list[Path], /, **rest: Any) -> None:
    limit_onednn_cache()
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
        "prompt": (
            str | None,
            "What stands before each passage: a name of the model's prompts, or a text such as "
            '"passage: "; by default the model\'s for documents, if any.',
            None,
        ),
        "query_prompt": (
            str | None,
            "The same before each query that will be asked; the store keeps it.",
            None,
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


def _search(
    store: str,
    query: str,
    /,
    *,
    top: int,
    where: Sequence[str],
    hybrid: bool,
    long: Long,
    json: bool,
    **asking: Any,
) -> None:
    searcher = Searcher(store, **asking)
    hits = searcher(query, top=top, where=where, hybrid=hybrid, long=long)
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


def _judge(store: str, /, *, queries: Path, judgments: Path, hybrid: bool, **asking: Any) -> None:
    searcher = Searcher(store, **asking)
    print_json(judging.evaluate_retrieval(searcher, queries, judgments, hybrid=hybrid))


def _mine(
    store: str,
    /,
    *,
    rerank: str | None,
    model: str | None,
    precision: Inference,
    **rest: Any,
) -> None:
    searcher = Searcher(store, rerank=rerank, model=model, precision=precision)
    print_json(judging.mine(searcher, **rest))


search = command(
    _search,
    "The documents of a store that answer a query best, each with its best passage.",
    {
        "top": (Count, "How many documents.", 10),
        "where": (
            list[str],
            "Only documents with such a field: year>=1960; all that are given.",
            [],
        ),
        **HYBRID,
        "long": (Long, "Of a query longer than the model reads.", "error"),
        "json": (bool, "Print a line of JSON for each.", False),
        **ASKING,
    },
    positional={**STORED, "query": (str, "What to look for.")},
)

judge = command(
    _judge,
    "Score a search on judged queries: nDCG, MRR, MAP and recall; prints JSON.",
    {**JUDGED, **HYBRID, **ASKING},
    positional=STORED,
)

mine = command(
    _mine,
    "Rows to train on: queries, passages that answer them, and some that only seem to.",
    {
        **JUDGED,
        "out": (Path, "The .jsonl file to be made."),
        "learner": (
            Literal["similarity", "respond"],
            "The task that learns from it: a bi-encoder's, or a cross-encoder's.",
            "similarity",
        ),
        "negatives": (Count, "How many in a row.", 4),
        "skip": (
            int,
            "Leave out as many of the best, which may answer the query though nobody judged them.",
            0,
        ),
        "margins": (
            bool,
            "By how much the re-ranker prefers the answer, for a bi-encoder to learn.",
            False,
        ),
        **ASKING,
    },
    positional=STORED,
)
