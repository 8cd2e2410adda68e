"""The rules for documents, and the worker that applies the rules in two steps.

In the step `filter`, the worker reads the documents of a unit, applies the rules, and masks
personal data. It writes a line for each document, and the keys by which duplicates are found. In
the step `write`, the worker copies the lines of the documents to keep. Documents are numbered by
their index in the complete input, so the result does not depend on the number of processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import IO, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from bertkit.data.document_readers import LONGEST_LINE, BlankLines, Span, read
from bertkit.data.sentences import split
from bertkit.data.workers import Message, Step, Unit
from bertkit.errors import DataError
from bertkit.extensions.cleaning.languages import TargetLanguage
from bertkit.extensions.cleaning.markup import plain_text
from bertkit.extensions.cleaning.near_duplicates import BUCKETS, Keys, Signer, bucket_keys, text_key
from bertkit.extensions.cleaning.personal_data import mask
from bertkit.extensions.cleaning.quality import (
    Filter,
    c4,
    gopher_quality,
    gopher_repetition,
    words_of,
)

Duplicates = Literal["near", "exact", "keep"]
"""Duplicates to remove: near and exact duplicates, exact duplicates only, or none."""

KEYS: dict[Duplicates, int] = {"keep": 0, "exact": 1, "near": 1 + BUCKETS}
"""Number of keys per document, by the kind of duplicates to remove."""

Signed = tuple[int, NDArray[np.uint32] | None]
"""Key of a document's text, or 0 if the document is removed, and the signature of the document, if
it has one."""

STARTS, FIRST, IS_EXACT = "starts.npy", "first.npy", "exact.npy"
"""Files that contain the number of the first document in each unit, and for each document the first
document of its cluster and whether an earlier document is equal."""

BATCH_DOCUMENTS = 1 << 10
"""Number of documents whose signatures are in memory at a time."""


class CleaningRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of a cleaning run."""

    filters: tuple[Filter, ...]
    language: TargetLanguage | None
    html: bool
    mask: bool
    duplicates: Duplicates

    def judge(self, text: str) -> tuple[str, str | None]:
        """Apply the rules to a text. Return the filtered text and the rule that rejects it, if any.

        The rules are applied in the order of FineWeb, whatever the order of `filters` is: language,
        repetition, quality, C4.
        """
        if not text.strip():
            return text, "empty"
        if self.language is not None and not self.language.matches(text):
            return text, f"not {self.language.code}"
        words = words_of(text) if {"gopher-repetition", "gopher-quality"} & {*self.filters} else []
        if "gopher-repetition" in self.filters and (rule := gopher_repetition(text, words)):
            return text, f"gopher-repetition: {rule}"
        if "gopher-quality" in self.filters and (rule := gopher_quality(text, words)):
            return text, f"gopher-quality: {rule}"
        if "c4" in self.filters:
            language = self.language.code if self.language else "en"
            text, rule = c4(text, partial(split, language=language))
            return text, rule and f"c4: {rule}"
        return text, None


class Count(msgspec.Struct):
    """A number of documents, and the number of bytes of their text in UTF-8."""

    documents: int = 0
    bytes: int = 0

    def add(self, documents: int, size: int) -> None:
        self.documents += documents
        self.bytes += size


class Tally(msgspec.Struct):
    """The counts of a step: documents that were read, removed by each rule, and cut."""

    read: Count = msgspec.field(default_factory=Count)
    removed: dict[str, Count] = {}
    cut: dict[str, Count] = {}
    mails: int = 0
    ips: int = 0

    def remove(self, rule: str, text: str) -> None:
        self.removed.setdefault(rule, Count()).add(1, _bytes(text))

    def change(self, reason: str, before: str, after: str) -> None:
        if before != after:
            self.cut.setdefault(reason, Count()).add(1, _bytes(before) - _bytes(after))

    def add(self, other: Tally) -> None:
        self.read.add(other.read.documents, other.read.bytes)
        for counts, added in ((self.removed, other.removed), (self.cut, other.cut)):
            for name, count in added.items():
                counts.setdefault(name, Count()).add(count.documents, count.bytes)
        self.mails += other.mails
        self.ips += other.ips


class CleaningDirectories(msgspec.Struct, frozen=True):
    """The directories for temporary files, the output and, if requested, removed documents."""

    work: Path
    out: Path
    removed: Path | None

    def unit_path(self, number: int, suffix: Literal["lines", "npy"]) -> Path:
        return self.work / f"{number:06d}.{suffix}"


