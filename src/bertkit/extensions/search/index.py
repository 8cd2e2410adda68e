"""Indexing: documents are split into passages, which are embedded and added to a store."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from bertkit.checkpoint.directory import Loaded, load
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
"""Maximum number of documents, and of characters in them, that are written at a time. A run that is
resumed repeats at most this work."""


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
    """Add documents to a store, so that they can be searched.

    A document replaces the stored document that has the same id. If the document has not changed,
    it is skipped. All documents are read and checked before the first is written.

    Args:
        paths: Files or directories. In .jsonl, .csv and .tsv files, each row is a document; each
            .txt, .md, .html, .pdf, .docx, .rst or .ipynb file is one document. To resume a run that
            was stopped, run the same command again.
        model: Directory or hub id of the embedding model. Required for a new store. Default: the
            model of the existing store.
        store: Directory of the store, or http://host:port/NAME for a collection on a Qdrant server.
        length: Maximum number of tokens in a passage. Default: the maximum length of the model.
        long: What to do with documents that are longer than `length`: window splits them into
            passages at headings and paragraphs, truncate cuts them, and error stops the command.
        prompt: Prompt to prepend to each passage: the name of one of the model's prompts, or a
            literal such as "passage: ". Default: the model's prompt for documents, if any.
        query_prompt: Prompt that searches prepend to each query; it is recorded in the store.
            Default: the model's prompt for queries, if any.
        sync: Whether to remove all documents from the store that are not in the given paths.
        skip_bad: Whether to log and skip invalid files and rows, instead of stopping.
        precision: Precision of the computation.
        device: Device, such as cpu or cuda:0. auto selects a GPU if PyTorch finds one.
        columns: Columns of .jsonl, .csv and .tsv files.

    Returns:
        The number of documents, the numbers of unchanged documents, skipped files or rows, and
        removed or missing documents, and the number of passages in the store.

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
        if loaded.pooling is None and loaded.format is None:
            say(
                f"warning: {loaded.folder} is not an embedding model, so embeddings are the means "
                "of its token states; searches find more with an embedding model"
            )
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
    """Return the prompt for passages and the prompt for queries."""
    prompts = (loaded.pooling or Pooling()).prompts
    document, query = prompts.find(prompt, DOCUMENT), prompts.find(query_prompt, QUERY)
    if document or query or prompts.known:
        say(f"prompts: {document!r} before each passage, {query!r} before each query")
    return document, query


def _length(loaded: Loaded, length: int | None) -> int:
    """Return the maximum number of tokens in a passage.

    Raises:
        ConfigError: If the model does not support the length.
    """
    if length is not None and not 8 <= length <= loaded.length:
        raise ConfigError(f"length must be from 8 to {loaded.length} for this model, got {length}")
    return length or loaded.length


def _update_sources(
    store: Store,
    paths: Sequence[Path | str],
    new_sources: Mapping[str, str],
    unread: frozenset[str],
    *,
    sync: bool,
) -> int:
    """Record the new sources of moved documents, and remove documents that no longer exist.

    Args:
        store: The store.
        paths: Files or directories that were read.
        new_sources: Source of each document that was read in this run, by id.
        unread: Files that were skipped.
        sync: Whether to remove documents that no longer exist. If false, they are only logged.

    Returns:
        The number of documents that no longer exist.
    """
    sources = store.sources()
    moved = [id for id, source in new_sources.items() if sources.get(id) != source]
    if moved:
        say(f"documents that moved without other changes: {len(moved):,} ({shorten_list(moved)})")
    for part in batched(moved, PART_DOCUMENTS):
        store.move({id: new_sources[id] for id in part})
    gone = _find_gone(sources, paths, new_sources, unread, everything=sync)
    if sync:
        for part in batched(gone, PART_DOCUMENTS):
            store.remove(part)
    elif gone:
        say(
            f"documents in the store that these files no longer contain: {len(gone):,} "
            f"({shorten_list(gone)}); searches still find them, use --sync to remove them"
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
    """Return the source of each document, by id, and the number of invalid files and rows.

    Raises:
        DataError: If a document is invalid and `skip_bad` is false, or if there are no documents.
            Also if a document is invalid and `sync` is true, because `sync` would remove it from
            the store.
    """
    errors: list[DataError] = []
    sources: dict[str, str] = {}
    with progress() as bar:
        task = bar.add_task("reading", total=None, note="")
        for document in documents(listing, columns, on_error=errors.append, convert=convert):
            sources[document.id] = document.source
            bar.advance(task)
    remedy = ", or skip them with --skip-bad" if sources else ""
    if len(errors) == 1 and not skip_bad:
        raise DataError(f"{errors[0]}{remedy}")
    log_messages(list(map(str, errors)), "skipped: " if skip_bad else "")
    if errors and not skip_bad:
        raise DataError(
            f"{len(errors):,} files or rows are invalid, as listed above; correct them{remedy}: "
            f"{shorten_list(location_of(str(error)) for error in errors)}"
        )
    if not sources:
        raise DataError("the files contain no documents; check the paths")
    if sync and errors:
        raise DataError(
            f"--sync would remove the documents in {len(errors):,} invalid files or rows from the "
            "store; correct these files, or run the command without --sync"
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
    """Return the ids of documents that are in the store but were not read in this run.

    Args:
        sources: Source of each document in the store, by id.
        paths: Files or directories that were read.
        ids: Ids of the documents that were read.
        unread: Files that exist but were skipped. Their documents are not returned.
        everything: Whether to check all documents in the store. If false, only documents whose
            source is in `paths` are checked.
    """
    return sorted(
        id
        for id, source in sources.items()
        if id not in ids
        and source not in unread
        and (everything or any(_below(source, path) for path in paths_of(paths)))
    )


def _below(source: str, path: Path) -> bool:
    """Return whether a source, which is a file or one of its rows, is `path` or inside it."""
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
    parts = (document.text, dict(document.fields), document.headings, document.pages)
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def _write_part(store: Store, embed: Embedder, part: Sequence[Document], capacity: int) -> int:
    """Write the new and changed documents, and return how many are unchanged."""
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
    """Return the modification time of a source, which is a file or one of its rows."""
    for path in (source, source.rpartition(":")[0]):
        with contextlib.suppress(OSError):
            return Path(path).stat().st_mtime
    return 0.0


def _span(encoding: Encoding, shift: int, least: int) -> tuple[int, int]:
    """Return the start and end of the part of a document that an encoding contains.

    Args:
        encoding: Encoding of a part of the document, which may be preceded by context.
        shift: Number to add to an offset in the encoded text to get an offset in the document.
        least: Smallest offset to return. Offsets in the context are replaced with it.
    """
    real = [index for index, owner in enumerate(encoding.sequence) if owner is not None]
    start, end = (encoding.offsets[real[0], 0], encoding.offsets[real[-1], 1]) if real else (0, 0)
    return max(int(start) + shift, least), max(int(end) + shift, least)


def _capacity(tokenizer: Tokenizer, prompt: str, length: int) -> int:
    """Return how many tokens of a passage remain for text after the prompt and special tokens.

    Raises:
        ConfigError: If less than half of `length` remains.
    """
    (empty,) = tokenizer.encode_batch([""], max_length=NO_LIMIT, prompts=[prompt])
    if length - len(empty) <= length // 2:
        raise ConfigError(
            f"length = {length} is too short, because the prompt {prompt!r} and special tokens "
            f"already use {len(empty)} tokens; increase length, or use a shorter prompt"
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
            f"{passage.source}: the model computes a zero or non-finite embedding for "
            f"{passage.text[:40]!r}; check the model with `bertkit embed`"
        )
