"""Search a store from the command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bertkit.config import Count
from bertkit.console import print_json
from bertkit.nn.precision import Inference
from bertkit.retrieval.search import Searcher
from bertkit.text.long import Long

SHOWN = 240
"""Characters of a passage that are printed for people."""


def search(
    store: str,
    query: str,
    /,
    *,
    top: Count = 10,
    where: Sequence[str] = (),
    hybrid: bool = False,
    long: Long = "error",
    json: bool = False,
    rerank: str | None = None,
    model: str | None = None,
    precision: Inference = "fp32",
) -> None:
    """The documents that answer a query best: by meaning, words, or both.

    Args:
        store: A folder, or http://host:port/NAME for a collection of a Qdrant server.
        query: What to look for.
        top: How many documents.
        where: Only documents with such a field: year>=1960; all that are given.
        hybrid: Join what is found by meaning and by words.
        long: Of a query longer than the model reads.
        json: Print a line of JSON for each.
        rerank: A cross-encoder, which reads queries with the best passages.
        model: The store's model, where it is not at its place any more.
        precision: Of the numbers the models compute with.
    """
    searcher = Searcher(store, rerank=rerank, model=model, precision=precision)
    hits = searcher(query, top=top, where=where, hybrid=hybrid, long=long)
    if not hits and not json:
        print("nothing found", file=sys.stderr)
    for rank, hit in enumerate(hits, 1):
        if json:
            print_json(hit)
            continue
        fields = "".join(f"  {k}={v}" for k, v in hit.fields.items() if v is not None)
        text = " ".join(hit.text.split())
        print(f"{rank:3}  {hit.score:.3f}  {hit.id}  [{hit.start}:{hit.end}]{fields}")
        print(f"     {text if len(text) <= SHOWN else text[: SHOWN - 1] + '…'}")
