"""Stores on a Qdrant server, for more passages or clients than one machine can serve."""

from __future__ import annotations

import contextlib
import re
import uuid
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec
import numpy as np
from numpy.typing import NDArray
from qdrant_client import QdrantClient, models
from qdrant_client.common.client_exceptions import QdrantException
from qdrant_client.http.exceptions import ApiException

from bertkit.config import api_key
from bertkit.errors import SearchError
from bertkit.extensions.search.keywords import passage_keywords, query_keywords
from bertkit.extensions.search.store import (
    ID_FIELD,
    SHOWN,
    Condition,
    Hit,
    Passage,
    Spec,
    Store,
    hit,
    read_spec,
    source_suffix,
)

SECONDS, SEARCH_SECONDS = 30, 10
"""Timeouts in seconds for requests to the server: while a store is written, and while it is
searched."""

DENSE, WORDS = "vector", "words"

BM25_K1 = 1.2
"""Parameter k1 of BM25. The length normalization of BM25 is omitted, because passages have similar
lengths."""


class QdrantStore(Store):
    """A store in a collection on a Qdrant server, such as http://host:6333/NAME.

    The API key is read from the environment variable QDRANT_API_KEY. Searches find documents as
    soon as they are written. While a document is being replaced, both versions exist for a moment.
    """

    def __init__(self, location: str, name: str, spec: Spec, client: QdrantClient) -> None:
        self.location, self.name, self.spec, self.client = location, name, spec, client

    @classmethod
    def open(cls, location: str, create: Spec | None, client: QdrantClient | None = None) -> Self:
        try:
            parts = urlsplit(location)
        except ValueError as error:
            raise SearchError(f"{location}: not a valid address ({error})") from None
        name = parts.path.strip("/")
        _, _, host = parts.netloc.rpartition("@")
        # Messages show the address, so remove the user name and password from it.
        location = parts._replace(netloc=host).geturl()
        if not re.fullmatch(r"[\w.-]+", name):
            raise SearchError(
                f"{location}: the address does not name a collection; use http://host:6333/NAME"
            )
        with reachable(location):
            if client is None:
                key = api_key("QDRANT_API_KEY")
                address = f"{parts.scheme}://{parts.netloc}"
                seconds = SECONDS if create else SEARCH_SECONDS
                client = QdrantClient(
                    address, api_key=key, timeout=seconds, check_compatibility=False
                )
            if not client.collection_exists(name):
                if create is None:
                    raise SearchError(f"{location}: not found; create it with `bertkit index`")
                _create(client, name, create)
            metadata = client.get_collection(name).config.metadata or {}
        if not isinstance(metadata.get("bertkit"), str):
            raise SearchError(f"{location}: not a collection of bertkit; use another name")
        return cls(location, name, read_spec(location, metadata["bertkit"], create), client)

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the digests of the given documents, by id; see `Store.digests`.

        If a run was killed while it replaced a document, the document has two digests. It is
        omitted here, so that it is written again.
        """
        digests: dict[str, set[str]] = {}
        for id, digest in self._documents("digest", _has_id(ids)):
            digests.setdefault(id, set()).add(digest)
        return {id: digest for id, (digest, *others) in digests.items() if not others}

    def sources(self) -> dict[str, str]:
        return dict(self._documents("source"))

    def _documents(self, key: str, *filters: models.Condition) -> Iterator[tuple[str, str]]:
        """Yield the id of each document, and the value of `key` in its first passage."""
        first = models.FieldCondition(key="number", match=models.MatchValue(value=0))
        page = None
        while True:
            with reachable(self.location):
                points, page = self.client.scroll(
                    self.name,
                    scroll_filter=models.Filter(must=[first, *filters]),
                    limit=1000,
                    offset=page,
                    with_payload=["id", key],
                )
            yield from ((p.payload["id"], p.payload[key]) for p in points if p.payload)
            if page is None:
                return

    def move(self, sources: Mapping[str, str]) -> None:
        with reachable(self.location):
            changes = [
                models.SetPayloadOperation(
                    set_payload=models.SetPayload(
                        payload={"source": source, "suffix": source_suffix(source)},
                        filter=models.Filter(must=[_has_id([id])]),
                    )
                )
                for id, source in sources.items()
            ]
            self.client.batch_update_points(self.name, changes, wait=True)

    def remove(self, ids: Sequence[str]) -> None:
        gone = models.Filter(must=[_has_id(ids)])
        with reachable(self.location):
            self.client.delete(self.name, models.FilterSelector(filter=gone), wait=True)

    def replace(self, passages: Sequence[Passage], vectors: NDArray[np.float32]) -> None:
        points = [
            models.PointStruct(
                id=str(uuid.uuid5(uuid.NAMESPACE_OID, f"{p.number} {p.digest} {p.id}")),
                vector={DENSE: vector.tolist(), WORDS: _weights(p.text)},
                payload={
                    **{name: getattr(p, name) for name in SHOWN},
                    "digest": p.digest,
                    "fields": dict(p.fields),
                },
            )
            for p, vector in zip(passages, vectors, strict=True)
        ]
        old = models.Filter(
            must=[_has_id(list({p.id for p in passages}))],
            must_not=[models.HasIdCondition(has_id=[point.id for point in points])],
        )
        # Write the first passages last, because a document counts as written once its first passage
        # exists.
        points.sort(key=lambda point: -point.payload["number"] if point.payload else 0)
        with reachable(self.location):
            for start in range(0, len(points), 256):
                self.client.upsert(self.name, points[start : start + 256], wait=True)
            self.client.delete(self.name, models.FilterSelector(filter=old), wait=True)

    def finish(self) -> None:
        """Do nothing, because searches already find all documents that were written."""

    def close(self) -> None:
        """Do nothing, because the store has no lock; concurrent runs write the same points."""

    def by_vector(
        self, vector: NDArray[np.float32], count: int, filters: Sequence[Condition] = ()
    ) -> list[Hit]:
        return self._query(vector.tolist(), DENSE, count, filters)

    def by_words(self, query: str, count: int, filters: Sequence[Condition] = ()) -> list[Hit]:
        words = _counts(query_keywords(query))
        if not words:
            return []
        sparse = models.SparseVector(indices=list(words), values=[1.0] * len(words))
        return self._query(sparse, WORDS, count, filters)

    def _query(self, query: Any, using: str, count: int, filters: Sequence[Condition]) -> list[Hit]:
        with reachable(self.location):
            response = self.client.query_points(
                self.name,
                query=query,
                using=using,
                limit=count,
                query_filter=_filter(filters, self.spec.fields),
                with_payload=True,
            )
        payloads = ((point.payload or {}, point.score) for point in response.points)
        return [hit(payload, score, payload["fields"]) for payload, score in payloads]

    def __len__(self) -> int:
        with reachable(self.location):
            return self.client.count(self.name).count


def _create(client: QdrantClient, name: str, spec: Spec) -> None:
    client.create_collection(
        name,
        vectors_config={
            DENSE: models.VectorParams(size=spec.dimension, distance=models.Distance.DOT)
        },
        sparse_vectors_config={WORDS: models.SparseVectorParams(modifier=models.Modifier.IDF)},
        metadata={"bertkit": msgspec.json.encode(spec).decode()},
    )
    keyword, number = models.PayloadSchemaType.KEYWORD, models.PayloadSchemaType.FLOAT
    kinds = {ID_FIELD: keyword, "source": keyword, "suffix": keyword, "modified": number}
    kinds["number"] = models.PayloadSchemaType.INTEGER
    for field, kind in spec.fields.items():
        kinds[_key(field, spec.fields)] = number if kind == "number" else keyword
    for key, schema in kinds.items():
        client.create_payload_index(name, key, schema)


def _key(field: str, columns: Collection[str]) -> str:
    return f'fields."{field}"' if field in columns else "number" if field == "passage" else field


def _has_id(ids: Sequence[str]) -> models.FieldCondition:
    return models.FieldCondition(key=ID_FIELD, match=models.MatchAny(any=list(ids)))


def _filter(filters: Sequence[Condition], columns: Collection[str]) -> models.Filter:
    must: list[models.Condition] = []
    must_not: list[models.Condition] = []
    ranges = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}
    for condition in filters:
        key, value = _key(condition.field, columns), condition.value
        if condition.operator in ranges:
            limits = models.Range.model_validate({ranges[condition.operator]: value})
            must.append(models.FieldCondition(key=key, range=limits))
            continue
        equal = (
            models.FieldCondition(key=key, match=models.MatchValue(value=value))
            if isinstance(value, str)
            else models.FieldCondition(key=key, range=models.Range(gte=value, lte=value))
        )
        if condition.operator == "=":
            must.append(equal)
        else:
            missing = models.IsEmptyCondition(is_empty=models.PayloadField(key=key))
            must_not += [equal, missing]
    return models.Filter(must=must, must_not=must_not)


def _counts(keywords: Sequence[str]) -> Counter[int]:
    """Count how often each keyword occurs, by the hash of the keyword."""
    return Counter(zlib.crc32(word.encode()) for word in keywords)


def _weights(text: str) -> models.SparseVector:
    """Return the BM25 term weights of a passage without the IDF factor, which the server adds."""
    counts = _counts(passage_keywords(text))
    values = [n * (BM25_K1 + 1) / (n + BM25_K1) for n in counts.values()]
    return models.SparseVector(indices=list(counts), values=values)


@contextlib.contextmanager
def reachable(location: str) -> Iterator[None]:
    """Convert errors of the Qdrant client and its connection to SearchError."""
    try:
        yield
    except (ApiException, QdrantException, OSError, ValueError) as error:
        message = " ".join(str(error).split())[:200]
        raise SearchError(
            f"{location}: the Qdrant server cannot be reached, or rejected the request "
            f"({message}); check the address, the server and QDRANT_API_KEY"
        ) from None
