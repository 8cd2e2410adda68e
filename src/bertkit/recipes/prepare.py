"""Prepare a corpus: text files in, shards of token ids out, in parallel and resumable.

The input is divided into units of about equal size: a piece of a large file, or a run of small
ones. The division follows from the input alone, and each unit becomes shards of its own, so any
number of processes gives the same bytes. A unit counts once its own small manifest is written; a
rerun takes up what counts. All text is read and checked before anything is written.
"""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress, TaskID

from bertkit import storage
from bertkit.data.corpus import (
    FORMAT,
    PARTS,
    Corpus,
    Manifest,
    Shard,
    ShardWriter,
    Source,
    cut_sentences,
    part_bytes,
    shard_name,
    write_manifest,
)
from bertkit.data.readers import BlankLines, Document, Span, files, read, spans
from bertkit.data.sentences import Encoder, split, token_dtype
from bertkit.errors import BertkitError, DataError, StorageError
from bertkit.text.tokenizer import Tokenizer

SHARD_TOKENS = 1 << 27
"""Tokens about which a shard is closed: 256 MiB of 2 bytes."""

BATCH = 1 << 18
"""Characters tokenized at a time."""

SAMPLES, SAMPLE = 16, 1 << 15
"""Places looked at for the estimate of size, and characters read at each."""

GZIP_RATIO = 3
"""Bytes of text in a compressed byte, to divide the work; how good it is affects only balance."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What decides the bytes of a corpus, besides its input."""

    tokenizer: str
    field: str
    blank_lines: BlankLines
    language: str
    shard_tokens: int


class Input(msgspec.Struct, frozen=True):
    """A file as it was when it was checked."""

    file: str
    bytes: int
    changed_ns: int


class Unit(msgspec.Struct, frozen=True):
    """A part of the work: spans as (file, start, end), and their characters once checked."""

    spans: list[tuple[str, int, int]]
    characters: int = 0

    @property
    def bytes(self) -> int:
        return sum(end - start for _, start, end in self.spans)


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Written when all is checked; a rerun must mean the same to take up the work."""

    settings: Settings
    inputs: list[Input]
    units: list[Unit]


class Made(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a unit came to."""

    shards: list[Shard]
    left_out: int
    cut: int


