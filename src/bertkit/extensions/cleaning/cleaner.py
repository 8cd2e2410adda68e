"""What is done to each document of a corpus that is cleaned, and the processes that do it.

`filter` reads a unit's documents, judges and masks them, and leaves a line for each beside the keys
by which duplicates are found; `write` copies the lines of those that stay. A document's number is
its place in all of the input, so that nothing depends on how many processes there are.
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
from bertkit.extensions.cleaning.languages import Wanted
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
"""Which duplicates are removed: near ones too, exact ones, or none."""

KEYS: dict[Duplicates, int] = {"keep": 0, "exact": 1, "near": 1 + BUCKETS}
"""How many keys there are of a document."""

Signed = tuple[int, NDArray[np.uint32] | None]
"""The key of a whole text, 0 if it is removed, and its signature, if it has one."""

STARTS, FIRST, IS_EXACT = "starts.npy", "first.npy", "exact.npy"
"""Of each unit its first document; of each document the first of its cluster, and whether an
earlier one is the same."""

BATCH_DOCUMENTS = 1 << 10
"""Documents whose signatures are held at a time."""


class CleaningRules(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done to documents."""

    filters: tuple[Filter, ...]
    language: Wanted | None
    html: bool
    mask: bool
    duplicates: Duplicates

    def judge(self, text: str) -> tuple[str, str | None]:
        """The text as it stays, and the rule that takes it away, if one does.

        The order is FineWeb's, whatever that of `filters` is: language, repetition, quality, C4.
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
    """Documents, and bytes of their text in UTF-8."""

    documents: int = 0
    bytes: int = 0

    def add(self, documents: int, size: int) -> None:
        self.documents += documents
        self.bytes += size


class Tally(msgspec.Struct):
    """What a step read, which rules removed how much, and what was cut from documents that stay."""

    read: Count = msgspec.field(default_factory=Count)
    removed: dict[str, Count] = {}
    cut: dict[str, Count] = {}
    mails: int = 0
    ips: int = 0

    def remove(self, rule: str, text: str) -> None:
        self.removed.setdefault(rule, Count()).add(1, _bytes(text))

    def change(self, what: str, before: str, after: str) -> None:
        if before != after:
            self.cut.setdefault(what, Count()).add(1, _bytes(before) - _bytes(after))

    def add(self, other: Tally) -> None:
        self.read.add(other.read.documents, other.read.bytes)
        for own, more in ((self.removed, other.removed), (self.cut, other.cut)):
            for name, count in more.items():
                own.setdefault(name, Count()).add(count.documents, count.bytes)
        self.mails += other.mails
        self.ips += other.ips


class CleaningDirectories(msgspec.Struct, frozen=True):
    """Folders: for what is in work, for what stays, and for what is removed, if that is wanted."""

    work: Path
    out: Path
    removed: Path | None

    def of_unit(self, number: int, kind: Literal["lines", "npy"]) -> Path:
        return self.work / f"{number:06d}.{kind}"


class Cleaner:
    """Runs the two steps, in a process of its own or in this one."""

    def __init__(
        self,
        places: CleaningDirectories,
        rules: CleaningRules,
        *,
        field: str,
        blank_lines: BlankLines,
    ) -> None:
        self._places, self._rules = places, rules
        self._field, self._blank_lines = field, blank_lines
        self.lock = places.work / "lock"

    def __call__(self, step: Step, number: int, unit: Unit) -> Iterator[Message]:
        """Yield what the step did, once it is done."""
        yield self._filter(number, unit) if step == "filter" else self._write(number)

    def _filter(self, number: int, unit: Unit) -> Tally:
        tally, texts = Tally(), self._texts(unit)
        keys = [self._keys([])]
        with self._places.of_unit(number, "lines").open("wb") as lines:
            while signed := [
                self._clean(text, tally, lines) for text in islice(texts, BATCH_DOCUMENTS)
            ]:
                keys.append(self._keys(signed))
        np.save(self._places.of_unit(number, "npy"), np.concatenate(keys, axis=1))
        return tally

    def _clean(self, text: str, tally: Tally, lines: IO[bytes]) -> Signed:
        """Write the line of a document: its text, or the reason of its removal if required."""
        tally.read.add(1, _bytes(text))
        plain = plain_text(text) if self._rules.html else text
        kept, rule = self._rules.judge(plain)
        if rule:
            tally.remove(rule, text)
            wanted = {"reason": rule, "text": text}
            lines.write((_json(wanted) if self._places.removed else b"") + b"\n")
            return 0, None
        tally.change("HTML", text, plain)
        tally.change("lines, by c4", plain, kept)
        if self._rules.mask:
            masked, mails, ips = mask(kept)
            tally.change("personal data", kept, masked)
            tally.mails += mails
            tally.ips += ips
            kept = masked
        lines.write(_json(kept) + b"\n")
        return text_key(kept), self._signer(kept) if self._rules.duplicates == "near" else None

    def _keys(self, signed: list[Signed]) -> Keys:
        """By which duplicates are found, (keys, documents): of whole texts, then of buckets."""
        exact = np.array([[key for key, _ in signed]], np.uint64)
        near = bucket_keys([signature for _, signature in signed])
        return np.concatenate([exact, near])[: KEYS[self._rules.duplicates]]

    @cached_property
    def _signer(self) -> Signer:
        return Signer()

    def _texts(self, unit: Unit) -> Iterator[str]:
        """Whole documents: the parts of long ones are put together."""
        for file, start, end in unit.spans:
            parts: list[str] = []
            span = Span(Path(file), start, end)
            for document in read(span, field=self._field, blank_lines=self._blank_lines):
                if parts and not document.continues:
                    yield "".join(parts)
                    parts = []
                parts.append(document.text)
                if sum(map(len, parts)) > LONGEST_LINE // 2:  # half, for what JSON escapes
                    raise DataError(
                        f"{file}: a document of more than {LONGEST_LINE >> 21} M characters; cut "
                        "it, or say --blank-lines documents if blank lines divide documents"
                    )
            if parts:
                yield "".join(parts)

    def _write(self, number: int) -> Tally:
        tally, places, name = Tally(), self._places, f"{number:05d}.jsonl"
        start = int(np.load(places.work / STARTS)[number])
        first = np.load(places.work / FIRST, mmap_mode="r")
        exact = np.load(places.work / IS_EXACT, mmap_mode="r")
        stay, go = places.out / name, (places.removed or places.work) / name
        with (
            places.of_unit(number, "lines").open("rb") as lines,
            stay.open("wb") as out,
            go.open("wb") as removed,
        ):
            for place, line in enumerate(lines, start):
                row = b'{"id":%d,' % place
                if not line.startswith(b'"'):  # removed before, and not blank if it is wanted
                    removed.write(row + line[1:] if places.removed else b"")
                elif first[place] == place:
                    out.write(row + b'"text":' + line[:-1] + b"}\n")
                else:
                    text = msgspec.json.decode(line, type=str)
                    rule = "exact duplicate" if exact[place] else "near-duplicate"
                    tally.remove(rule, text)
                    if places.removed:
                        why = {"reason": rule, "of": int(first[place]), "text": text}
                        removed.write(row + _json(why)[1:] + b"\n")
        for path in (stay, go):
            if path.stat().st_size == 0:  # no reader takes an empty file
                path.unlink()
        return tally


def _json(value: object) -> bytes:
    return msgspec.json.encode(value)


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
