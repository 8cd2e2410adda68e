"""Interface of stores, which hold passages and are searched by embedding or by keywords."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from bertkit.data.paths import suffix
from bertkit.errors import ConfigError, SearchError, did_you_mean
from bertkit.extensions.search.documents import Kind, Value
from bertkit.storage import from_json
from bertkit.text.long_texts import Long

FORMAT_VERSION = 4
"""Version of the format in which stores are written."""

Similarity = Literal["cosine", "dot"]

ID_FIELD = "id"
"""Name of the field that contains a document's id."""

STORED: Mapping[str, Kind] = {
    ID_FIELD: "text",
    "source": "text",
    "suffix": "text",
    "modified": "number",
    "heading": "text",
    "text": "text",
    "passage": "number",
    "start": "number",
    "end": "number",
}
"""Fields that conditions can use in every store, in addition to the kept columns."""

COMPUTED = {
    "score": "--min-score",
    "sentence": "text",
    "sentence_start": "start",
    "sentence_end": "end",
}
"""Attributes of a hit that conditions cannot use, because they depend on the query. Each is mapped
to the option or field to use instead."""

Operator = Literal["=", "!=", "<", "<=", ">", ">="]


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a store, which apply to all of its documents.

    Attributes:
        model: Path or hub id of the embedding model.
        fingerprint: Hash of the model's weights, tokenizer and pooling.
        dimension: Dimension of the embeddings.
        length: Maximum number of tokens in a passage.
        long: What to do with documents that are longer than `length`: window, truncate or error.
        fields: Names and types of the kept columns.
        prompt: Prompt that is prepended to each passage.
        query_prompt: Prompt that is prepended to each query.
        similarity: Similarity function of the embeddings.
        version: Version of the store format.
    """

    model: str
    fingerprint: str
    dimension: int
    length: int
    long: Long
    fields: dict[str, Kind]
    prompt: str = ""
    query_prompt: str = ""
    similarity: Similarity = "cosine"
    version: int = FORMAT_VERSION


@dataclass(frozen=True)
class Passage:
    """A part of a document, from character `start` up to but not including `end`.

    Attributes:
        id: Id of the document.
        number: Index of the passage in the document, from 0.
        text: Text of the passage.
        start: Offset of the first character.
        end: Offset after the last character.
        source: File that contains the document. For a row, FILE:LINE.
        digest: Hash of the document's whole text, headings, pages and kept columns.
        fields: Values of the kept columns.
        heading: Headings above the passage.
        modified: Time at which the file was last changed, in seconds since 1970.
    """

    id: str
    number: int
    text: str
    start: int
    end: int
    source: str
    digest: str
    fields: Mapping[str, Value]
    heading: str = ""
    modified: float = 0.0

    @property
    def suffix(self) -> str:
        """Type of the source file, such as .md."""
        return source_suffix(self.source)


def source_suffix(source: str) -> str:
    """Return the file type of a source, which is a file or a row of a file."""
    return suffix(Path(re.sub(r":\d+$", "", source)))


class Hit(msgspec.Struct, frozen=True, omit_defaults=True):
    """A passage that was found for a query.

    Attributes:
        id: Id of the document.
        score: Relevance to the query; larger is better.
        text: Text of the passage: characters [start, end) of the document.
        start: Offset of the first character.
        end: Offset after the last character.
        passage: Index of the passage in the document, from 0.
        source: File that contains the document. For a row, FILE:LINE.
        fields: Values of the kept columns.
        heading: Headings above the passage.
        sentence: Sentence of the passage that best matches the query, if it was requested. It is at
            characters [sentence_start, sentence_end) of the document.
        suffix: Type of the source file, such as .md.
        modified: Time at which the file was last changed, in seconds since 1970.
        sentence_start: Offset of the first character of the sentence, or -1.
        sentence_end: Offset after the last character of the sentence, or -1.
    """

    id: str
    score: float
    text: str
    start: int
    end: int
    passage: int
    source: str
    fields: dict[str, Value]
    heading: str = ""
    sentence: str = ""
    suffix: str = ""
    modified: float = 0.0
    sentence_start: int = -1
    sentence_end: int = -1


SHOWN = ("id", "number", "text", "start", "end", "source", "heading", "suffix", "modified")
"""Columns of a passage that are copied to a hit, in addition to the kept columns."""


def hit(row: Mapping[str, Any], score: float, fields: Mapping[str, Value]) -> Hit:
    """Create a hit from the columns of a passage."""
    columns = {name: row[name] for name in SHOWN}
    number = columns.pop("number")
    return Hit(score=score, passage=number, fields=dict(fields), **columns)


@dataclass(frozen=True)
class Condition:
    """A comparison of a field with a value. Documents without the field do not match."""

    field: str
    operator: Operator
    value: str | float


class Store(ABC):
    """A store of passages with their embeddings.

    Documents are always written as a whole. A document replaces the stored document that has the
    same id.
    """

    location: str
    """Path or address of the store."""
    spec: Spec

    @abstractmethod
    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the digests of the given documents that the store contains, by id.

        Documents that the current run has written are included.
        """

    @abstractmethod
    def replace(self, passages: Sequence[Passage], vectors: NDArray[np.float32]) -> None:
        """Write whole documents, replacing stored documents that have the same ids.

        Args:
            passages: All passages of the documents.
            vectors: The embedding of each passage.

        Shapes:
            vectors: (P, D).
        """

    @abstractmethod
    def sources(self) -> dict[str, str]:
        """Return the source of each document, by id.

        Documents that the current run has written are included.
        """

    @abstractmethod
    def move(self, sources: Mapping[str, str]) -> None:
        """Set a new source for each of the given documents, by id, and change nothing else."""

    @abstractmethod
    def remove(self, ids: Sequence[str]) -> None:
        """Remove the documents with the given ids."""

    @abstractmethod
    def finish(self) -> None:
        """Make all documents that were written visible to searches."""

    @abstractmethod
    def close(self) -> None:
        """Release the lock of the store, so that other processes can write to it."""

    @abstractmethod
    def by_vector(
        self, vector: NDArray[np.float32], count: int, filters: Sequence[Condition] = ()
    ) -> list[Hit]:
        """Return the passages whose embeddings have the largest dot products with `vector`.

        Args:
            vector: Embedding of the query.
            count: Maximum number of passages.
            filters: Conditions that each passage must satisfy.

        Shapes:
            vector: (D,).
        """

    @abstractmethod
    def by_words(self, query: str, count: int, filters: Sequence[Condition] = ()) -> list[Hit]:
        """Return passages that contain keywords of the query, sorted by BM25 score, best first.

        Args:
            query: The query.
            count: Maximum number of passages.
            filters: Conditions that each passage must satisfy.
        """

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of passages that are visible to searches."""


def read_spec(location: str, text: str | bytes, required: Spec | None = None) -> Spec:
    """Read the spec of a store.

    Args:
        location: Path or address of the store, for messages.
        text: The spec as JSON.
        required: Spec that the store must have. Default: any spec is accepted.

    Returns:
        The spec.

    Raises:
        SearchError: If the spec is invalid, has an unsupported version, or differs from `required`.
    """
    try:
        data = text.encode() if isinstance(text, str) else text
        spec = msgspec.convert(from_json(data), type=Spec)
    except (msgspec.ValidationError, ValueError) as error:
        raise SearchError(f"{location}: the settings of the store are invalid ({error})") from None
    if spec.version != FORMAT_VERSION:
        raise SearchError(
            f"{location}: expected store version {FORMAT_VERSION}, got {spec.version}; use the "
            "version of bertkit that created it, or index again into a new store"
        )
    if required is not None:
        _check_same(location, spec, required)
    return spec


def _check_same(location: str, spec: Spec, required: Spec) -> None:
    """Raise SearchError if the spec of a store differs from the required spec."""
    differences = {
        "fingerprint": f"the model {spec.model}, not {required.model}",
        "length": f"passages of {spec.length} tokens, not {required.length}",
        "long": f"--long {spec.long}, not {required.long}",
        "fields": f"--keep {_format_fields(spec.fields)}, not {_format_fields(required.fields)}",
        "prompt": f"--prompt {spec.prompt!r}, not {required.prompt!r}",
        "query_prompt": f"--query-prompt {spec.query_prompt!r}, not {required.query_prompt!r}",
        "similarity": f"similarity {spec.similarity}, not {required.similarity}",
    }
    for name, values in differences.items():
        if getattr(spec, name) != getattr(required, name):
            raise SearchError(
                f"{location}: the store was made with {values}; use the same setting, or a new "
                "store"
            )


def _format_fields(fields: Mapping[str, Kind]) -> str:
    return ", ".join(f"{name}:{kind}" for name, kind in fields.items()) or "nothing"


_CONDITION = re.compile(r"(.+?)\s*(!=|<=|>=|=|<|>)\s*(.*)", re.DOTALL)


def conditions(texts: Sequence[str], fields: Mapping[str, Kind]) -> list[Condition]:
    """Parse conditions such as `year>=1960` on kept columns and on the fields in `STORED`.

    Args:
        texts: The conditions.
        fields: Names and types of the kept columns.

    Returns:
        The parsed conditions.

    Raises:
        ConfigError: If a condition cannot be parsed, or its field does not exist.
    """
    columns, fields = fields, {**STORED, **fields}
    parsed = []
    for text in texts:
        parts = _CONDITION.fullmatch(text.strip())
        if parts is None:
            raise ConfigError(f"where: cannot parse {text!r}; use FIELD=VALUE, or !=, <, <=, >, >=")
        name, operator, value = cast("tuple[str, Operator, str]", parts.groups())
        if name in COMPUTED and name not in fields:
            raise ConfigError(f"where: {name} depends on the query; use {COMPUTED[name]} instead")
        if name not in fields:
            raise ConfigError(
                f"where: field {name!r} not found in this store; {did_you_mean(name, fields)}"
            )
        number = fields[name] == "number"
        if not number and operator not in ("=", "!="):
            remedy = f"index it as a number (--keep {name}:number)"
            raise ConfigError(
                f"where: {name} contains text, which {operator} cannot compare; "
                + (remedy if name in columns else "use = or !=")
            )
        try:
            parsed_value = _number(name, value) if number else value
            if isinstance(parsed_value, float) and not math.isfinite(parsed_value):
                raise ValueError
        except ValueError:
            raise ConfigError(f"where: {name} must be a number, got {value!r}") from None
        parsed.append(Condition(name, operator, parsed_value))
    return parsed


def _number(name: str, value: str) -> float:
    """Parse a number. For the field `modified`, a date and time in ISO 8601 is also accepted."""
    if name == "modified" and "-" in value[1:]:
        return datetime.fromisoformat(value).timestamp()
    return float(value)
