"""A query -> the documents of a store that answer it best."""

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

if TYPE_CHECKING:  # an exported model needs no torch
    from bertkit.checkpoint.directory import Loaded
    from bertkit.pipelines.base import Embedder

CANDIDATE_PASSAGES = 100
"""Passages of each list where two are joined, and documents whose best passage is read again."""

MAX_SENTENCES = 64
"""Of a passage that are compared with a query."""

RANK_FUSION_K = 60
"""Of reciprocal rank fusion: how little first places count more than later ones."""


def similarity_of(loaded: Loaded) -> Similarity:
    """By what a store compares a model's vectors. Raises: ConfigError for what no store can."""
    similarity = "cosine" if loaded.pooling is None else loaded.pooling.similarity
    normalized = loaded.pooling is not None and loaded.pooling.normalize
    if similarity == "cosine" or (normalized and similarity in ("dot", "euclidean")):
        return "cosine"  # of vectors of length 1 all three find the same
    if similarity == "dot":
        return "dot"
    raise ConfigError(
        f"{loaded.folder}: its vectors are compared by {similarity} distance, and a store "
        "compares them by cosine or dot product; take another model"
    )


def load_embedder(
    model: str | Path | Loaded,
    precision: Inference,
    similarity: Similarity,
    prompt: str,
    device: str = "auto",
) -> Embedder:
    """Load a model whose embeddings are compared by dot product.

    With cosine similarity, embeddings have length 1. `prompt` precedes each text.
    """
    settings = LoadSettings(precision, device, normalize=similarity == "cosine")
    embedder: Embedder = open_format(model).load_embedder(settings)
    embedder.prompt.usual = prompt
    return embedder


def name_of(model: str | Path | Loaded) -> str:
    """The name by which the same model is opened again, from any folder."""
    if not isinstance(model, str | Path):
        model = model.folder
    return str(Path(model).resolve()) if Path(model).exists() else str(model)


def model_of(store: Store) -> Loaded:
    """The model that a store was made with. Raises: SearchError where it does not open."""
    from bertkit.checkpoint.directory import (
        load,
    )  # here: it takes torch, which an exported model needs not

    try:
        return load(store.spec.model)
    except BertkitError as error:
        raise SearchError(
            f"{store.place}: its model does not open ({error}); if it has moved, name its new "
            "place (--model)"
        ) from None


class Searcher:
    """A store and the model it was made with, ready for queries.

    `model` is by default the one that the store names; `rerank` a cross-encoder, which reads each
    query together with the best passages. What stands before a query, the store says.
    Raises: SearchError for a store made with another model.
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
        model = model_of(self.store) if model is None else model
        self.embed = load_embedder(model, precision, spec.similarity, spec.query_prompt, device)
        if self.embed.fingerprint() != spec.fingerprint:
            raise SearchError(
                f"{self.store.place}: was made with the model {spec.model}, and "
                f"{name_of(model)} has other weights; name the right one (--model), or "
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
        """Return the best documents, each by its best passage, best first.

        Of documents with the same best passage, only the first is returned.
        `where` holds conditions such as year>=1960, all of which must be met; with `hybrid` the
        passages found by vector and by words are joined by their ranks. With `sentences` each hit
        says which of its sentences is nearest to the query. Hits below `min_score` are left out:
        of the scores that hits have, which are the cross-encoder's where there is one.
        Raises: DataError for an empty query, or one longer than the model, ConfigError for a
        condition on a field that the store has not.
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
        """Search for several queries; `distinct=False` keeps documents with the same text."""
        if top < 1:
            raise ConfigError(f"top: {top} documents; ask for one at least")
        if long == "window":
            raise ConfigError("long: a query has one vector; shorten it, or cut it (truncate)")
        if not all(query.strip() for query in queries):
            raise DataError("the query is empty; say what to look for")
        met = conditions(where, self.store.spec.fields)
        vectors = self.embed(queries, long=long)

        def one(query: str, vector: NDArray[np.float32]) -> list[Hit]:
            def passages(count: int) -> list[Hit]:
                hits = self.store.by_vector(vector, count, met)
                if not hybrid:
                    return hits
                return fused([hits, self.store.by_words(query, count, met)])

            wanted = max(CANDIDATE_PASSAGES, top) if self.rerank else top
            least = CANDIDATE_PASSAGES if hybrid else 0
            documents = best_documents(passages, wanted, least, distinct=distinct)
            if self.rerank and documents:
                scores = self.rerank(query, [hit.text for hit in documents])
                documents = [
                    msgspec.structs.replace(documents[place], score=float(scores[place]))
                    for place in np.argsort(-scores, kind="stable")
                ]
            documents = documents[:top]
            if min_score is not None:
                documents = [hit for hit in documents if hit.score >= min_score]
            return self._with_sentences(documents, vector) if sentences else documents

        return [one(query, vector) for query, vector in zip(queries, vectors, strict=True)]

    def _with_sentences(self, hits: Sequence[Hit], vector: NDArray[np.float32]) -> list[Hit]:
        """Each hit with the sentence of its passage whose vector is nearest to the query's."""
        if not hits:
            return []
        by_hit = [_sentences(hit) for hit in hits]
        texts = [sentence for own in by_hit for sentence in own]
        prompts = [self.store.spec.prompt] * len(texts)
        encodings, _ = encode(
            self.embed.tokenizer, texts, length=self.embed.length, long="truncate", prompts=prompts
        )
        vectors = self.embed.vectors(encodings)
        scores = iter((vectors @ vector).tolist())
        best = [max(own, key=lambda _: next(scores)) for own in by_hit]
        return [_with_sentence(hit, text) for hit, text in zip(hits, best, strict=True)]


