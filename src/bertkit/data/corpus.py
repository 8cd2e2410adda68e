"""Tokenized corpora on disk, in memory-mapped shards of token ids, sentences and documents.

A corpus is a directory with a copy of the tokenizer in `tokenizer/` and these files. Numbers are
little-endian.

- `shard-00000.tokens`: the token ids of all sentences, as uint16 if the size of the vocabulary
  allows it, otherwise as uint32
- `shard-00000.sentences`: the number of tokens of each sentence, as uint8, never 0
- `shard-00000.documents`: the number of sentences of each document, as uint32, never 0
- `manifest.json`: the sources, the tokenizer, and the sizes and hashes of all files. It is written
  last.

A document is always in a single shard. Natural-language text requires about 2.05 bytes per token.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from bertkit import storage
from bertkit.data.remote_files import FileInfo, RemoteDirectory, is_url
from bertkit.data.shuffling import Permutation
from bertkit.errors import DataError
from bertkit.text.tokenizer import Tokenizer

FORMAT = 1

VOLUME_TOKENS = 1 << 28
"""Number of tokens that are loaded together, as one volume of a corpus. A volume requires about
200 MB of memory if samples have 128 tokens.
"""

SENTENCE_LIMIT = 128
"""Maximum number of tokens of a sentence.

Longer sentences are split into parts of about equal size, possibly within a word. The number of
tokens of a sentence therefore fits in one byte, and windows of 128 tokens lose few tokens.
"""

PARTS = ("tokens", "sentences", "documents")
TYPES: dict[str, np.dtype[Any]] = {"sentences": np.dtype("u1"), "documents": np.dtype("<u4")}


class Shard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Metadata of a shard: its counts, and the SHA-256 hash of each of its files by part."""

    tokens: int
    sentences: int
    documents: int
    sha256: dict[str, str]


class CorpusSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Name and size in bytes of a source file of the corpus."""

    file: str
    bytes: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Metadata of a corpus.

    `tokenizer` is the fingerprint of the tokenizer. `left_out` is the number of documents that were
    skipped because they had no tokens. `cut` counts how often a long document was split.
    """

    format: int
    tokenizer: str
    vocab_size: int
    dtype: Literal["uint16", "uint32"]
    shards: list[Shard]
    sources: list[CorpusSource]
    left_out: int
    cut: int


@dataclass(frozen=True)
class PreparedText:
    """Directory that contains tokenized text, a manifest, and a copy of the tokenizer."""

    folder: Path
    manifest: Any

    @property
    def place(self) -> str:
        """Path or URL from which the text can be loaded again."""
        return str(self.folder.resolve())

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        raise NotImplementedError

    def tokenizer(self) -> Tokenizer:
        """Load the tokenizer that the text was prepared with.

        Raises:
            DataError: If the copy of the tokenizer does not match the fingerprint in the manifest.
        """
        path = self.folder / "tokenizer"
        tokenizer = Tokenizer.load(path)
        if tokenizer.fingerprint != self.manifest.tokenizer:
            raise DataError(
                f"{path}: differs from the tokenizer in the manifest; prepare the corpus again"
            )
        return tokenizer


