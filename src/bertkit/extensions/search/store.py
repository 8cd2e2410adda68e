"""Interface of a store of passages, which is searched by embeddings or by keywords."""

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
"""Version of the format of stores."""

Similarity = Literal["cosine", "dot"]

ID_FIELD = "id"
"""Name of the field of a document's id."""

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
"""Fields of every store that conditions can use, in addition to the kept columns."""

COMPUTED = {
    "score": "--min-score",
    "sentence": "text",
    "sentence_start": "start",
    "sentence_end": "end",
}
"""Values of a hit that depend on the query, with the option or field to use in a condition."""

Operator = Literal["=", "!=", "<", "<=", ">", ">="]


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a store, which are the same for all documents.

    Attributes:
        model: Path or hub id of the embedding model.
        fingerprint: Hash of the model, its tokenizer and its pooling.
        dimension: Dimension of the embeddings.
        length: Maximum number of tokens of a passage.
        long: Policy for documents that are longer than `length`: window, truncate or error.
        fields: Names and types of the kept columns.
        prompt: Text before each passage.
        query_prompt: Text before each query.
        similarity: Similarity function of the embeddings.
        version: Version of the format.
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
    """A part of a document: characters [start, end).

    Attributes:
        id: Id of the document.
        number: Index of the passage in the document, from 0.
        text: Text of the passage.
        start: Offset of the first character.
        end: Offset after the last character.
        source: File of the document, or file and line of a row.
        digest: Hash of the complete document.
        fields: Values of the kept columns.
        heading: Headings above the passage.
        modified: Time of the last change of the file, in seconds since 1970.
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
        score: Relevance; larger is better.
        text: Text of the passage: characters [start, end) of the document.
        start: Offset of the first character.
        end: Offset after the last character.
        passage: Index of the passage in the document, from 0.
        source: File of the document, or file and line of a row.
        fields: Values of the kept columns.
        heading: Headings above the passage.
        sentence: Best sentence for the query, if requested: characters
            [sentence_start, sentence_end) of the document.
        suffix: Type of the source file, such as .md.
        modified: Time of the last change of the file, in seconds since 1970.
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
"""Columns of a passage that a hit contains, in addition to the kept columns."""


def hit(row: Mapping[str, Any], score: float, fields: Mapping[str, Value]) -> Hit:
    """Return a hit from the columns of a passage."""
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

    Documents are written completely, and replace the document with the same id.
    """

    location: str
    """Path or address of the store."""
    spec: Spec

    @abstractmethod
    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the digest of each of these documents that the store contains, by id.

        Documents of the current run are included.
        """

    @abstractmethod
    def replace(self, passages: Sequence[Passage], vectors: NDArray[np.float32]) -> None:
        """Write complete documents, and replace documents with the same ids.

        Args:
            passages: All passages of the documents.
            vectors: One embedding per passage.

        Shapes:
            vectors: (P, D).
        """

    @abstractmethod
    def sources(self) -> dict[str, str]:
        """Return the source of each document, by id. Documents of the current run are included."""

    @abstractmethod
    def move(self, sources: Mapping[str, str]) -> None:
        """Change the source of these documents, by id, and keep everything else."""

    @abstractmethod
    def remove(self, ids: Sequence[str]) -> None:
        """Remove these documents."""

    @abstractmethod
    def finish(self) -> None:
        """Make all documents that were written visible to searches."""

    @abstractmethod
    def close(self) -> None:
        """Release the lock of the store, so that other processes can write."""

    @abstractmethod
    def by_vector(
        self, vector: NDArray[np.float32], count: int, filters: Sequence[Condition] = ()
    ) -> list[Hit]:
        """Return the passages with the largest dot products with an embedding, best first.

        Args:
            vector: Embedding of the query.
            count: Maximum number of passages.
            filters: Conditions that each passage must satisfy.

        Shapes:
            vector: (D,).
        """

    @abstractmethod
    def by_words(self, query: str, count: int, filters: Sequence[Condition] = ()) -> list[Hit]:
        """Return the passages that contain keywords of the query, best first by BM25.

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
        required: Spec that the store must have. Default: no check.

    Returns:
        The spec.

    Raises:
        SearchError: If the spec is invalid, has another version, or differs from `required`.
    """
    try:
        data = text.encode() if isinstance(text, str) else text
        spec = msgspec.convert(from_json(data), type=Spec)
    except (msgspec.ValidationError, ValueError) as error:
        raise SearchError(f"{location}: invalid spec of the store ({error})") from None
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
            raise SearchError(f"{location}: the store uses {values}; use the same, or a new store")


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
            raise ConfigError(f"where: invalid {text!r}; use FIELD=VALUE, or !=, <, <=, >, >=")
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
                f"where: {name} is text, which {operator} does not support; "
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
    """Parse a number, or for the field `modified` also a date and time in ISO 8601."""
    if name == "modified" and "-" in value[1:]:
        return datetime.fromisoformat(value).timestamp()
    return float(value)
