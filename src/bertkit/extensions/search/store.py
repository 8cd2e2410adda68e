"""The interface of a store of passages: written by documents, searched by vector or by words."""

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
"""Fields that every store has for conditions, in addition to the kept columns."""

COMPUTED = {
    "score": "--min-score",
    "sentence": "text",
    "sentence_start": "start",
    "sentence_end": "end",
}
"""Values of a hit that depend on the query, and what to use instead in a condition."""

Operator = Literal["=", "!=", "<", "<=", ">", ">="]


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a store, shared by all that is added.

    `fingerprint` is that of the model, its tokenizer and its pooling; `model` the name by which it
    is opened; `length` and `long` say how documents are cut into passages; `prompt` stands before
    each passage, and `query_prompt` before each query.
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
    """A part of a document: `text` is its characters [start, end).

    `number` counts the passages of a document from 0; `digest` is a hash of the whole document;
    `heading` is what it stands below; `modified` is the time of the file's last change in seconds
    since 1970.
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
    """Return the type of a source, which is a file or a row of a file."""
    return suffix(Path(re.sub(r":\d+$", "", source)))


class Hit(msgspec.Struct, frozen=True, omit_defaults=True):
    """A passage that answers a query, and its score: larger is better.

    `text` is characters [start, end) of the document `id`, which was read from `source`; `passage`
    is its number in it, `heading` what it stands below. `sentence` is the one that answers the
    query best, where it was asked for: characters [sentence_start, sentence_end) of the document.
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
"""Columns of a passage that a hit shows, beside the fields."""


def hit(row: Mapping[str, Any], score: float, fields: Mapping[str, Value]) -> Hit:
    """Return a hit from the columns of a passage."""
    columns = {name: row[name] for name in SHOWN}
    number = columns.pop("number")
    return Hit(score=score, passage=number, fields=dict(fields), **columns)


@dataclass(frozen=True)
class Condition:
    """A field compared with a value; documents without the field do not meet it."""

    field: str
    operator: Operator
    value: str | float


class Store(ABC):
    """Passages with their vectors; a document is written whole, and replaces one of its id."""

    place: str
    spec: Spec

    @abstractmethod
    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        """The digests of those of these documents that are there, this run's included."""

    @abstractmethod
    def replace(self, passages: Sequence[Passage], vectors: NDArray[np.float32]) -> None:
        """Write whole documents in place of those with their ids. Shapes: vectors (P, D)."""

    @abstractmethod
    def sources(self) -> dict[str, str]:
        """From what each document was read, by its id; this run's included."""

    @abstractmethod
    def move(self, sources: Mapping[str, str]) -> None:
        """Say from what these documents are read now, by their ids; else they are as they were."""

    @abstractmethod
    def remove(self, ids: Sequence[str]) -> None:
        """Take these documents out."""

    @abstractmethod
    def finish(self) -> None:
        """Let searches see what was written since the last time."""

    @abstractmethod
    def close(self) -> None:
        """Let others write."""

    @abstractmethod
    def by_vector(
        self, vector: NDArray[np.float32], count: int, where: Sequence[Condition] = ()
    ) -> list[Hit]:
        """The passages whose vectors have the largest dot product with this one, best first."""

    @abstractmethod
    def by_words(self, query: str, count: int, where: Sequence[Condition] = ()) -> list[Hit]:
        """The passages with the query's words, best first, by BM25."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of passages that searches see."""


def read_spec(place: str, text: str | bytes, wanted: Spec | None = None) -> Spec:
    """Read the spec of a store.

    Raises:
        SearchError: If it is damaged, has another version, or differs from `wanted`.
    """
    try:
        data = text.encode() if isinstance(text, str) else text
        spec = msgspec.convert(from_json(data), type=Spec)
    except (msgspec.ValidationError, ValueError) as error:
        raise SearchError(f"{place}: what it was made with cannot be read ({error})") from None
    if spec.version != FORMAT_VERSION:
        raise SearchError(
            f"{place}: the store has version {spec.version}, and this bertkit reads version "
            f"{FORMAT_VERSION}; use the bertkit that made it, or index again into a new store"
        )
    if wanted is not None:
        _check_same(place, spec, wanted)
    return spec


def _check_same(place: str, spec: Spec, wanted: Spec) -> None:
    """Raises: SearchError for a store to be added to that was made otherwise."""
    differs = {
        "fingerprint": f"the model {spec.model}, and {wanted.model} is another",
        "length": f"passages of {spec.length} tokens, not {wanted.length}",
        "long": f"--long {spec.long}, not {wanted.long}",
        "fields": f"--keep {_listed(spec.fields)}, not {_listed(wanted.fields)}",
        "prompt": f"--prompt {spec.prompt!r}, not {wanted.prompt!r}",
        "query_prompt": f"--query-prompt {spec.query_prompt!r}, not {wanted.query_prompt!r}",
        "similarity": f"scores by {spec.similarity}, not by {wanted.similarity}",
    }
    for name, how in differs.items():
        if getattr(spec, name) != getattr(wanted, name):
            raise SearchError(f"{place}: was made with {how}; do as then, or make a new store")


def _listed(fields: Mapping[str, Kind]) -> str:
    return ", ".join(f"{name}:{kind}" for name, kind in fields.items()) or "nothing"


_CONDITION = re.compile(r"(.+?)\s*(!=|<=|>=|=|<|>)\s*(.*)", re.DOTALL)


def conditions(where: Sequence[str], fields: Mapping[str, Kind]) -> list[Condition]:
    """Parse conditions such as `year>=1960` on kept columns and on the fields `STORED`.

    Raises:
        ConfigError: If a condition cannot be parsed, or its field does not exist.
    """
    kept, fields = fields, {**STORED, **fields}
    parsed = []
    for text in where:
        parts = _CONDITION.fullmatch(text.strip())
        if parts is None:
            raise ConfigError(f"where: {text!r}; write FIELD=VALUE, or with !=, <, <=, >, >=")
        name, operator, value = cast("tuple[str, Operator, str]", parts.groups())
        if name in COMPUTED and name not in fields:
            raise ConfigError(f"where: {name} depends on the query; use {COMPUTED[name]} instead")
        if name not in fields:
            raise ConfigError(
                f"where: no field {name!r} in this store; {did_you_mean(name, fields)}"
            )
        number = fields[name] == "number"
        if not number and operator not in ("=", "!="):
            remedy = f"index it as a number (--keep {name}:number)"
            raise ConfigError(
                f"where: {name} is text, which {operator} does not compare; "
                + (remedy if name in kept else "use = or !=")
            )
        try:
            given = _number(name, value) if number else value
            if isinstance(given, float) and not math.isfinite(given):
                raise ValueError
        except ValueError:
            raise ConfigError(f"where: {name} is a number, and {value!r} is none") from None
        parsed.append(Condition(name, operator, given))
    return parsed


def _number(name: str, value: str) -> float:
    """Parse a number, or the date and time in ISO 8601 of `modified`."""
    if name == "modified" and "-" in value[1:]:
        return datetime.fromisoformat(value).timestamp()
    return float(value)
