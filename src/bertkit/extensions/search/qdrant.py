"""A store in a Qdrant server: for more passages, or more readers, than one machine serves."""

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
"""After which a server that does not answer is given up: one that is written to, and one that is
searched, for which others wait."""

DENSE, WORDS = "vector", "words"

BM25_K1 = 1.2
"""BM25's k1. Passages are about equally long, so that its part for length is left out."""


class QdrantStore(Store):
    """A collection of a Qdrant server, named by the path of its address: http://host:6333/NAME.

    The key of a server that wants one is taken from the environment, QDRANT_API_KEY. Documents are
    found as soon as they are written; one that is replaced is there twice for a moment.
    """

    def __init__(self, place: str, name: str, spec: Spec, client: QdrantClient) -> None:
        self.place, self.name, self.spec, self.client = place, name, spec, client

    @classmethod
    def open(cls, place: str, create: Spec | None, client: QdrantClient | None = None) -> Self:
        try:
            parts = urlsplit(place)
        except ValueError as error:
            raise SearchError(f"{place}: no address ({error})") from None
        name = parts.path.strip("/")
        _, _, host = parts.netloc.rpartition("@")
        place = parts._replace(netloc=host).geturl()  # which is shown, without a password
        if not re.fullmatch(r"[\w.-]+", name):
            raise SearchError(
                f"{place}: name a collection behind the address: http://host:6333/NAME"
            )
        with reachable(place):
            if client is None:
                key = api_key("QDRANT_API_KEY")
                address = f"{parts.scheme}://{parts.netloc}"
                seconds = SECONDS if create else SEARCH_SECONDS
                client = QdrantClient(
                    address, api_key=key, timeout=seconds, check_compatibility=False
                )
            if not client.collection_exists(name):
                if create is None:
                    raise SearchError(f"{place}: no such collection; make it with `bertkit index`")
                _create(client, name, create)
            metadata = client.get_collection(name).config.metadata or {}
        if not isinstance(metadata.get("bertkit"), str):
            raise SearchError(f"{place}: a collection that bertkit did not make; name another")
        return cls(place, name, read_spec(place, metadata["bertkit"], create), client)

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        """A document that was replaced by a run that was killed has two until it is written again,
        and none here.
        """
        digests: dict[str, set[str]] = {}
        for id, digest in self._documents("digest", _among(ids)):
            digests.setdefault(id, set()).add(digest)
        return {id: digest for id, (digest, *others) in digests.items() if not others}

    def sources(self) -> dict[str, str]:
        return dict(self._documents("source"))

    def _documents(self, what: str, *met: models.Condition) -> Iterator[tuple[str, str]]:
        """Id and digest or source of each document, by its first passage."""
        first = models.FieldCondition(key="number", match=models.MatchValue(value=0))
        page = None
        while True:
            with reachable(self.place):
                points, page = self.client.scroll(
                    self.name,
                    scroll_filter=models.Filter(must=[first, *met]),
                    limit=1000,
                    offset=page,
                    with_payload=["id", what],
                )
            yield from ((p.payload["id"], p.payload[what]) for p in points if p.payload)
            if page is None:
                return

    def move(self, sources: Mapping[str, str]) -> None:
        with reachable(self.place):
            changes = [
                models.SetPayloadOperation(
                    set_payload=models.SetPayload(
                        payload={"source": source, "suffix": source_suffix(source)},
                        filter=models.Filter(must=[_among([id])]),
                    )
                )
                for id, source in sources.items()
            ]
            self.client.batch_update_points(self.name, changes, wait=True)

    def remove(self, ids: Sequence[str]) -> None:
        gone = models.Filter(must=[_among(ids)])
        with reachable(self.place):
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
            must=[_among(list({p.id for p in passages}))],
            must_not=[models.HasIdCondition(has_id=[point.id for point in points])],
        )
        # the first passages last: a document counts as written when its first is there
        points.sort(key=lambda point: -point.payload["number"] if point.payload else 0)
        with reachable(self.place):
            for start in range(0, len(points), 256):
                self.client.upsert(self.name, points[start : start + 256], wait=True)
            self.client.delete(self.name, models.FilterSelector(filter=old), wait=True)

    def finish(self) -> None:
        """Nothing is left to do: what is written is found."""

    def close(self) -> None:
        """Nothing is held: runs at once write the same points."""

    def by_vector(
        self, vector: NDArray[np.float32], count: int, where: Sequence[Condition] = ()
    ) -> list[Hit]:
        return self._ask(vector.tolist(), DENSE, count, where)

    def by_words(self, query: str, count: int, where: Sequence[Condition] = ()) -> list[Hit]:
        words = _counts(query_keywords(query))
        if not words:
            return []
        sparse = models.SparseVector(indices=list(words), values=[1.0] * len(words))
        return self._ask(sparse, WORDS, count, where)

    def _ask(self, query: Any, using: str, count: int, where: Sequence[Condition]) -> list[Hit]:
        with reachable(self.place):
            response = self.client.query_points(
                self.name,
                query=query,
                using=using,
                limit=count,
                query_filter=_filter(where, self.spec.fields),
                with_payload=True,
            )
        payloads = ((point.payload or {}, point.score) for point in response.points)
        return [hit(payload, score, payload["fields"]) for payload, score in payloads]

    def __len__(self) -> int:
        with reachable(self.place):
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


def _key(field: str, kept: Collection[str]) -> str:
    return f'fields."{field}"' if field in kept else "number" if field == "passage" else field


def _among(ids: Sequence[str]) -> models.FieldCondition:
    return models.FieldCondition(key=ID_FIELD, match=models.MatchAny(any=list(ids)))


def _filter(where: Sequence[Condition], kept: Collection[str]) -> models.Filter:
    must: list[models.Condition] = []
    must_not: list[models.Condition] = []
    ranges = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}
    for condition in where:
        key, value = _key(condition.field, kept), condition.value
        if condition.operator in ranges:
            limits = models.Range.model_validate({ranges[condition.operator]: value})
            must.append(models.FieldCondition(key=key, range=limits))
            continue
        same = (
            models.FieldCondition(key=key, match=models.MatchValue(value=value))
            if isinstance(value, str)
            else models.FieldCondition(key=key, range=models.Range(gte=value, lte=value))
        )
        if condition.operator == "=":
            must.append(same)
        else:
            unknown = models.IsEmptyCondition(is_empty=models.PayloadField(key=key))
            must_not += [same, unknown]
    return models.Filter(must=must, must_not=must_not)


def _counts(keywords: Sequence[str]) -> Counter[int]:
    """Count keywords by their hash."""
    return Counter(zlib.crc32(word.encode()) for word in keywords)


def _weights(text: str) -> models.SparseVector:
    """Return the part of BM25 that depends on the passage; the server has the rest."""
    counts = _counts(passage_keywords(text))
    values = [n * (BM25_K1 + 1) / (n + BM25_K1) for n in counts.values()]
    return models.SparseVector(indices=list(counts), values=values)


@contextlib.contextmanager
def reachable(place: str) -> Iterator[None]:
    """What goes wrong between here and the server, as one sentence."""
    try:
        yield
    except (ApiException, QdrantException, OSError, ValueError) as error:
        message = " ".join(str(error).split())[:200]
        raise SearchError(
            f"{place}: no Qdrant server answers there, or it refuses ({message}); check the "
            "address, the server and QDRANT_API_KEY"
        ) from None
