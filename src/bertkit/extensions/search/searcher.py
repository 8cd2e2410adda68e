"""Search for documents in a store."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from bertkit.checkpoint.formats import LoadSettings, open_format
from bertkit.data.sentences import split
from bertkit.errors import BertkitError, ConfigError, DataError, SearchError
from bertkit.extensions.search.passages import HEADING_SEPARATOR
from bertkit.extensions.search.store import Hit, Similarity, Store, conditions
from bertkit.extensions.search.stores import open_store
from bertkit.nn.precision import Inference
from bertkit.synonyms import check_keywords
from bertkit.text.long_texts import Long, encode

# At run time, these imports would require torch, which exported models do not need.
if TYPE_CHECKING:
    from bertkit.checkpoint.directory import Loaded
    from bertkit.pipelines.base import Embedder

CANDIDATE_PASSAGES = 100
"""Minimum number of passages to request from each ranking of a hybrid search, and of documents to
re-rank with a cross-encoder."""

MAX_SENTENCES = 64
"""Maximum number of sentences per passage that are compared with the query."""

RANK_FUSION_K = 60
"""Constant k of reciprocal rank fusion. The larger k is, the smaller is the advantage of the top
ranks."""


def similarity_of(loaded: Loaded) -> Similarity:
    """Return the similarity function that a store must use for a model.

    Args:
        loaded: The model.

    Raises:
        ConfigError: If stores do not support the similarity function of the model.
    """
    similarity = "cosine" if loaded.pooling is None else loaded.pooling.similarity
    normalized = loaded.pooling is not None and loaded.pooling.normalize
    if similarity == "cosine" or (normalized and similarity in ("dot", "euclidean")):
        # For vectors of length 1, all three functions give the same ranking.
        return "cosine"
    if similarity == "dot":
        return "dot"
    raise ConfigError(
        f"{loaded.folder}: {similarity} similarity is not supported by stores; use a model with "
        "cosine similarity or dot product"
    )


def load_embedder(
    model: str | Path | Loaded,
    precision: Inference,
    similarity: Similarity,
    prompt: str,
    device: str = "auto",
) -> Embedder:
    """Load a model so that its embeddings can be compared by dot product.

    Args:
        model: The model, or its directory or hub id.
        precision: Precision of the computation.
        similarity: Similarity function. With cosine, embeddings are normalized to length 1.
        prompt: Prompt to prepend to each text.
        device: Device of the computation.
    """
    settings = LoadSettings(precision, device, normalize=similarity == "cosine")
    embedder: Embedder = open_format(model).load_embedder(settings)
    embedder.prompt.usual = prompt
    return embedder


def model_name(model: str | Path | Loaded) -> str:
    """Return the absolute path or hub id of a model.

    Args:
        model: The model, or its directory or hub id.
    """
    if not isinstance(model, str | Path):
        model = model.folder
    return str(Path(model).resolve()) if Path(model).exists() else str(model)


def load_model(store: Store) -> Loaded:
    """Load the embedding model that a store was made with.

    Args:
        store: The store.

    Raises:
        SearchError: If the model cannot be loaded.
    """
    # Imported here, because it requires torch, which exported models do not need.
    from bertkit.checkpoint.directory import load

    try:
        return load(store.spec.model)
    except BertkitError as error:
        raise SearchError(
            f"{store.location}: cannot load the model of the store ({error}); if the model was "
            "moved, set its new path with --model"
        ) from None


class Searcher:
    """A search engine for the documents in a store.

    The query prompt that is recorded in the store is prepended to each query.

    Args:
        store: The store, or its path or address.
        model: The store's embedding model, or its directory or hub id. Default: load the model that
            is recorded in the store.
        rerank: Cross-encoder to re-rank the best passages with. Default: no re-ranking.
        precision: Precision of the computation.
        device: Device of the computation.

    Raises:
        SearchError: If the store does not exist, or was made with another model.
    """

    def __init__(
        self,
        store: str | Store,
        *,
        model: str | Path | Loaded | None = None,
        rerank: str | Path | Loaded | None = None,
        precision: Inference = "fp32",
        device: str = "auto",
    ) -> None:
        self.store = store if isinstance(store, Store) else open_store(store)
        spec = self.store.spec
        model = load_model(self.store) if model is None else model
        self.embed = load_embedder(model, precision, spec.similarity, spec.query_prompt, device)
        if self.embed.fingerprint() != spec.fingerprint:
            raise SearchError(
                f"{self.store.location}: the store was made with the model {spec.model}, but "
                f"{model_name(model)} is a different model; set --model to the original model, or "
                "index again into a new store"
            )
        self.rerank = None
        if rerank is not None:
            from bertkit.pipelines import pipeline

            self.rerank = pipeline("rerank", rerank, precision=precision, device=device)

    @check_keywords
    def __call__(
        self,
        query: str,
        *,
        top: int = 10,
        where: Sequence[str] = (),
        hybrid: bool = False,
        long: Long = "error",
        sentences: bool = False,
        min_score: float | None = None,
    ) -> list[Hit]:
        """Return the documents that best match a query, best first, each with its best passage.

        If the best passages of several documents have the same text, only the first document is
        returned.

        Args:
            query: The query.
            top: Maximum number of documents.
            where: Conditions that documents must satisfy, such as year>=1960.
            hybrid: Whether to combine vector search with keyword search, by reciprocal rank fusion.
            long: What to do with a query that exceeds the model's maximum length: truncate or
                error.
            sentences: Whether to find the sentence of each passage that is most similar to the
                query.
            min_score: Minimum score of a document. If `rerank` is set, this is the score of the
                cross-encoder.

        Raises:
            ConfigError: If an option is invalid, or a condition uses a field that does not exist.
            DataError: If the query is empty or too long.
        """
        return self.many(
            [query],
            top=top,
            where=where,
            hybrid=hybrid,
            long=long,
            sentences=sentences,
            min_score=min_score,
        )[0]

    @check_keywords
    def many(
        self,
        queries: Sequence[str],
        *,
        top: int = 10,
        where: Sequence[str] = (),
        hybrid: bool = False,
        long: Long = "error",
        sentences: bool = False,
        min_score: float | None = None,
        distinct: bool = True,
    ) -> list[list[Hit]]:
        """Return the documents that best match each of several queries; see `__call__`.

        Args:
            queries: The queries.
            top: Maximum number of documents per query.
            where: Conditions that documents must satisfy, such as year>=1960.
            hybrid: Whether to combine vector search with keyword search.
            long: What to do with queries that exceed the model's maximum length: truncate or error.
            sentences: Whether to find the sentence of each passage that is most similar to the
                query.
            min_score: Minimum score of a document; see `__call__`.
            distinct: Whether to return only the first of several documents whose best passages have
                the same text.

        Raises:
            ConfigError: If an option is invalid, or a condition uses a field that does not exist.
            DataError: If a query is empty or too long.
        """
        if top < 1:
            raise ConfigError(f"top must be at least 1, got {top}")
        if long == "window":
            raise ConfigError("queries do not support long = window; use truncate or error")
        if not all(query.strip() for query in queries):
            raise DataError("the query is empty; write at least one word")
        filters = conditions(where, self.store.spec.fields)
        vectors = self.embed(queries, long=long)

        def search(query: str, vector: NDArray[np.float32]) -> list[Hit]:
            def passages(count: int) -> list[Hit]:
                hits = self.store.by_vector(vector, count, filters)
                if not hybrid:
                    return hits
                return fuse_ranks([hits, self.store.by_words(query, count, filters)])

            count = max(CANDIDATE_PASSAGES, top) if self.rerank else top
            least = CANDIDATE_PASSAGES if hybrid else 0
            documents = best_documents(passages, count, least, distinct=distinct)
            if self.rerank and documents:
                scores = self.rerank(query, [hit.text for hit in documents])
                documents = [
                    msgspec.structs.replace(documents[index], score=float(scores[index]))
                    for index in np.argsort(-scores, kind="stable")
                ]
            documents = documents[:top]
            if min_score is not None:
                documents = [hit for hit in documents if hit.score >= min_score]
            return self._with_sentences(documents, vector) if sentences else documents

        return [search(query, vector) for query, vector in zip(queries, vectors, strict=True)]

    def _with_sentences(self, hits: Sequence[Hit], vector: NDArray[np.float32]) -> list[Hit]:
        """Return the hits, each with the sentence of its passage that best matches the query."""
        if not hits:
            return []
        by_hit = [_sentences(hit) for hit in hits]
        texts = [sentence for sentences in by_hit for sentence in sentences]
        prompts = [self.store.spec.prompt] * len(texts)
        encodings, _ = encode(
            self.embed.tokenizer, texts, length=self.embed.length, long="truncate", prompts=prompts
        )
        vectors = self.embed.vectors(encodings)
        scores = iter((vectors @ vector).tolist())
        best = [max(sentences, key=lambda _: next(scores)) for sentences in by_hit]
        return [_with_sentence(hit, text) for hit, text in zip(hits, best, strict=True)]


_OWN_LINE = re.compile(r"^(?=[^\S\n]*(?:[-*+#>]|\d+[.)])\s|.*\|)", re.MULTILINE)
"""Start of a line that is a list item, a heading or a table row."""


def _sentences(hit: Hit) -> list[str]:
    """Return the sentences of a passage, without its headings. The list is never empty.

    Headings are omitted, because they are shown separately.
    """
    sentences = split(_OWN_LINE.sub("\n\n", hit.text)) or [hit.text]
    titles = hit.heading.split(HEADING_SEPARATOR)
    body = [sentence for sentence in sentences if sentence.strip("#=- ") not in titles]
    return (body or sentences)[:MAX_SENTENCES]


def _with_sentence(hit: Hit, sentence: str) -> Hit:
    """Return the hit with the given sentence and the sentence's position in the document."""
    words = re.search(r"\s+".join(map(re.escape, sentence.split())), hit.text)
    start, end = words.span() if words else (0, len(hit.text))
    return msgspec.structs.replace(
        hit, sentence=sentence, sentence_start=hit.start + start, sentence_end=hit.start + end
    )