def prepare(
    paths: Sequence[Path],
    *,
    tokenizer: Tokenizer,
    out: Path,
    field: str = "text",
    blank_lines: BlankLines = "paragraphs",
    language: str = "en",
    processes: int | None = None,
    shard_tokens: int = SHARD_TOKENS,
    say: Callable[[str], object] | None = None,
) -> Corpus:
    """Make a corpus of these text files and folders; the same call takes up a killed one.

    `language` is for the sentence splitter. `processes` None means one a core; above 1, a script
    that calls this needs the usual `if __name__ == "__main__":`. `say` gets a line now and then.
    Raises: DataError for unusable text, an `out` that holds something else, or too small a disk,
    before anything is written; StorageError if writing fails: finished shards are then kept.
    """
    out, sources = Path(out), files([Path(p) for p in paths])
    say = say or _silent
    work = out / ".work"
    _refuse(out, paths)
    settings = Settings(
        tokenizer=tokenizer.fingerprint,
        field=field,
        blank_lines=blank_lines,
        language=language,
        shard_tokens=shard_tokens,
    )
    inputs = [Input(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in sources]
    begun = _begun(work)
    if begun is not None:
        _same(begun, Plan(settings, inputs, []), out)
    units = begun.units if begun else _divide(sources, shard_tokens)
    processes = min(processes or len(os.sched_getaffinity(0)), len(units))
    with _Pool(_Worker(out, settings), processes) as pool, _bar() as bar:
        if begun is None:
            units = _check(pool, units, bar)
        _weigh(units, tokenizer, settings, work, say)
        with _locked(work, out):
            if begun is None:
                tokenizer.save(out / "tokenizer")
                plan = Plan(settings, inputs, units)
                storage.write_text(work / "plan.json", msgspec.json.encode(plan).decode())
            if not (work / "complete").exists():
                _make(pool, units, work, bar)
                storage.write_text(work / "complete", "")
            return _finish(out, work, tokenizer, inputs, len(units), say)


# ---- before anything is written


def _refuse(out: Path, paths: Iterable[Path]) -> None:
    """An `out` that would lose something, or feed on itself."""
    if (out / "manifest.json").exists():
        raise DataError(f"{out}: a corpus is there already; choose another --out or delete it")
    if out.exists() and not out.is_dir():
        raise DataError(f"{out}: a file is there; choose another --out")
    if out.exists() and not (out / ".work").exists() and any(out.iterdir()):
        raise DataError(f"{out}: the folder holds other things; choose another --out")
    for path in map(Path, paths):
        if path.is_dir() and out.resolve().is_relative_to(path.resolve()):
            raise DataError(f"{out}: lies within {path}, which is read; choose another --out")


def _divide(sources: Sequence[Path], shard_tokens: int) -> list[Unit]:
    """Units of a 64th of all text, but a mebibyte at least and a shard (4 bytes a token) at most."""
    weights = {f: f.stat().st_size * (GZIP_RATIO if f.suffix == ".gz" else 1) for f in sources}
    size = min(max(sum(weights.values()) // 64, 1 << 20), 4 * shard_tokens)
    units: list[list[Span]] = [[]]
    filled = 0
    for file in sources:
        for span in spans(file, size):
            weight = weights[file] if file.suffix == ".gz" else span.end - span.start
            if filled and filled + weight > 1.5 * size:
                units.append([])
                filled = 0
            units[-1].append(span)
            filled += weight
    return [Unit([(str(s.file), s.start, s.end) for s in unit]) for unit in units]


def _check(pool: _Pool, units: list[Unit], bar: Progress) -> list[Unit]:
    """Read everything once, so that bad input is refused before it costs anything."""
    task = bar.add_task("checking", total=sum(unit.bytes for unit in units))
    checked = list(units)
    for number, message in pool.run("check", dict(enumerate(units))):
        if isinstance(message, Unit):
            checked[number] = message
            bar.advance(task, message.bytes)
    return checked


def _weigh(
    units: list[Unit],
    tokenizer: Tokenizer,
    settings: Settings,
    work: Path,
    say: Callable[[str], object],
) -> None:
    """Estimate the corpus's size from samples. Raises: DataError if the disk is too small."""
    encode = Encoder(tokenizer)
    characters = tokens = size = 0
    for unit in units[:: -(-len(units) // SAMPLES)]:
        for document in islice(_documents(unit, settings), 1 + SAMPLE // 1000):
            text = document.text[:SAMPLE]
            ids, counts = encode(split(text, settings.language))
            characters += len(text)
            tokens += len(ids)
            size += ids.nbytes + len(counts) + 4
    rate = size / max(characters, 1) * 1.02
    todo = sum(u.characters for i, u in enumerate(units) if not _made(work, i))
    total = sum(u.characters for u in units)
    place = next(p for p in (work, *work.absolute().parents) if p.exists())
    needed, free = int(todo * rate) + (1 << 20), shutil.disk_usage(place).free
    say(
        f"{total / 1e6:,.1f} M characters: about {total * tokens / max(characters, 1) / 1e6:,.1f} M "
        f"tokens, {_size(total * rate)} on disk"
        + (f", of which {_size(todo * rate)} are left to do" if todo < total else "")
    )
    if needed > free:
        raise DataError(
            f"{place}: the corpus needs about {_size(needed)}, {_size(free)} are free; "
            "free some, or choose an --out on another disk"
        )


# ---- making


def _make(pool: _Pool, units: list[Unit], work: Path, bar: Progress) -> None:
    todo = {i: unit for i, unit in enumerate(units) if not _made(work, i)}
    done = sum(unit.characters for i, unit in enumerate(units) if i not in todo)
    total = sum(unit.characters for unit in units)
    task: TaskID = bar.add_task("tokenizing", total=total, completed=done)
    # the largest first, so that no process is left with one at the end
    order = sorted(todo, key=lambda i: -units[i].characters)
    for _, message in pool.run("make", {i: todo[i] for i in order}):
        if isinstance(message, int):
            bar.advance(task, message)


def _finish(
    out: Path,
    work: Path,
    tokenizer: Tokenizer,
    inputs: list[Input],
    units: int,
    say: Callable[[str], object],
) -> Corpus:
    """Give the shards their names, in the order of the units, then write the manifest."""
    made = [msgspec.json.decode((work / f"{i:06d}.json").read_bytes(), type=Made) for i in range(units)]
    shards = [(i, j, shard) for i, unit in enumerate(made) for j, shard in enumerate(unit.shards)]
    left_out, cut = sum(u.left_out for u in made), sum(u.cut for u in made)
    if not shards:
        shutil.rmtree(out)
        raise DataError(f"{inputs[0].file}: not one token in this text; nothing was written")
    for number, (i, j, _) in enumerate(shards):
        for part in PARTS:
            source = work / f"{i:06d}-{j:03d}.{part}"
            if source.exists():  # else an earlier run got this far
                source.replace(out / shard_name(number, part))
    manifest = Manifest(
        format=FORMAT,
        tokenizer=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        dtype="uint16" if token_dtype(tokenizer.vocab_size).itemsize == 2 else "uint32",
        shards=[shard for *_, shard in shards],
        sources=[Source(i.file, i.bytes) for i in inputs],
        left_out=left_out,
        cut=cut,
    )
    write_manifest(out, manifest)
    shutil.rmtree(work, ignore_errors=True)
    corpus = Corpus.open(out)
    say(
        f"{out}: {corpus.tokens:,} tokens, {corpus.sentences:,} sentences, "
        f"{corpus.documents:,} documents in {len(shards)} shards, {_size(corpus.bytes)}"
        + (f"; {left_out:,} documents without a token left out" if left_out else "")
        + (f"; long documents cut in {cut:,} places" if cut else "")
    )
    return corpus


def _made(work: Path, number: int) -> bool:
    """Whether a unit is finished, and its files are there in full."""
    path = work / f"{number:06d}.json"
    if not path.exists():
        return False
    if (work / "complete").exists():  # its files may have their final names already
        return True
    ...
    return True


class _Shards:
    """The shards of one unit, filled document by document."""

    def __init__(self, work: Path, number: int, dtype: np.dtype[Any], limit: int) -> None:
        self._name = lambda shard: work / f"{number:06d}-{shard:03d}"
        self._dtype, self._limit = dtype, limit
        self._writer: ShardWriter | None = None
        self._open: list[int] | None = None
        self._shards: list[Shard] = []
        self._left_out = self._cut = 0
