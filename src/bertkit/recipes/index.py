"""Documents -> passages -> vectors -> a store."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertkit.checkpoint.folder import Loaded, load
from bertkit.config import Count
from bertkit.console import progress, say
from bertkit.data.documents import Columns, Document, documents
from bertkit.errors import ConfigError, DataError
from bertkit.memory import limit_onednn_cache
from bertkit.nn.pool import Pooling
from bertkit.nn.precision import Inference
from bertkit.pipelines import Embed, Work
from bertkit.retrieval.opening import open_store
from bertkit.retrieval.search import embedder, fingerprint, name_of, similarity_of
from bertkit.retrieval.store import Passage, Spec, Store
from bertkit.tasks.task import Feature
from bertkit.text.encoding import Encoding
from bertkit.text.long import Long, encode
from bertkit.text.prompts import DOCUMENT, QUERY
from bertkit.text.tokenizer import NO_LIMIT, Tokenizer

PART_DOCUMENTS, PART_CHARACTERS = 2048, 4 << 20
"""How many are written at a time, and how much of the work a stopped run does again at most."""


def index(
    paths: Sequence[Path],
    /,
    *,
    model: str | Path | Loaded,
    store: str,
    length: Count | None = None,
    long: Long = "window",
    prompt: str | None = None,
    query_prompt: str | None = None,
    sync: bool = False,
    precision: Inference = "auto",
    columns: Columns | None = None,
) -> dict[str, int]:
    """Put documents into a store, to be searched.

    A document replaces the one of its id, and one that is the same already is left alone. All are
    read and checked before any is written.
    Raises: DataError for a document that cannot be used, SearchError for a store made with another
    model or other settings; what the store held is found as before.

    Args:
        paths: Files or folders: .jsonl, .csv or .tsv, a document a row; .txt, .md or .html.
            The same command goes on after a stop.
        model: A model folder or hub id that makes vectors of texts.
        store: A folder, or http://host:port/NAME for a collection of a Qdrant server.
        length: Tokens of a passage; by default the most the model reads.
        long: Of longer documents: overlapping passages, the first, or an error.
        prompt: What stands before each passage: a name of the model's prompts, or a text such as
            "passage: "; by default the model's for documents, if any.
        query_prompt: The same before each query that will be asked; the store keeps it.
        sync: Take out what is in the store and not among these documents.
        precision: Of the numbers the model computes with.
    """
    limit_onednn_cache()
    columns = columns or Columns()
    names = _check(paths, columns)
    loaded = model if isinstance(model, Loaded) else load(model)
    prompts, similarity = (loaded.pooling or Pooling()).prompts, similarity_of(loaded)
    before, asked = prompts.find(prompt, DOCUMENT), prompts.find(query_prompt, QUERY)
    if before or asked or prompts.known:
        say(f"prompts: {before!r} before each passage, {asked!r} before each query")
    most = loaded.length
    if length is not None and not 8 <= length <= most:
        raise ConfigError(f"length: {length}; this model reads 8 to {most} tokens")
    _refuse_no_room(loaded.tokenizer, before, length or most)
    embed = embedder(loaded, precision, similarity, before)
    spec = Spec(
        model=name_of(model),
        fingerprint=fingerprint(embed),
        dimension=embed.dimension,
        length=length or most,
        long=long,
        fields=columns.fields(),
        prompt=before,
        query_prompt=asked,
        similarity=similarity,
    )
    opened = open_store(store, create=spec)
    unchanged = 0
    with progress() as bar:
        task = bar.add_task("indexing", total=len(names), note="")
        for part in _parts(documents(paths, columns)):
            digests = [_digest(document) for document in part]
            there = opened.digests([document.id for document in part])
            new = [
                (document, digest)
                for document, digest in zip(part, digests, strict=True)
                if there.get(document.id) != digest
            ]
            unchanged += len(part) - len(new)
            if new:
                _write(opened, embed, new)
            bar.advance(task, len(part))
    gone = sorted(opened.ids() - names) if sync else []
    for start in range(0, len(gone), PART_DOCUMENTS):
        opened.remove(gone[start : start + PART_DOCUMENTS])
    opened.finish()
    removed = {"removed": len(gone)} if sync else {}
    return {"documents": len(names), "unchanged": unchanged, **removed, "passages": len(opened)}


def _check(paths: Sequence[Path], columns: Columns) -> set[str]:
    """The ids of the documents. Raises: DataError for a document that cannot be used."""
    seen: set[str] = set()
    for document in documents(paths, columns):
        if document.id in seen:
            raise DataError(
                f"{document.where}: a second document with the id {document.id!r}; give each its "
                "own, or name the field that holds it (--id)"
            )
        seen.add(document.id)
    if not seen:
        raise DataError("no document in these files")
    return seen


def _parts(documents: Iterator[Document]) -> Iterator[list[Document]]:
    part: list[Document] = []
    characters = 0
    for document in documents:
        part.append(document)
        characters += len(document.text)
        if len(part) == PART_DOCUMENTS or characters >= PART_CHARACTERS:
            yield part
            part, characters = [], 0
    if part:
        yield part


def _digest(document: Document) -> str:
    held = json.dumps([document.text, dict(document.fields)], ensure_ascii=False)
    return hashlib.sha256(held.encode()).hexdigest()


def _write(store: Store, embed: Embed, new: Sequence[tuple[Document, str]]) -> None:
    encodings, owner = encode(
        embed.tokenizer,
        [document.text for document, _ in new],
        length=store.spec.length,
        long=store.spec.long,
        where=[document.where for document, _ in new],
        prompts=[store.spec.prompt] * len(new),
    )
    vectors = embed.run([Work([Feature(encoding, 0)]) for encoding in encodings])
    passages: list[Passage] = []
    for place, encoding in zip(owner, encodings, strict=True):
        document, digest = new[place]
        number = passages[-1].number + 1 if passages and passages[-1].id == document.id else 0
        passages.append(_passage(document, digest, number, encoding))
    _refuse_unusable(vectors, passages, least=0.5 if store.spec.similarity == "cosine" else 0.0)
    store.replace(passages, vectors)


def _passage(document: Document, digest: str, number: int, encoding: Encoding) -> Passage:
    real = [place for place, owner in enumerate(encoding.sequence) if owner is not None]
    start = int(encoding.offsets[real[0], 0]) if real else 0
    end = int(encoding.offsets[real[-1], 1]) if real else 0
    return Passage(
        document.id,
        number,
        document.text[start:end],
        start,
        end,
        document.where,
        digest,
        document.fields,
    )


def _refuse_no_room(tokenizer: Tokenizer, prompt: str, length: int) -> None:
    (alone,) = tokenizer.encode_batch([""], max_length=NO_LIMIT, prompts=[prompt])
    if length - len(alone) <= length // 2:
        raise ConfigError(
            f"length: {length} tokens, of which the prompt {prompt!r} takes {len(alone)}; give "
            "passages more, or a shorter prompt"
        )


def _refuse_unusable(
    vectors: NDArray[np.float32], passages: Sequence[Passage], *, least: float
) -> None:
    lengths = np.linalg.norm(vectors, axis=1)
    bad = np.flatnonzero(~(np.isfinite(lengths) & (lengths > least)))
    if len(bad):
        passage = passages[int(bad[0])]
        raise DataError(
            f"{passage.source}: the model makes no usable vector of {passage.text[:40]!r} (zeros, "
            "or no numbers); check the model with `bertkit embed`"
        )
