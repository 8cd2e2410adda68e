"""Pipeline with which a server searches a store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bertkit.extensions.search.searcher import Searcher
from bertkit.extensions.search.store import Hit, conditions
from bertkit.nn.precision import Inference
from bertkit.pipelines import Embed, Work
from bertkit.text.long_texts import Long

PASSAGE_TOKENS = 4
"""Cost of returning one document, in tokens. A search that returns 1,000 documents takes as long as
a full batch."""

HIT_BYTES = 4096
"""Assumed memory of one returned document, in bytes."""


class SearchPipeline:
    """A pipeline that searches for documents in a store.

    Args:
        store: Path or address of the store.
        precision: Precision of the embedding model.
        device: Device of the embedding model.
    """

    def __init__(self, store: str, precision: Inference, device: str) -> None:
        self.searcher = Searcher(store, precision=precision, device=device)
        embed = self.searcher.embed
        # `Searcher` loads the store's own model with torch, not an exported graph.
        assert isinstance(embed, Embed)
        self.embed, self.policies = embed, embed.policies

    def prepare(
        self,
        queries: Sequence[str],
        *,
        long: Long,
        top: int = 10,
        where: Sequence[str] = (),
        hybrid: bool = False,
        min_score: float | None = None,
    ) -> list[Work]:
        """Return one unit of work per query, to pass to `run`.

        Args:
            queries: The queries.
            long: What to do with queries that exceed the maximum length of the model.
            top: Maximum number of documents per query.
            where: Conditions that documents must satisfy, such as year>=1960.
            hybrid: Whether to combine vector search with keyword search.
            min_score: Minimum score of a document.

        Raises:
            ConfigError: If a condition is invalid, or its field does not exist.
        """
        conditions(where, self.searcher.store.spec.fields)
        options = {"top": top, "where": tuple(where), "hybrid": hybrid, "min_score": min_score}
        works = self.embed.prepare(queries, long=long)
        return [
            replace(
                work,
                item=(_truncated(query, work), options),
                more=PASSAGE_TOKENS * top,
                answer_bytes=HIT_BYTES * top,
            )
            for query, work in zip(queries, works, strict=True)
        ]

    def run(self, works: Sequence[Work]) -> list[list[Hit]]:
        """Return the documents that best match each query."""
        return [
            self.searcher(query, long="truncate", **options)
            for query, options in (work.item for work in works)
        ]


def _truncated(query: str, work: Work) -> str:
    """Return only the part of a query that the model encodes, for use in the keyword search."""
    encoding = work.features[0].encoding
    return query[: int(encoding.offsets[:, 1].max(initial=0))] if encoding.truncated else query
