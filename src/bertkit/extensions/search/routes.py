"""Route and web panel for searching the store that a server serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from bertkit.extensions.search.searcher import Searcher
from bertkit.extensions.search.store import Hit
from bertkit.view.figures import Figure, Marked, Table
from bertkit.web import Context, Cut, Panel, Route, Text

PANEL_DOCUMENTS = 10
"""Number of documents that the web page shows for a query."""


class SearchAsk(Cut, frozen=True, kw_only=True):
    """Request to search for documents in the store."""

    EXAMPLE: ClassVar = {"query": "wings at high speed", "top": 3}

    query: Text
    top: Annotated[int, Meta(ge=1, le=1000)] = 10
    where: Annotated[tuple[Annotated[str, Meta(max_length=1000)], ...], Meta(max_length=32)] = ()
    """Conditions that documents must satisfy, such as year>=1960."""
    hybrid: bool = False
    """Whether to combine vector search with keyword search."""
    min_score: float | None = None
    """Minimum score of a hit."""


async def search(ask: SearchAsk, context: Context) -> Any:
    """Search for documents in the store. Each hit is the best passage of a document."""
    _, pipeline = context.pipeline("search", ask.model)
    options = {name: getattr(ask, name) for name in ("top", "where", "hybrid", "min_score")}
    (hits,), cut = await context.answers(pipeline, [ask.query], field="query", ask=ask, **options)
    return context.reply(hits, cut)


def hits_figure(answered: Sequence[list[Hit]], text: str, other: str) -> Figure:
    """Return a table of the documents that were found for a query, with their best passages."""
    (hits,) = answered
    rows = [(hit.id, hit.score, Marked(hit.text)) for hit in hits]
    caption = "The best passage of each document is shown." if rows else "No documents found."
    table = Table("Documents", rows, ("document", "score", "passage"))
    return Figure("Documents", caption, [table])


PANEL = Panel(
    "Search",
    "Query",
    hits_figure,
    Searcher.__call__,
    options={"top": PANEL_DOCUMENTS, "where": [], "hybrid": False},
    example=("a query in a few words", "how does it work?"),
)

SEARCH = Route("/search", search, list[Hit], SearchAsk, "search", panel=PANEL)