_OWN_LINE = re.compile(r"^(?=[^\S\n]*(?:[-*+#>]|\d+[.)])\s|.*\|)", re.MULTILINE)
"""The beginning of a line that stands for itself: an item, a heading, a row of a table."""


def _sentences(hit: Hit) -> list[str]:
    """The sentences of a passage, one at least; without its headings, which are shown beside."""
    sentences = split(_OWN_LINE.sub("\n\n", hit.text)) or [hit.text]
    titles = hit.heading.split(HEADING_SEPARATOR)
    body = [sentence for sentence in sentences if sentence.strip("#=- ") not in titles]
    return (body or sentences)[:MAX_SENTENCES]


def _with_sentence(hit: Hit, sentence: str) -> Hit:
    """Return the hit with a sentence of its passage and its position in the document."""
    words = re.search(r"\s+".join(map(re.escape, sentence.split())), hit.text)
    start, end = words.span() if words else (0, len(hit.text))
    return msgspec.structs.replace(
        hit, sentence=sentence, sentence_start=hit.start + start, sentence_end=hit.start + end
    )


def best_documents(
    ask: Callable[[int], list[Hit]], top: int, least: int = 0, *, distinct: bool = True
) -> list[Hit]:
    """Return the best passage of each of the `top` best documents.

    Args:
        ask: Function that returns the given number of passages, best first.
        top: Number of documents.
        least: Number of passages of the first call, if it is more than twice `top`.
        distinct: Whether documents with the same best passage count as one.
    """
    count = max(least, 2 * top)
    while True:
        hits = ask(count)
        documents = by_document(hits, distinct=distinct)
        if len(documents) >= top or len(hits) < count:
            return documents[:top]
        count *= 4


def by_document(hits: Iterable[Hit], *, distinct: bool = True) -> list[Hit]:
    """Return the first hit of each document; with `distinct`, of documents with the same text one.

    A document whose first hit has the text of an earlier document is skipped with all its hits.
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


def fused(lists: Sequence[Sequence[Hit]]) -> list[Hit]:
    """Several lists of hits as one, by reciprocal rank fusion. Source: Cormack et al. 2009."""
    scores: dict[tuple[str, int], float] = {}
    hits: dict[tuple[str, int], Hit] = {}
    for ranked in lists:
        for rank, hit in enumerate(ranked, 1):
            key = hit.id, hit.passage
            hits.setdefault(key, hit)
            scores[key] = scores.get(key, 0.0) + 1.0 / (RANK_FUSION_K + rank)
    order = sorted(scores, key=lambda key: -scores[key])
    return [msgspec.structs.replace(hits[key], score=scores[key]) for key in order]