@dataclass(frozen=True)
class Corpus(PreparedText):
    """Prepared corpus, or a part of a corpus that consists of some of its shards.

    Indices of sentences and documents start at 0 and continue across the shards.
    """

    manifest: Manifest
    """Content of manifest.json."""
    numbers: tuple[int, ...]
    """Indices of the shards that this corpus consists of."""
    store: RemoteDirectory | None = None
    """Remote directory that contains the files, or None if all files are in the local directory."""

    @staticmethod
    def open(folder: str | Path) -> Corpus:
        """Load a corpus from a directory or a URL.

        Args:
            folder: The directory, or a URL that fsspec supports, such as s3://bucket/corpus.

        Returns:
            The corpus. The shards of a URL are downloaded when they are needed.

        Raises:
            DataError: If a file is missing, or its size differs from the manifest.
        """
        store = RemoteDirectory.open(str(folder)) if is_url(folder) else None
        folder = store.folder if store else Path(folder)
        path = folder / "manifest.json"
        if not path.is_file():
            raise DataError(
                f"{folder}: not a corpus (no manifest.json); create it with `bertkit prepare`"
            )
        manifest = _read_manifest(path)
        corpus = Corpus(folder, manifest, tuple(range(len(manifest.shards))), store)
        for name, expected in corpus.files().items() if store is None else ():
            file = folder / name
            if not file.is_file():
                raise DataError(f"{file}: file not found; prepare the corpus again")
            if file.stat().st_size != expected.bytes:
                raise DataError(
                    f"{file}: expected {expected.bytes} bytes, got {file.stat().st_size}; prepare "
                    "the corpus again"
                )
        return corpus

    def part(self, numbers: Sequence[int]) -> Corpus:
        """Return a corpus with only the given shards.

        Args:
            numbers: Indices of the shards.
        """
        return replace(self, numbers=tuple(numbers))

    @cached_property
    def volumes(self) -> list[tuple[int, ...]]:
        """Groups of shards that are loaded together. Each has about `VOLUME_TOKENS` tokens.

        A smaller corpus has a single volume. Shards are assigned to volumes in a fixed random
        order, and all volumes have about the same number of shards.
        """
        count = -(-self.tokens // VOLUME_TOKENS)
        if count <= 1:
            return [self.numbers]
        order = Permutation(len(self.numbers), 0, 0)(np.arange(len(self.numbers)))
        parts = np.array_split(np.array(self.numbers)[order], min(count, len(order)))
        return [tuple(map(int, sorted(part))) for part in parts]

    @property
    def first_volume(self) -> Corpus:
        """Corpus that consists of the first volume, or this corpus if it has only one volume."""
        return self if len(self.volumes) == 1 else self.part(self.volumes[0])

    @property
    def place(self) -> str:
        return self.store.url if self.store else super().place

    @property
    def shards(self) -> list[Shard]:
        """Sizes and file hashes of each shard."""
        return [self.manifest.shards[number] for number in self.numbers]

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)

    @property
    def sentences(self) -> int:
        """Number of sentences."""
        return sum(shard.sentences for shard in self.shards)

    @property
    def documents(self) -> int:
        """Number of documents."""
        return sum(shard.documents for shard in self.shards)

    @property
    def bytes(self) -> int:
        """Number of bytes on disk, including the copy of the tokenizer."""
        return sum(p.stat().st_size for p in self.folder.rglob("*") if p.is_file())

    @cached_property
    def document_starts(self) -> NDArray[np.int64]:
        """Index of the first sentence of each document, followed by the number of sentences.

        Shapes:
            (documents + 1,).
        """
        return self._cumulative("documents", self.documents)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Index of the first token of each sentence, followed by the number of tokens.

        Shapes:
            (sentences + 1,).
        """
        return self._cumulative("sentences", self.sentences)

    def slice(self, first_sentence: int, last_sentence: int) -> NDArray[Any]:
        """Return the tokens of consecutive sentences as a read-only view of their shard.

        Args:
            first_sentence: Index of the first sentence.
            last_sentence: Index after the last sentence.

        Raises:
            ValueError: If the sentences are not all in one shard. The sentences of a document are
                always in the same shard.
            DataError: If a token is not in the vocabulary.

        Shapes:
            returns: (T,).
        """
        shard = int(np.searchsorted(self._shard_sentences, first_sentence, side="right")) - 1
        in_one = 0 <= shard < len(self._tokens)
        if not in_one or not first_sentence <= last_sentence <= self._shard_sentences[shard + 1]:
            raise ValueError(f"sentences {first_sentence} to {last_sentence} are not in one shard")
        origin = self._shard_tokens[shard]
        start, end = self.starts[first_sentence] - origin, self.starts[last_sentence] - origin
        tokens = self._tokens[shard][start:end]
        name = shard_name(self.numbers[shard], "tokens")
        check_ids(tokens, self.manifest.vocab_size, self.folder, name)
        return tokens

    def verify(self) -> None:
        """Check that the hash of every file matches the manifest.

        Raises:
            DataError: If a file is damaged.
        """
        self.fetch()
        for name, expected in self.files().items():
            if storage.sha256(self.folder / name) != expected.sha256:
                raise DataError(
                    f"{self.folder / name}: damaged (the hash differs from the manifest); prepare "
                    "the corpus again"
                )

    def files(self) -> dict[str, FileInfo]:
        """Return the size and hash of each file of the shards."""
        types = {**TYPES, "tokens": np.dtype(self.manifest.dtype)}
        return {
            shard_name(number, part): FileInfo(
                getattr(shard, part) * types[part].itemsize, shard.sha256[part]
            )
            for number, shard in zip(self.numbers, self.shards, strict=True)
            for part in PARTS
        }

    def fetch(self) -> None:
        """Download the files of a remote corpus.

        Raises:
            DataError: If a file cannot be downloaded.
        """
        if self.store is not None:
            self.store.fetch(self.files())

    @cached_property
    def _tokens(self) -> list[NDArray[Any]]:
        self.fetch()
        dtype = np.dtype(self.manifest.dtype).newbyteorder("<")
        names = (shard_name(number, "tokens") for number in self.numbers)
        return [np.memmap(self.folder / name, dtype, "r").view(np.ndarray) for name in names]

    @cached_property
    def _shard_sentences(self) -> NDArray[np.int64]:
        return np.cumsum([0, *(shard.sentences for shard in self.shards)])

    @cached_property
    def _shard_tokens(self) -> NDArray[np.int64]:
        return np.cumsum([0, *(shard.tokens for shard in self.shards)])

    def _cumulative(self, part: str, count: int) -> NDArray[np.int64]:
        self.fetch()
        ends = np.zeros(count + 1, np.int64)
        at = 1
        for number in self.numbers:
            path, shard = self.folder / shard_name(number, part), self.manifest.shards[number]
            counts = np.fromfile(path, TYPES[part])
            check_total(counts, shard.sentences if part == "documents" else shard.tokens, path)
            ends[at : at + len(counts)] = counts
            at += len(counts)
        return np.cumsum(ends, out=ends)


def check_total(counts: NDArray[Any], total: int, path: Path) -> None:
    """Check that the sum of the counts equals the total in the manifest.

    Raises:
        DataError: If the sum and the total differ.
    """
    if (found := int(counts.sum(dtype=np.int64))) != total:
        raise DataError(
            f"{path}: damaged (total {found:,}, expected {total:,}); prepare the corpus again"
        )


def check_ids(ids: NDArray[Any], vocab_size: int, folder: Path, name: str) -> None:
    """Check that all token ids in a file are less than the size of the vocabulary.

    Raises:
        DataError: If a token id is too large.
    """
    if len(ids) and ids.max() >= vocab_size:
        raise DataError(
            f"{folder / name}: damaged (token id {ids.max()}, vocabulary size {vocab_size}); "
            "prepare the corpus again"
        )


def shard_name(number: int, part: str) -> str:
    """Return the name of a file of a shard, such as shard-00000.tokens."""
    return f"shard-{number:05d}.{part}"


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest. This is the last step of creating a corpus."""
    storage.write_text(folder / "manifest.json", msgspec.json.encode(manifest).decode())


