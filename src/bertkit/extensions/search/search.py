"""The command `search`."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bertkit.config import Count
from bertkit.console import print_json, prompt_lines, say
from bertkit.errors import DataError
from bertkit.extensions.search.searcher import Searcher
from bertkit.extensions.search.store import Hit
from bertkit.nn.precision import Inference
from bertkit.text.long_texts import Long

SHOWN_CHARACTERS = 240
"""Maximum number of characters of a hit that are printed as text."""


def search(
    store: str,
    query: str | None = None,
    /,
    *,
    top: Count = 10,
    where: Sequence[str] = (),
    hybrid: bool = False,
    min_score: float | None = None,
    long: Long = "error",
    json: bool = False,
    rerank: str | None = None,
    model: str | None = None,
    precision: Inference = "fp32",
    device: str = "auto",
) -> None:
    """Search a store by embeddings and, optionally, by keywords.

    Args:
        store: Directory of the store, or http://host:port/NAME for a collection on a Qdrant server.
        query: Query to search for. Default: read one query per line from stdin, with a prompt if
            stdin is a terminal.
        top: Maximum number of documents to find.
        where: Condition that documents must satisfy, such as year>=1960. Repeat the option for
            several conditions; documents must satisfy all of them.
        hybrid: Whether to combine vector search with keyword search.
        min_score: Minimum score of a document, on the scale of the printed scores.
        long: What to do with queries that exceed the model's maximum length: truncate or error.
        json: Whether to print each document as one line of JSON.
        rerank: Cross-encoder to re-rank the best passages with. Default: no re-ranking.
        model: Directory or hub id of the store's embedding model. Default: the one that is recorded
            in the store.
        precision: Precision of the computation.
        device: Device, such as cpu or cuda:0. auto selects a GPU if PyTorch finds one.
    """
    searcher = Searcher(store, rerank=rerank, model=model, precision=precision, device=device)
    terminal = query is None and sys.stdin.isatty()
    if terminal:
        say(f"{len(searcher.store):,} passages. Enter a query, or press Ctrl-D to quit.")
    for text in prompt_lines("> ") if query is None else [query]:
        try:
            hits = searcher(
                text,
                top=top,
                where=where,
                hybrid=hybrid,
                long=long,
                sentences=True,
                min_score=min_score,
            )
        except DataError as error:
            if not terminal:
                raise
            say(str(error))
            continue
        if json:
            for hit in hits:
                fields = msgspec.to_builtins(hit)
                print_json(fields if query is not None else {"query": text, **fields})
            continue
        if query is None and not terminal:
            print(f"> {text}")
        if not hits:
            print("no documents found", file=sys.stderr)
        for rank, hit in enumerate(hits, 1):
            _print_hit(rank, hit)


def _print_hit(rank: int, hit: Hit) -> None:
    """Print a hit as text: its best sentence, and the passage's position in the document."""
    fields = "".join(f"  {k}={v}" for k, v in hit.fields.items() if v is not None)
    heading = f"  {hit.heading}" if hit.heading else ""
    text = " ".join((hit.sentence or hit.text).split())
    print(f"{rank:3}  {hit.score:.3f}  {hit.id}  [{hit.start}:{hit.end}]{fields}{heading}")
    print(f"     {text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + '…'}")
    file = Path(hit.source)
    row = Path(re.sub(r":\d+$", "", hit.source))
    if file.is_absolute() and file.parent.is_dir() and not (file.exists() or row.exists()):
        say(f"     {file}: file not found; use `bertkit index … --sync` to remove the document")
