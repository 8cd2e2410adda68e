"""Search a store from the command line."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bertkit.config import Count
from bertkit.console import asked, print_json, say
from bertkit.errors import DataError
from bertkit.extensions.search.searcher import Searcher
from bertkit.extensions.search.store import Hit
from bertkit.nn.precision import Inference
from bertkit.text.long_texts import Long

SHOWN_CHARACTERS = 240
"""Characters of a hit that are printed for people."""


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
    """Search a store by meaning, by keywords, or by both.

    Args:
        store: A folder, or http://host:port/NAME for a collection of a Qdrant server.
        query: What to look for; by default the lines of stdin, which a terminal asks for.
        top: How many documents.
        where: Only documents with such a field: year>=1960; all that are given.
        hybrid: Join what is found by meaning and by words.
        min_score: Only documents whose score, as it is printed, is as high at least.
        long: Queries longer than the model: truncate, or an error.
        json: Print a line of JSON for each.
        rerank: A cross-encoder, which reads queries with the best passages.
        model: The store's model, where it is not at its place any more.
        precision: Precision of the computation.
        device: auto, cpu or a CUDA device such as cuda:0. auto is a GPU if PyTorch finds one.
    """
    searcher = Searcher(store, rerank=rerank, model=model, precision=precision, device=device)
    terminal = query is None and sys.stdin.isatty()
    if terminal:
        say(f"{len(searcher.store):,} passages. Write what to look for; Ctrl-D ends.")
    for one in asked("> ") if query is None else [query]:
        try:
            hits = searcher(
                one,
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
                held = msgspec.to_builtins(hit)
                print_json(held if query is not None else {"query": one, **held})
            continue
        if query is None and not terminal:
            print(f"> {one}")
        if not hits:
            print("nothing found", file=sys.stderr)
        for rank, hit in enumerate(hits, 1):
            _show(rank, hit)


def _show(rank: int, hit: Hit) -> None:
    """A hit for people: its sentence that answers best, and where it stands."""
    fields = "".join(f"  {k}={v}" for k, v in hit.fields.items() if v is not None)
    heading = f"  {hit.heading}" if hit.heading else ""
    text = " ".join((hit.sentence or hit.text).split())
    print(f"{rank:3}  {hit.score:.3f}  {hit.id}  [{hit.start}:{hit.end}]{fields}{heading}")
    print(f"     {text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + '…'}")
    file = Path(hit.source)
    row = Path(re.sub(r":\d+$", "", hit.source))
    if file.is_absolute() and file.parent.is_dir() and not (file.exists() or row.exists()):
        say(f"     {file}: this file is gone; `bertkit index … --sync` takes it out")