class ShardWriter:
    """Writer of one shard: the files `<name>.tokens`, `.sentences` and `.documents`."""

    def __init__(self, name: Path, dtype: np.dtype[Any]) -> None:
        self._types = {**TYPES, "tokens": dtype}
        self._files = {part: name.with_name(f"{name.name}.{part}").open("wb") for part in PARTS}
        self._hashes = {part: hashlib.sha256() for part in PARTS}
        self._counts = dict.fromkeys(PARTS, 0)

    @property
    def tokens(self) -> int:
        return self._counts["tokens"]

    def add(self, part: str, values: NDArray[Any]) -> None:
        """Append values to the file of a part."""
        data = values.astype(self._types[part], copy=False).tobytes()
        self._files[part].write(data)
        self._hashes[part].update(data)
        self._counts[part] += len(values)

    def close(self) -> Shard:
        """Sync all files to disk and return the metadata of the shard."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
            file.close()
        return Shard(
            **self._counts, sha256={part: self._hashes[part].hexdigest() for part in PARTS}
        )


class Made(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Result of `Shards`: the metadata of the shards, and the counts for the manifest."""

    shards: list[Shard]
    left_out: int
    cut: int


class Shards:
    """Writer that stores batches of documents in shards.

    The last document of a batch may continue in the next batch. After each batch, a shard that has
    at least `limit` tokens is closed as soon as its last document is complete. If a document
    continues although it already has `limit` tokens, it is split at the end of the batch.
    """

    def __init__(self, name: Path, dtype: np.dtype[Any], limit: int) -> None:
        self._name, self._dtype, self._limit = name, dtype, limit
        self._writer: ShardWriter | None = None
        # This is the number of sentences and tokens of the last document.
        self._open: tuple[int, int] | None = None
        self._shards: list[Shard] = []
        self._left_out = self._cut = 0

    def add(
        self, tokens: NDArray[Any], counts: NDArray[np.int64], documents: list[int], continues: bool
    ) -> None:
        """Write a batch of documents.

        Args:
            tokens: Token ids of all documents.
            counts: Number of tokens of each sentence.
            documents: Number of sentences of each document.
            continues: Whether the first document is the continuation of the last document of the
                previous batch.
        """
        part_counts, num_parts = cut_sentences(counts)
        ends = np.cumsum([0, *documents])
        sentences = np.diff(_from_zero(num_parts)[ends])
        sizes = np.diff(_from_zero(counts)[ends])
        is_continued = continues and self._open is not None and self._open[1] < self._limit
        if is_continued and self._open is not None:
            sentences[0] += self._open[0]
            sizes[0] += self._open[1]
        else:
            self._cut += continues
            self._end_document()
            if self._writer is not None and self._writer.tokens >= self._limit:
                self._end_shard()
        if len(tokens):
            writer = self._writer = self._writer or self._next()
            writer.add("tokens", tokens)
            writer.add("sentences", part_counts)
        self._end_documents(sentences[:-1])
        self._open = int(sentences[-1]), int(sizes[-1])

    def close(self) -> Made:
        self._end_document()
        self._end_shard()
        return Made(self._shards, self._left_out, self._cut)

    def _next(self) -> ShardWriter:
        name = f"{self._name.name}-{len(self._shards):03d}"
        return ShardWriter(self._name.with_name(name), self._dtype)

    def _end_document(self) -> None:
        if self._open is not None:
            self._end_documents(np.array(self._open[:1]))
            self._open = None

    def _end_documents(self, sentences: NDArray[np.int64]) -> None:
        nonempty = sentences[sentences > 0]
        self._left_out += len(sentences) - len(nonempty)
        if len(nonempty):
            assert self._writer is not None
            self._writer.add("documents", nonempty)

    def _end_shard(self) -> None:
        if self._writer is not None:
            self._shards.append(self._writer.close())
            self._writer = None


