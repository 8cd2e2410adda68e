"""Worker processes that tokenize units of text and write them to shards of a corpus."""

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
from bertkit.data.sentences import CachedTokenizer, split_with_spaces
from bertkit.errors import BertkitError, DataError, StorageError
from bertkit.text.tokenizer import Tokenizer

Step = Literal["check", "make", "filter", "write"]
"""Steps of `prepare` and of cleaning."""

BATCH_CHARACTERS = 1 << 18
"""Number of characters that are tokenized at a time."""


class CorpusSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that affect the content of a corpus."""

    tokenizer: str
    field: str
    blank_lines: BlankLines
    language: str
    shard_tokens: int


class Unit(msgspec.Struct, frozen=True):
    """Unit of work: spans of files, each as (file, start, end) in bytes.

    `characters` is the number of characters, or 0 if they have not been counted yet.
    """

    spans: list[tuple[str, int, int]]
    characters: int = 0

    @property
    def bytes(self) -> int:
        return sum(end - start for _, start, end in self.spans)


Message = int | msgspec.Struct
"""Message of a worker: a number of processed characters, or the result of a step."""


class WorkerTask(Protocol):
    """Callable that runs a step for a unit, in the processes of a pool.

    `lock` is the file that a process locks during the step "make".
    """

    lock: Path

    def __call__(self, step: Step, number: int, unit: Unit) -> Iterator[Message]: ...


def text_of(unit: Unit, settings: CorpusSettings) -> Iterator[RawDocument]:
    """Yield the documents in the spans of a unit."""
    for file, start, end in unit.spans:
        span = Span(Path(file), start, end)
        yield from read(span, field=settings.field, blank_lines=settings.blank_lines)


class Worker:
    """Task that tokenizes units for a corpus, in a separate process or in this process."""

    def __init__(self, out: Path, settings: CorpusSettings, lock: str = "workers") -> None:
        self._out, self._settings = out, settings
        self.work = out / ".work"
        self.lock = self.work / lock
        """File that is locked during the step "make", so that later commands wait for workers whose
        command was killed."""

    def __call__(self, step: Step, number: int, unit: Unit) -> Iterator[Message]:
        """Run a step for a unit. Yield numbers of processed characters, and finally the result."""
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
            texts = encode.restore_spaces(
                split_with_spaces(document.text, self._settings.language),
                begins=not document.continues,
            )
            if document.continues and documents:
                documents[-1] += len(texts)
            else:
                continues = continues if documents else document.continues
                documents.append(len(texts))
            sentences += texts
            characters += len(document.text)
            if characters >= BATCH_CHARACTERS:
                shards.add(*encode(sentences), documents, continues)
                yield characters
                sentences, documents, characters = [], [], 0
        if documents:
            shards.add(*encode(sentences), documents, continues)
        result = shards.close()
        storage.write_text(self.work / f"{number:06d}.json", msgspec.json.encode(result).decode())
        yield characters
        yield result


@lru_cache(maxsize=1)
def _encoder(folder: Path, fingerprint: str) -> CachedTokenizer:
    """Load the tokenizer of a corpus once per process.

    The worker object cannot store the tokenizer, because Ray sends a new copy of the worker with
    each unit.
    """
    return CachedTokenizer(Tokenizer.load(folder))


MAX_TRIES = 3
"""Maximum number of times that a unit is started. It is restarted if its worker process dies."""


class Tries:
    """Counters for each unit: characters processed since its last start, and workers that died."""

    def __init__(self) -> None:
        self._done, self._deaths = Counter[int](), Counter[int]()

    def add(self, number: int, characters: int) -> None:
        """Add the number of processed characters of a unit."""
        self._done[number] += characters

    def restart(self, number: int) -> int:
        """Record that the worker of a unit died, and return the unit's lost characters.

        These are the characters that were processed since the unit was last started. A message that
        the unit is restarted is logged.

        Raises:
            StorageError: If `MAX_TRIES` workers have died on the unit.
        """
        self._deaths[number] += 1
        if self._deaths[number] == MAX_TRIES:
            raise StorageError(
                f"worker processes died {MAX_TRIES} times on the same text (possibly out of "
                'memory, or a script without if __name__ == "__main__":); use fewer processes'
            ) from None
        say("a worker process died; a new worker process restarts its part of the text")
        return self._done.pop(number, 0)


class WorkerPool:
    """Pool of worker processes, each of which runs units one after another.

    If a process dies, it is replaced and its unit is restarted. All processes end when the process
    that created the pool ends.
    """

    def __init__(self, worker: WorkerTask, processes: int) -> None:
        self._worker = worker
        self._processes: dict[Connection, BaseProcess] = {}
        if processes > 1:
            for _ in range(processes):
                self._start()

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        local, remote = context.Pipe()
        process = context.Process(target=_serve, args=(remote, self._worker), daemon=True)
        process.start()
        # The other end is open only in the worker, so that the pipe is closed if the worker dies.
        remote.close()
        self._processes[local] = process
        return local

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.terminate()
            process.join()

    def run(self, step: Step, units: dict[int, Unit]) -> Iterator[tuple[int, Message]]:
        """Run a step for all units, and yield each message of a worker with the unit's number.

        If a unit is restarted, a negative number of characters is yielded, which cancels the
        characters that the unit had processed.

        Args:
            step: The step.
            units: The units by number.

        Raises:
            StorageError: If `MAX_TRIES` workers die on the same unit.
            Exception: If a worker raises an error.
        """
        if not self._processes:
            for number, unit in units.items():
                with convert_errors():
                    for message in self._worker(step, number, unit):
                        yield number, message
            return
        waiting = iter(units.items())
        busy: dict[Connection, int] = {}
        tries = Tries()
        for pipe in self._processes:
            _send_next(pipe, step, waiting, busy)
        while busy:
            for ready in wait(list(busy)):
                pipe = cast(Connection, ready)
                try:
                    message = pipe.recv()
                except (EOFError, ConnectionResetError):
                    number = busy.pop(pipe)
                    self._processes.pop(pipe).join()
                    yield number, -tries.restart(number)
                    _send_next(self._start(), step, iter([(number, units[number])]), busy)
                    continue
                if isinstance(message, Exception):
                    raise message
                yield busy[pipe], message
                if isinstance(message, int):
                    tries.add(busy[pipe], message)
                else:
                    _send_next(pipe, step, waiting, busy)


def _send_next(
    pipe: Connection, step: Step, waiting: Iterator[tuple[int, Unit]], busy: dict[Connection, int]
) -> None:
    """Send the next unit to a worker, if there is one."""
    number, unit = next(waiting, (-1, None))
    if unit is None:
        busy.pop(pipe, None)
    else:
        busy[pipe] = number
        pipe.send((step, number, unit))


def _serve(pipe: Connection, worker: WorkerTask) -> None:
    """Run the main loop of a worker process, until the process that created it closes the pipe."""
    # Ctrl-C is ignored, because the process that created the worker terminates it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Each core already runs a process, so more threads would not be faster.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        while True:
            for message in messages(worker, *pipe.recv()):
                pipe.send(message)
    except (EOFError, BrokenPipeError):
        return


def messages(
    worker: WorkerTask, step: Step, number: int, unit: Unit
) -> Iterator[Message | Exception]:
    """Run a step for a unit, and yield its messages. If it fails, the last message is the error."""
    with _locked(worker.lock if step == "make" else None):
        try:
            with convert_errors():
                yield from worker(step, number, unit)
        except Exception as error:
            if not isinstance(error, BertkitError):
                # The traceback is stored in a note, because pickling removes it.
                error.add_note(traceback.format_exc())
            yield error


@contextmanager
def convert_errors() -> Iterator[None]:
    """Convert an OSError in a `with` block to an error of bertkit.

    Raises:
        StorageError: If the disk is full.
        DataError: If any other OSError occurs, except BrokenPipeError, which is not converted.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageError("the disk is full; free space and run again") from None
        raise DataError(f"{error.filename}: {error.strerror or error}") from None


@contextmanager
def _locked(lock: Path | None) -> Iterator[None]:
    """Hold a lock in a `with` block, so that the next `prepare` waits until the block ends."""
    if lock is None:
        yield
    else:
        with lock.open("w") as workers:
            fcntl.flock(workers, fcntl.LOCK_SH)
            yield
