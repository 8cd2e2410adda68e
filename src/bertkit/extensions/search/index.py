"""Documents -> passages -> vectors -> a store."""

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
from bertkit.config import Count
from bertkit.console import say
from bertkit.data.paths import paths_of
from bertkit.data.row_errors import place, show, some
from bertkit.errors import ConfigError, DataError, SearchError
from bertkit.extensions.search.converter import Converter
from bertkit.extensions.search.documents import (
    Document,
    DocumentColumns,
    Listing,
    documents,
    listed,
)
from bertkit.extensions.search.passages import Section, cut
from bertkit.extensions.search.searcher import load_embedder, model_of, name_of, similarity_of
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
"""How many are written at a time, and how much of the work a stopped run does again at most."""


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
        paths: Files or folders: .jsonl, .csv or .tsv, a document a row; .txt, .md, .html, .pdf,
            .docx, .rst or .ipynb. The same command goes on after a stop.
        model: A model folder or hub id that makes vectors of texts; of a store that is there, by
            default its own.
        store: A folder, or http://host:port/NAME for a collection of a Qdrant server.
        length: Tokens of a passage; by default the most the model reads.
        long: Documents longer than the model: passages cut at headings and paragraphs, the
            beginning, or an error.
        prompt: What stands before each passage: a name of the model's prompts, or a text such as
            "passage: "; by default the model's for documents, if any.
        query_prompt: Text before each query; the store keeps it.
        sync: Take out what is in the store and not among these documents.
        skip_bad: Leave out files and rows that cannot be used, and name them.
        precision: Precision of the computation.
        device: auto, cpu or a CUDA device such as cuda:0. auto is a GPU if PyTorch finds one.

    Returns:
        The number of documents, of unchanged and removed documents, and of passages in the store.

    Raises:
        ConfigError: If a setting is invalid.
        DataError: If a document is invalid.
        SearchError: If the store was made with another model or other settings.
    """
    limit_onednn_cache()
    columns = columns or DocumentColumns()
    device = inference_device(device, precision, model)
    if model is None:
        model = _its_model(store)
    listing = listed(paths)
    say(str(listing))
    with Converter() as convert:
        names, left_out = _read_all(listing, columns, convert, skip_bad=skip_bad, sync=sync)
        loaded = model if isinstance(model, Loaded) else load(model)
        before, asked = _prompts(loaded, prompt, query_prompt)
        length = _length(loaded, length)
        capacity = _room(loaded.tokenizer, before, length)
        similarity = similarity_of(loaded)
        embed = load_embedder(loaded, precision, similarity, before, device)
        spec = Spec(
            model=name_of(model),
            fingerprint=embed.fingerprint(),
            dimension=embed.dimension,
            length=length,
            long=long,
            fields=columns.fields(),
            prompt=before,
            query_prompt=asked,
            similarity=similarity,
        )
        with closing(open_store(store, create=spec)) as opened:
            unchanged = 0
            with progress() as bar:
                task = bar.add_task("indexing", total=len(names), note="")
                again = documents(listing, columns, bad=lambda _: None, convert=convert)
                for read in _parts(again):
                    unchanged += _write_part(opened, embed, read, capacity)
                    bar.advance(task, len(read))
            gone = _update_sources(opened, paths, names, frozenset(listing.unread), sync=sync)
            opened.finish()
            return {
                "documents": len(names),
                "unchanged": unchanged,
                **({"left_out": left_out} if left_out else {}),
                **({"removed" if sync else "gone": gone} if sync or gone else {}),
                "passages": len(opened),
            }


def _prompts(loaded: Loaded, prompt: str | None, query_prompt: str | None) -> tuple[str, str]:
    """Return the prompts of passages and of queries."""
    prompts = (loaded.pooling or Pooling()).prompts
    before, asked = prompts.find(prompt, DOCUMENT), prompts.find(query_prompt, QUERY)
    if before or asked or prompts.known:
        say(f"prompts: {before!r} before each passage, {asked!r} before each query")
    return before, asked


def _length(loaded: Loaded, length: int | None) -> int:
    """Return the number of tokens of a passage.

    Raises:
        ConfigError: If the model does not support it.
    """
    if length is not None and not 8 <= length <= loaded.length:
        raise ConfigError(f"length: {length}; this model reads 8 to {loaded.length} tokens")
    return length or loaded.length


def _update_sources(
    store: Store,
    paths: Sequence[Path | str],
    names: Mapping[str, str],
    unread: frozenset[str],
    *,
    sync: bool,
) -> int:
    """Update the sources of moved documents, and remove documents that are gone.

    Args:
        store: The store.
        paths: Files or directories that were read.
        names: Source of each document, by id.
        unread: Files that were skipped.
        sync: Whether to remove documents that are gone; else they are reported.

    Returns:
        The number of documents that are gone.
    """
    sources = store.sources()
    moved = [id for id, where in names.items() if sources.get(id) != where]
    if moved:
        say(f"the same as before, and in other places: {len(moved):,} ({some(moved)})")
    for part in batched(moved, PART_DOCUMENTS):
        store.move({id: names[id] for id in part})
    gone = _gone(sources, paths, names, unread, everything=sync)
    if sync:
        for part in batched(gone, PART_DOCUMENTS):
            store.remove(part)
    elif gone:
        say(
            f"in the store, and in these files no more: {len(gone):,} ({some(gone)}); "
            "searches still find them, and --sync takes them out"
        )
    return len(gone)


def _its_model(place: str) -> Loaded:
    """The model that a store was made with. Raises: SearchError where there is none."""
    try:
        store = open_store(place)
    except SearchError as error:
        raise SearchError(
            f"--model is missing, and there is no store to take it from: {error}"
        ) from None
    say(f"model: {store.spec.model}, with which {place} was made")
    return model_of(store)


def _read_all(
    listing: Listing, columns: DocumentColumns, convert: Converter, *, skip_bad: bool, sync: bool
) -> tuple[dict[str, str], int]:
    """Return the source of each document, by its id, and the number of skipped files and rows.

    Raises:
        DataError: If a document is invalid and is not skipped, or `sync` would remove it.
    """
    bad: list[DataError] = []
    names: dict[str, str] = {}
    with progress() as bar:
        task = bar.add_task("reading", total=None, note="")
        for document in documents(listing, columns, bad=bad.append, convert=convert):
            names[document.id] = document.where
            bar.advance(task)
    if len(bad) == 1 and not skip_bad:
        raise DataError(f"{bad[0]} (--skip-bad leaves it out)")
    show(list(map(str, bad)), "left out: " if skip_bad else "")
    if bad and not skip_bad:
        raise DataError(
            f"{len(bad):,} files or rows cannot be used, as said above; mend them, or leave them "
            f"out (--skip-bad): {some(place(str(error)) for error in bad)}"
        )
    if not names:
        raise DataError("no document in these files")
    if sync and bad:
        raise DataError(
            f"--sync would take out what {len(bad):,} files or rows held that cannot be used "
            "now; mend them, or leave out --sync"
        )
    return names, len(bad)


def _gone(
    sources: Mapping[str, str],
    paths: Sequence[Path | str],
    names: Container[str],
    unread: frozenset[str],
    *,
    everything: bool,
) -> list[str]:
    """The ids of documents that are in the store and not among these: of all that it holds, or of
    those that were read from these paths. Files that are there, and unread, are not gone.
    """
    return sorted(
        id
        for id, source in sources.items()
        if id not in names
        and source not in unread
        and (everything or any(_below(source, path) for path in paths_of(paths)))
    )


def _below(source: str, path: Path) -> bool:
    """Whether a source, a file or a row of one, is at or below a path."""
    at = Path(source)
    return path in (at, *at.parents) or source.startswith(f"{path}:")


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


def _write_part(store: Store, embed: Embedder, part: Sequence[Document], room: int) -> int:
    """Write those that the store has not as they are; how many it has."""
    digests = [_digest(document) for document in part]
    there = store.digests([document.id for document in part])
    new = [
        (document, digest)
        for document, digest in zip(part, digests, strict=True)
        if there.get(document.id) != digest
    ]
    if new:
        _write(store, embed, new, room)
    return len(part) - len(new)


def _write(store: Store, embed: Embedder, new: Sequence[tuple[Document, str]], room: int) -> None:
    documents = [document for document, _ in new]
    if store.spec.long == "window":
        parts = cut(documents, embed.tokenizer, room)
    else:
        parts = [[Section(0, len(document.text))] for document in documents]
    flat = [(place, part) for place, own in enumerate(parts) for part in own]
    contexts = [f"{part.context}\n" if part.context else "" for _, part in flat]
    encodings, owner = encode(
        embed.tokenizer,
        [
            context + documents[place].text[part.start : part.end]
            for (place, part), context in zip(flat, contexts, strict=True)
        ],
        length=store.spec.length,
        long=store.spec.long,
        where=[documents[place].where for place, _ in flat],
        prompts=[store.spec.prompt] * len(flat),
    )
    vectors = embed.vectors(encodings)
    passages: list[Passage] = []
    for at, encoding in zip(owner, encodings, strict=True):
        (place, part), context = flat[at], contexts[at]
        document, digest = new[place]
        number = passages[-1].number + 1 if passages and passages[-1].id == document.id else 0
        start, end = _characters(encoding, part.start - len(context), part.start)
        passages.append(
            Passage(
                document.id,
                number,
                document.text[start:end],
                start,
                end,
                document.where,
                digest,
                document.fields,
                part.heading,
                _modified(document.where),
            )
        )
    _refuse_unusable(vectors, passages, least=0.5 if store.spec.similarity == "cosine" else 0.0)
    store.replace(passages, vectors)


def _modified(source: str) -> float:
    """Return the time of the last change of a source, which is a file or a row of a file."""
    for path in (source, source.rpartition(":")[0]):
        with contextlib.suppress(OSError):
            return Path(path).stat().st_mtime
    return 0.0


def _characters(encoding: Encoding, shift: int, least: int) -> tuple[int, int]:
    """Which characters of a document an encoding holds, `shift` before which its text begins."""
    real = [place for place, owner in enumerate(encoding.sequence) if owner is not None]
    start, end = (encoding.offsets[real[0], 0], encoding.offsets[real[-1], 1]) if real else (0, 0)
    return max(int(start) + shift, least), max(int(end) + shift, least)


def _room(tokenizer: Tokenizer, prompt: str, length: int) -> int:
    """How many tokens of a passage are for its text. Raises: ConfigError where it is too few."""
    (alone,) = tokenizer.encode_batch([""], max_length=NO_LIMIT, prompts=[prompt])
    if length - len(alone) <= length // 2:
        raise ConfigError(
            f"length: {length} tokens, of which the prompt {prompt!r} takes {len(alone)}; give "
            "passages more, or a shorter prompt"
        )
    return length - len(alone)


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
