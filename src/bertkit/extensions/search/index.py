"""Indexing of documents: split them into passages, embed these, and add them to a store."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertkit.checkpoint.directory import Loaded, load
from bertkit.checkpoint.formats import format_of, open_format
from bertkit.config import Count
from bertkit.console import say
from bertkit.data.paths import paths_of
from bertkit.data.row_errors import location_of, log_messages, shorten_list
from bertkit.errors import ConfigError, DataError, SearchError
from bertkit.extensions.search.converter import Converter
from bertkit.extensions.search.documents import (
    Document,
    DocumentColumns,
    Listing,
    documents,
    list_files,
)
from bertkit.extensions.search.passages import Section, split
from bertkit.extensions.search.searcher import load_embedder, load_model, model_name, similarity_of
from bertkit.extensions.search.store import Passage, Spec, Store
from bertkit.extensions.search.stores import open_store
from bertkit.memory import limit_onednn_cache
from bertkit.nn.pooling import Pooling
from bertkit.nn.precision import Inference
from bertkit.pipelines import inference_device
from bertkit.pipelines.base import Embedder
from bertkit.progress import progress
from bertkit.synonyms import check_keywords
from bertkit.tasks.inference import batched
from bertkit.text.encoding import Encoding
from bertkit.text.long_texts import Long, encode
from bertkit.text.prompts import DOCUMENT, QUERY
from bertkit.text.tokenizer import NO_LIMIT, Tokenizer

PART_DOCUMENTS, PART_CHARACTERS = 2048, 4 << 20
"""Maximum number of documents, and of their characters, that are written at a time. A run that is
stopped repeats at most this work."""


@check_keywords
def index(
    paths: Sequence[Path | str],
    /,
    *,
    model: str | Path | Loaded | None = None,
    store: str,
    length: Count | None = None,
    long: Long = "window",
    prompt: str | None = None,
    query_prompt: str | None = None,
    sync: bool = False,
    skip_bad: bool = False,
    precision: Inference = "auto",
    device: str = "auto",
    columns: DocumentColumns | None = None,
) -> dict[str, int]:
    """Add documents to a store for search.

    A document replaces the document with its id; an unchanged document is skipped. All documents
    are read and checked before any is written.

    Args:
        paths: Files or directories. In .jsonl, .csv and .tsv files, each row is a document; .txt,
            .md, .html, .pdf, .docx, .rst and .ipynb files are one document each. The same command
            resumes a run that was stopped.
        model: Embedding model: directory or hub id. Default: the model of the store, if it exists.
        store: Directory, or http://host:port/NAME for a collection of a Qdrant server.
        length: Maximum number of tokens of a passage. Default: the maximum of the model.
        long: How to handle documents that exceed the length: split them into passages at headings
            and paragraphs (window), truncate them, or raise an error.
        prompt: Prompt to prepend to each passage: the name of one of the model's prompts, or a
            literal such as "passage: ". Default: the model's prompt for documents, if any.
        query_prompt: Prompt to prepend to each query, stored with the documents. Default: the
            model's prompt for queries, if any.
        sync: Whether to remove documents from the store that are not in the given paths.
        skip_bad: Whether to skip invalid files and rows, and log them.
        precision: Precision of the computation.
        device: Device, such as cpu or cuda:0. auto selects a GPU if PyTorch finds one.
        columns: Columns of .jsonl, .csv and .tsv files.

    Returns:
        The numbers of documents, unchanged and removed documents, and passages in the store.

    Raises:
        ConfigError: If a setting is invalid.
        DataError: If a document is invalid.
        SearchError: If the store was made with another model or other settings.
    """
    limit_onednn_cache()
    columns = columns or DocumentColumns()
    device = inference_device(device, precision, model)
    if model is None:
        model = _load_model_of(store)
    listing = list_files(paths)
    say(str(listing))
    with Converter() as convert:
        sources, skipped = _read_all(listing, columns, convert, skip_bad=skip_bad, sync=sync)
        loaded = model if isinstance(model, Loaded) else load(model)
        if format_of(loaded.folder) == "sparse-encoder":
            raise open_format(loaded.folder).mismatch("a model of dense embeddings")
        prompt, query_prompt = _find_prompts(loaded, prompt, query_prompt)
        length = _length(loaded, length)
        capacity = _capacity(loaded.tokenizer, prompt, length)
        similarity = similarity_of(loaded)
        embed = load_embedder(loaded, precision, similarity, prompt, device)
        spec = Spec(
            model=model_name(model),
            fingerprint=embed.fingerprint(),
            dimension=embed.dimension,
            length=length,
            long=long,
            fields=columns.fields(),
            prompt=prompt,
            query_prompt=query_prompt,
            similarity=similarity,
        )
        with closing(open_store(store, create=spec)) as opened:
            unchanged = 0
            with progress() as bar:
                task = bar.add_task("indexing", total=len(sources), note="")
                valid = documents(listing, columns, on_error=lambda _: None, convert=convert)
                for part in _parts(valid):
                    unchanged += _write_part(opened, embed, part, capacity)
                    bar.advance(task, len(part))
            gone = _update_sources(opened, paths, sources, frozenset(listing.unread), sync=sync)
            opened.finish()
            return {
                "documents": len(sources),
                "unchanged": unchanged,
                **({"left_out": skipped} if skipped else {}),
                **({"removed" if sync else "gone": gone} if sync or gone else {}),
                "passages": len(opened),
            }


def _find_prompts(loaded: Loaded, prompt: str | None, query_prompt: str | None) -> tuple[str, str]:
    """Return the prompts of passages and of queries."""
    prompts = (loaded.pooling or Pooling()).prompts
    document, query = prompts.find(prompt, DOCUMENT), prompts.find(query_prompt, QUERY)
    if document or query or prompts.known:
        say(f"prompts: {document!r} before each passage, {query!r} before each query")
    return document, query


def _length(loaded: Loaded, length: int | None) -> int:
    """Return the maximum number of tokens of a passage.

    Raises:
        ConfigError: If the model does not support the length.
    """
    if length is not None and not 8 <= length <= loaded.length:
        raise ConfigError(f"length must be 8 to {loaded.length} for this model, got {length}")
    return length or loaded.length


def _update_sources(
    store: Store,
    paths: Sequence[Path | str],
    new_sources: Mapping[str, str],
    unread: frozenset[str],
    *,
    sync: bool,
) -> int:
    """Update the sources of moved documents, and remove documents that no longer exist.

    Args:
        store: The store.
        paths: Files or directories that were read.
        new_sources: Source of each document that was read, by id.
        unread: Files that were skipped.
        sync: Whether to remove documents that no longer exist. If false, they are only logged.

    Returns:
        The number of documents that no longer exist.
    """
    sources = store.sources()
    moved = [id for id, source in new_sources.items() if sources.get(id) != source]
    if moved:
        say(f"documents that moved, with unchanged content: {len(moved):,} ({shorten_list(moved)})")
    for part in batched(moved, PART_DOCUMENTS):
        store.move({id: new_sources[id] for id in part})
    gone = _find_gone(sources, paths, new_sources, unread, everything=sync)
    if sync:
        for part in batched(gone, PART_DOCUMENTS):
            store.remove(part)
    elif gone:
        say(
            f"documents missing from these files: {len(gone):,} ({shorten_list(gone)}); searches "
            "still find them, use --sync to remove them"
        )
    return len(gone)


def _load_model_of(location: str) -> Loaded:
    """Load the model of a store.

    Raises:
        SearchError: If the store does not exist, or its model cannot be loaded.
    """
    try:
        store = open_store(location)
    except SearchError as error:
        raise SearchError(
            f"--model is required, because the store cannot be opened: {error}"
        ) from None
    say(f"model: {store.spec.model}, from {location}")
    return load_model(store)


def _read_all(
    listing: Listing, columns: DocumentColumns, convert: Converter, *, skip_bad: bool, sync: bool
) -> tuple[dict[str, str], int]:
    """Return the source of each document, by its id, and the number of skipped files and rows.

    Raises:
        DataError: If a document is invalid and is not skipped, or `sync` would remove it.
    """
    errors: list[DataError] = []
    sources: dict[str, str] = {}
    with progress() as bar:
        task = bar.add_task("reading", total=None, note="")
        for document in documents(listing, columns, on_error=errors.append, convert=convert):
            sources[document.id] = document.source
            bar.advance(task)
    if len(errors) == 1 and not skip_bad:
        raise DataError(f"{errors[0]} (--skip-bad skips it)")
    log_messages(list(map(str, errors)), "skipped: " if skip_bad else "")
    if errors and not skip_bad:
        raise DataError(
            f"{len(errors):,} files or rows are invalid, see above; fix them, or skip them with "
            f"--skip-bad: {shorten_list(location_of(str(error)) for error in errors)}"
        )
    if not sources:
        raise DataError("the files contain no documents")
    if sync and errors:
        raise DataError(
            f"--sync would remove the documents of {len(errors):,} invalid files or rows; fix "
            "them, or remove --sync"
        )
    return sources, len(errors)


def _find_gone(
    sources: Mapping[str, str],
    paths: Sequence[Path | str],
    ids: Container[str],
    unread: frozenset[str],
    *,
    everything: bool,
) -> list[str]:
    """Return the ids of documents in the store that were not read again.

    Args:
        sources: Source of each document in the store, by id.
        paths: Files or directories that were read.
        ids: Ids of the documents that were read.
        unread: Files that exist but were skipped. Their documents are not returned.
        everything: Whether to check all documents, or only documents whose source is in `paths`.
    """
    return sorted(
        id
        for id, source in sources.items()
        if id not in ids
        and source not in unread
        and (everything or any(_below(source, path) for path in paths_of(paths)))
    )


def _below(source: str, path: Path) -> bool:
    """Return whether a source, which is a file or a row of a file, is at or below a path."""
    file = Path(source)
    return path in (file, *file.parents) or source.startswith(f"{path}:")


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
    content = json.dumps([document.text, dict(document.fields)], ensure_ascii=False)
    return hashlib.sha256(content.encode()).hexdigest()


def _write_part(store: Store, embed: Embedder, part: Sequence[Document], capacity: int) -> int:
    """Write new and changed documents, and return the number of unchanged documents."""
    digests = [_digest(document) for document in part]
    stored = store.digests([document.id for document in part])
    new = [
        (document, digest)
        for document, digest in zip(part, digests, strict=True)
        if stored.get(document.id) != digest
    ]
    if new:
        _write(store, embed, new, capacity)
    return len(part) - len(new)


def _write(store: Store, embed: Embedder, new: Sequence[tuple[Document, str]], size: int) -> None:
    documents = [document for document, _ in new]
    if store.spec.long == "window":
        parts = split(documents, embed.tokenizer, size)
    else:
        parts = [[Section(0, len(document.text))] for document in documents]
    flat = [(index, section) for index, sections in enumerate(parts) for section in sections]
    contexts = [f"{section.context}\n" if section.context else "" for _, section in flat]
    encodings, owner = encode(
        embed.tokenizer,
        [
            context + documents[index].text[section.start : section.end]
            for (index, section), context in zip(flat, contexts, strict=True)
        ],
        length=store.spec.length,
        long=store.spec.long,
        where=[documents[index].source for index, _ in flat],
        prompts=[store.spec.prompt] * len(flat),
    )
    vectors = embed.vectors(encodings)
    passages: list[Passage] = []
    for section_index, encoding in zip(owner, encodings, strict=True):
        (index, section), context = flat[section_index], contexts[section_index]
        document, digest = new[index]
        number = passages[-1].number + 1 if passages and passages[-1].id == document.id else 0
        start, end = _span(encoding, section.start - len(context), section.start)
        passages.append(
            Passage(
                document.id,
                number,
                document.text[start:end],
                start,
                end,
                document.source,
                digest,
                document.fields,
                section.heading,
                _modified(document.source),
            )
        )
    _check_vectors(vectors, passages, min_length=0.5 if store.spec.similarity == "cosine" else 0.0)
    store.replace(passages, vectors)


def _modified(source: str) -> float:
    """Return the modification time of a source, which is a file or a row of a file."""
    for path in (source, source.rpartition(":")[0]):
        with contextlib.suppress(OSError):
            return Path(path).stat().st_mtime
    return 0.0


def _span(encoding: Encoding, shift: int, least: int) -> tuple[int, int]:
    """Return the characters [start, end) of a document that an encoding contains.

    Args:
        encoding: Encoding of a text of the document.
        shift: Position of the text in the document; a context before it is subtracted.
        least: Smallest position to return.
    """
    real = [index for index, owner in enumerate(encoding.sequence) if owner is not None]
    start, end = (encoding.offsets[real[0], 0], encoding.offsets[real[-1], 1]) if real else (0, 0)
    return max(int(start) + shift, least), max(int(end) + shift, least)


def _capacity(tokenizer: Tokenizer, prompt: str, length: int) -> int:
    """Return the number of tokens of a passage that remain after the prompt and special tokens.

    Raises:
        ConfigError: If less than half of `length` remains.
    """
    (empty,) = tokenizer.encode_batch([""], max_length=NO_LIMIT, prompts=[prompt])
    if length - len(empty) <= length // 2:
        raise ConfigError(
            f"length = {length} is too short: the prompt {prompt!r} and special tokens use "
            f"{len(empty)} tokens; increase length, or use a shorter prompt"
        )
    return length - len(empty)


def _check_vectors(
    vectors: NDArray[np.float32], passages: Sequence[Passage], *, min_length: float
) -> None:
    lengths = np.linalg.norm(vectors, axis=1)
    bad = np.flatnonzero(~(np.isfinite(lengths) & (lengths > min_length)))
    if len(bad):
        passage = passages[int(bad[0])]
        raise DataError(
            f"{passage.source}: the embedding of {passage.text[:40]!r} is zero, NaN or inf; check "
            "the model with `bertkit embed`"
        )