class Cleaner:
    """The worker that runs the two steps, in this process or in another one."""

    def __init__(
        self,
        folders: CleaningDirectories,
        rules: CleaningRules,
        *,
        field: str,
        blank_lines: BlankLines,
    ) -> None:
        self._folders, self._rules = folders, rules
        self._field, self._blank_lines = field, blank_lines
        self.lock = folders.work / "lock"

    def __call__(self, step: Step, number: int, unit: Unit) -> Iterator[Message]:
        """Run a step on a unit, and yield the counts of the step."""
        yield self._filter(number, unit) if step == "filter" else self._write(number)

    def _filter(self, number: int, unit: Unit) -> Tally:
        tally, texts = Tally(), self._texts(unit)
        keys = [self._keys([])]
        with self._folders.unit_path(number, "lines").open("wb") as lines:
            while signed := [
                self._clean(text, tally, lines) for text in islice(texts, BATCH_DOCUMENTS)
            ]:
                keys.append(self._keys(signed))
        np.save(self._folders.unit_path(number, "npy"), np.concatenate(keys, axis=1))
        return tally

    def _clean(self, text: str, tally: Tally, lines: IO[bytes]) -> Signed:
        """Write the line of a document: its text or, if it is removed, the reason if requested."""
        tally.read.add(1, _bytes(text))
        plain = plain_text(text) if self._rules.html else text
        cleaned, rule = self._rules.judge(plain)
        if rule:
            tally.remove(rule, text)
            row = {"reason": rule, "text": text}
            lines.write((_json(row) if self._folders.removed else b"") + b"\n")
            return 0, None
        tally.change("HTML", text, plain)
        tally.change("lines, by c4", plain, cleaned)
        if self._rules.mask:
            masked, mails, ips = mask(cleaned)
            tally.change("personal data", cleaned, masked)
            tally.mails += mails
            tally.ips += ips
            cleaned = masked
        lines.write(_json(cleaned) + b"\n")
        near = self._rules.duplicates == "near"
        return text_key(cleaned), self._signer(cleaned) if near else None

    def _keys(self, signed: list[Signed]) -> Keys:
        """Return the keys (keys, documents) by which duplicates are found: first those of texts."""
        exact = np.array([[key for key, _ in signed]], np.uint64)
        near = bucket_keys([signature for _, signature in signed])
        return np.concatenate([exact, near])[: KEYS[self._rules.duplicates]]

    @cached_property
    def _signer(self) -> Signer:
        return Signer()

    def _texts(self, unit: Unit) -> Iterator[str]:
        """Yield whole documents, after joining the parts of long documents."""
        for file, start, end in unit.spans:
            parts: list[str] = []
            span = Span(Path(file), start, end)
            for document in read(span, field=self._field, blank_lines=self._blank_lines):
                if parts and not document.continues:
                    yield "".join(parts)
                    parts = []
                parts.append(document.text)
                # Escapes in JSON can make the line twice as long.
                if sum(map(len, parts)) > LONGEST_LINE // 2:
                    raise DataError(
                        f"{file}: a document has more than {LONGEST_LINE >> 21} million "
                        "characters; split the document, or use --blank-lines documents if blank "
                        "lines separate documents"
                    )
            if parts:
                yield "".join(parts)

    def _write(self, number: int) -> Tally:
        tally, folders, name = Tally(), self._folders, f"{number:05d}.jsonl"
        start = int(np.load(folders.work / STARTS)[number])
        first = np.load(folders.work / FIRST, mmap_mode="r")
        exact = np.load(folders.work / IS_EXACT, mmap_mode="r")
        out_path, removed_path = folders.out / name, (folders.removed or folders.work) / name
        with (
            folders.unit_path(number, "lines").open("rb") as lines,
            out_path.open("wb") as out,
            removed_path.open("wb") as removed,
        ):
            for index, line in enumerate(lines, start):
                row = b'{"id":%d,' % index
                # The line is a JSON object or blank if the rules removed the document, or else a
                # string.
                if not line.startswith(b'"'):
                    removed.write(row + line[1:] if folders.removed else b"")
                elif first[index] == index:
                    out.write(row + b'"text":' + line[:-1] + b"}\n")
                else:
                    text = msgspec.json.decode(line, type=str)
                    rule = "exact duplicate" if exact[index] else "near-duplicate"
                    tally.remove(rule, text)
                    if folders.removed:
                        record = {"reason": rule, "of": int(first[index]), "text": text}
                        removed.write(row + _json(record)[1:] + b"\n")
        for path in (out_path, removed_path):
            # Delete empty files, because bertkit's readers reject them.
            if path.stat().st_size == 0:
                path.unlink()
        return tally


def _json(value: object) -> bytes:
    return msgspec.json.encode(value)


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