def _from_zero(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(counts)])


def cut_sentences(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split each sentence that exceeds `SENTENCE_LIMIT` tokens into parts of about equal size.

    Args:
        counts: Number of tokens of each sentence.

    Returns:
        Number of tokens of each part, and number of parts of each sentence.

    Shapes:
        counts: (S,); returns (P,) and (S,).
    """
    num_parts = -(-counts // SENTENCE_LIMIT)
    sentences = np.repeat(np.arange(len(counts)), num_parts)
    index = np.arange(len(sentences)) - np.repeat(np.cumsum(num_parts) - num_parts, num_parts)
    size, longer = np.divmod(counts, np.maximum(num_parts, 1))
    return size[sentences] + (index < longer[sentences]), num_parts


def read_manifest(
    path: Path, kind: Any, version: int, remedy: str = "prepare the corpus again"
) -> Any:
    """Read the manifest of prepared text and convert it to the type `kind`.

    Raises:
        DataError: If the manifest is damaged, or its format has a different version.
    """
    try:
        content = storage.read_bytes(path, DataError, most=storage.VOCABULARY)
        manifest = msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path}: not a valid manifest ({error}); {remedy}") from None
    if manifest.format != version:
        raise DataError(f"{path}: format {manifest.format}, expected {version}; {remedy}")
    return manifest


def _read_manifest(path: Path) -> Manifest:
    """Read the manifest of a corpus, and check that it has a hash for each file of a shard."""
    manifest: Manifest = read_manifest(path, Manifest, FORMAT)
    for i, shard in enumerate(manifest.shards):
        if set(shard.sha256) != set(PARTS):
            raise DataError(f"{path}: shards[{i}].sha256 must contain {', '.join(PARTS)}")
    return manifest