def best_documents(
    search: Callable[[int], list[Hit]], top: int, least: int = 0, *, distinct: bool = True
) -> list[Hit]:
    """Return the best passage of each of the best `top` documents.

    Args:
        search: Function that takes a number of passages and returns that many, best first.
        top: Number of documents.
        least: Minimum number of passages to request in the first call of `search`, if it is larger
            than twice `top`.
        distinct: Whether to return only the first of several documents whose best passages have the
            same text.
    """
    count = max(least, 2 * top)
    while True:
        hits = search(count)
        documents = by_document(hits, distinct=distinct)
        if len(documents) >= top or len(hits) < count:
            return documents[:top]
        count *= 4


def by_document(hits: Iterable[Hit], *, distinct: bool = True) -> list[Hit]:
    """Keep only the first hit of each document.

    Args:
        hits: The hits, best first.
        distinct: Whether to skip a document if its first hit has the same text as the first hit of
            an earlier document.
    """
    first: list[Hit] = []
    ids, texts = set[str](), set[str]()
    for hit in hits:
        text = " ".join(hit.text.split())
        if hit.id not in ids and not (distinct and text in texts):
            first.append(hit)
            texts.add(text)
        ids.add(hit.id)
    return first


def fuse_ranks(lists: Sequence[Sequence[Hit]]) -> list[Hit]:
    """Combine lists of hits by reciprocal rank fusion.

    Args:
        lists: Lists of hits, best first.

    Source:
        Cormack et al. 2009.
    """
    scores: dict[tuple[str, int], float] = {}
    hits: dict[tuple[str, int], Hit] = {}
    for ranked in lists:
        for rank, hit in enumerate(ranked, 1):
            key = hit.id, hit.passage
            hits.setdefault(key, hit)
            scores[key] = scores.get(key, 0.0) + 1.0 / (RANK_FUSION_K + rank)
    order = sorted(scores, key=lambda key: -scores[key])
    return [msgspec.structs.replace(hits[key], score=scores[key]) for key in order]
