"""Worker processes that tokenize units of text into shards of a corpus."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import signal
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Literal, Protocol, cast

import msgspec

from bertkit import storage
from bertkit.console import say
from bertkit.data.corpus import Shards
from bertkit.data.document_readers import BlankLines, RawDocument, Span, read
from bertkit.data.sentences import CachedTokenizer, placed
from bertkit.errors import BertkitError, DataError, StorageError
from bertkit.text.tokenizer import Tokenizer

Step = Literal["check", "make", "filter", "write"]
"""Of preparing, and of cleaning."""

BATCH_CHARACTERS = 1 << 18
"""Characters tokenized at a time."""


class CorpusSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that change the bytes of a corpus."""

    tokenizer: str
    field: str
    blank_lines: BlankLines
    language: str
    shard_tokens: int


class Unit(msgspec.Struct, frozen=True):
    """Spans of files as (file, start, end) in bytes, and their characters once counted."""

    spans: list[tuple[str, int, int]]
    characters: int = 0

    @property
    def bytes(self) -> int:
        return sum(end - start for _, start, end in self.spans)


Message = int | msgspec.Struct
"""Units of progress, or, at the end of a step, what came of it."""


class WorkerTask(Protocol):
    """What a pool's processes do; each is sent it once. `lock` is held during the step "make"."""

    lock: Path

    def __call__(self, step: Step, number: int, unit: Unit) -> Iterator[Message]: ...


def text_of(unit: Unit, settings: CorpusSettings) -> Iterator[RawDocument]:
    """The documents of a unit's spans."""
    for file, start, end in unit.spans:
        span = Span(Path(file), start, end)
        yield from read(span, field=settings.field, blank_lines=settings.blank_lines)


class Worker:
    """Runs units, in a process of its own or in this one."""

    def __init__(self, out: Path, settings: CorpusSettings, lock: str = "workers") -> None:
        self._out, self._settings = out, settings
        self.work = out / ".work"
        self.lock = self.work / lock
        """Held while a unit is made, so that what comes after waits for a worker without owner."""

    def __call__(self, step: Step, number: int, unit: Unit) -> Iterator[Message]:
        """Yield characters done as they grow, and at the end the checked unit or its shards."""
        return self._check(unit) if step == "check" else self._make(number, unit)

    def _check(self, unit: Unit) -> Iterator[Message]:
        characters = sum(len(document.text) for document in text_of(unit, self._settings))
        yield msgspec.structs.replace(unit, characters=characters)

    def _make(self, number: int, unit: Unit) -> Iterator[Message]:
        encode = _encoder(self._out / "tokenizer", self._settings.tokenizer)
        shards = Shards(self.work / f"{number:06d}", encode.dtype, self._settings.shard_tokens)
        sentences: list[str] = []
        documents: list[int] = []
        characters, continues = 0, False
        for document in text_of(unit, self._settings):
            pieces = encode.spaced(
                placed(document.text, self._settings.language), begins=not document.continues
            )
            if document.continues and documents:
                documents[-1] += len(pieces)
            else:
                continues = continues if documents else document.continues
                documents.append(len(pieces))
            sentences += pieces
            characters += len(document.text)
            if characters >= BATCH_CHARACTERS:
                shards.add(*encode(sentences), documents, continues)
                yield characters
                sentences, documents, characters = [], [], 0
        if documents:
            shards.add(*encode(sentences), documents, continues)
        made = shards.close()
        storage.write_text(self.work / f"{number:06d}.json", msgspec.json.encode(made).decode())
        yield characters
        yield made


@lru_cache(maxsize=1)
def _encoder(folder: Path, fingerprint: str) -> CachedTokenizer:
    """Kept by the process, not by the worker, which Ray hands over anew with each unit."""
    return CachedTokenizer(Tokenizer.load(folder))


MAX_TRIES = 3
"""How often a unit is begun whose workers die."""


