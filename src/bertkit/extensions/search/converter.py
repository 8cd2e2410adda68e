"""Files of others, read in a process with bounds of memory and time.

A file may be made to take all memory, or years; then this process is ended, and the file is named.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, Self

import msgspec

from bertkit.errors import DataError
from bertkit.extensions.search.document_formats import Extracted, convert

MAX_MEMORY_BYTES = 2 << 30
"""Bytes of memory that reading a file may take, where the system can bound it (Linux)."""

TIMEOUT_SECONDS = 300
"""In which a file must be read."""

MAX_DOCUMENT_CHARACTERS = 16 << 20
"""Characters of one document; a larger one answers nothing, and its parts would."""

CHILD = "from bertkit.extensions.search.converter import main; main()"


class Converter:
    """Reads files, one at a time, in a process that begins with the first; what was read is kept
    on disk, so that to read a file again takes no time.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="bertkit-")
        self._process: subprocess.Popen[bytes] | None = None
        self._kept: dict[Path, Path | str] = {}
        """Where what was read lies, or what was wrong."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self._end()
        self._folder.cleanup()

    def __call__(self, file: Path) -> Extracted:
        """Raises: DataError for a file that cannot be read, or not within the bounds."""
        if file not in self._kept:
            place = Path(self._folder.name, str(len(self._kept)))
            self._kept[file] = self._ask(file, place) or place
        kept = self._kept[file]
        if isinstance(kept, str):
            raise DataError(kept)
        return msgspec.json.decode(kept.read_bytes(), type=Extracted)

    def _ask(self, file: Path, kept: Path) -> str:
        """Let the process read a file; what it complains of."""
        process = self._process = self._process or _begin()
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Timer(TIMEOUT_SECONDS, process.kill)
        late.start()
        try:
            process.stdin.write(msgspec.json.encode([str(file.absolute()), str(file), str(kept)]))
            process.stdin.write(b"\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        finally:
            in_time = not late.finished.is_set()
            late.cancel()
        if answer:
            return msgspec.json.decode(answer, type=str)
        self._end()
        why = (
            "reading it ended the process" if in_time else f"not read in {TIMEOUT_SECONDS} seconds"
        )
        return f"{file}: {why}; it may be damaged or made to do harm, so leave it out"

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _begin() -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(
        [sys.executable, "-P", "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    )


def main() -> None:
    """Read a file for each line, [path, name for messages, where to], and answer what is wrong."""
    _bound()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what libraries print is no answer
    for line in sys.stdin.buffer:
        path, name, kept = msgspec.json.decode(line, type=tuple[str, str, str])
        answers.write(msgspec.json.encode(_read(Path(path), name, Path(kept))) + b"\n")
        answers.flush()


def _read(path: Path, name: str, kept: Path) -> str:
    try:
        extracted = convert(path)
        if len(extracted.text) > MAX_DOCUMENT_CHARACTERS:
            return too_long(name, len(extracted.text))
        kept.write_bytes(msgspec.json.encode(extracted))
    except DataError as error:
        return str(error).replace(str(path), name)
    except MemoryError:
        limit = MAX_MEMORY_BYTES >> 30
        return f"{name}: reading it takes more than {limit} GiB of memory; leave it out"
    return ""


def too_long(name: str, characters: int) -> str:
    """What is said of a document that is too long."""
    return (
        f"{name}: a document of {characters:,} characters, and {MAX_DOCUMENT_CHARACTERS:,} is the "
        "most; cut it where it has parts, such as its chapters"
    )


def _bound() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # not on every system
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