class Tries:
    """What was done of each unit since it was begun, and how often its workers died."""

    def __init__(self) -> None:
        self._done, self._deaths = Counter[int](), Counter[int]()

    def add(self, number: int, characters: int) -> None:
        """Count what was done of a unit."""
        self._done[number] += characters

    def again(self, number: int) -> int:
        """Say that a unit whose worker died is begun again; returns what was done of it.

        Raises: StorageError where it was begun often enough.
        """
        self._deaths[number] += 1
        if self._deaths[number] == MAX_TRIES:
            raise StorageError(
                f"a worker process died, {MAX_TRIES} times at one piece of text (out of "
                'memory? or a script without the usual if __name__ == "__main__":); '
                "run it again, perhaps with fewer processes"
            ) from None
        say("a worker process died; another begins its piece of text again")
        return self._done.pop(number, 0)


class WorkerPool:
    """Workers that take units in turn. Another takes the place of one that dies, and begins its
    unit again; none outlives the owner.
    """

    def __init__(self, worker: WorkerTask, processes: int) -> None:
        self._worker = worker
        self._processes: dict[Connection, BaseProcess] = {}
        if processes > 1:
            for _ in range(processes):
                self._start()

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(there, self._worker), daemon=True)
        process.start()
        there.close()  # so that only the worker holds it, and its death is an end of file
        self._processes[here] = process
        return here

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.terminate()
            process.join()

    def run(self, step: Step, units: dict[int, Unit]) -> Iterator[tuple[int, Message]]:
        """Run a step for all units and yield the workers' messages, with the unit's number.

        What was done of a unit that is begun again is taken back by a negative number.
        Raises: a worker's error, or StorageError where a unit's workers die again and again.
        """
        if not self._processes:
            for number, unit in units.items():
                with plainly():
                    for message in self._worker(step, number, unit):
                        yield number, message
            return
        left = iter(units.items())
        busy: dict[Connection, int] = {}
        tries = Tries()
        for pipe in self._processes:
            _hand(pipe, step, left, busy)
        while busy:
            for ready in wait(list(busy)):
                pipe = cast(Connection, ready)
                try:
                    message = pipe.recv()
                except (EOFError, ConnectionResetError):
                    number = busy.pop(pipe)
                    self._processes.pop(pipe).join()
                    yield number, -tries.again(number)
                    _hand(self._start(), step, iter([(number, units[number])]), busy)
                    continue
                if isinstance(message, Exception):
                    raise message
                yield busy[pipe], message
                if isinstance(message, int):
                    tries.add(busy[pipe], message)
                else:
                    _hand(pipe, step, left, busy)


def _hand(
    pipe: Connection, step: Step, left: Iterator[tuple[int, Unit]], busy: dict[Connection, int]
) -> None:
    """Give a worker its next unit, if there is one."""
    number, unit = next(left, (-1, None))
    if unit is None:
        busy.pop(pipe, None)
    else:
        busy[pipe] = number
        pipe.send((step, number, unit))


def _serve(pipe: Connection, worker: WorkerTask) -> None:
    """Main loop of a worker process; it ends with its owner."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the owner, who ends us
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a process for every core already
    try:
        while True:
            for message in messages(worker, *pipe.recv()):
                pipe.send(message)
    except (EOFError, BrokenPipeError):
        return


def messages(
    worker: WorkerTask, step: Step, number: int, unit: Unit
) -> Iterator[Message | Exception]:
    """What a worker says of a unit, in a process of its own: an error is its last word."""
    with _alive(worker.lock if step == "make" else None):
        try:
            with plainly():
                yield from worker(step, number, unit)
        except Exception as error:
            if not isinstance(error, BertkitError):
                error.add_note(traceback.format_exc())  # what pickling would lose
            yield error


@contextmanager
def plainly() -> Iterator[None]:
    """Turn an OSError into one of our errors."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageError("the disk is full; free space and run again") from None
        raise DataError(f"{error.filename}: {error.strerror or error}") from None


@contextmanager
def _alive(lock: Path | None) -> Iterator[None]:
    """Hold a lock that tells the next `prepare` that this worker may still write."""
    if lock is None:
        yield
    else:
        with lock.open("w") as workers:
            fcntl.flock(workers, fcntl.LOCK_SH)
            yield
