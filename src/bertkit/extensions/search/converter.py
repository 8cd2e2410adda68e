"""Conversion of untrusted files in a separate process with memory and time limits.

The conversion of a malicious file can take any amount of memory or time. If a limit is exceeded,
the conversion fails and an error names the file.
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
"""Memory limit of the process in bytes, on systems that support such a limit (Linux)."""

TIMEOUT_SECONDS = 300
"""Time in seconds after which the conversion of a file is stopped."""

MAX_DOCUMENT_CHARACTERS = 16 << 20
"""Maximum number of characters in a document. The user has to split longer documents into parts."""

CHILD = "from bertkit.extensions.search.converter import main; main()"


class Converter:
    """A converter that extracts text from files in a separate process.

    The process starts when the first file is converted. Results are cached on disk until the
    context manager exits.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="bertkit-")
        self._process: subprocess.Popen[bytes] | None = None
        self._results: dict[Path, Path | str] = {}
        """For each file, the path of its result or the error message."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop_process()
        self._folder.cleanup()

    def __call__(self, file: Path) -> Extracted:
        """Extract the text of a file.

        Args:
            file: A file of one of the types in `CONVERTED`.

        Raises:
            DataError: If the file cannot be read, or exceeds a limit.
        """
        if file not in self._results:
            out = Path(self._folder.name, str(len(self._results)))
            self._results[file] = self._convert(file, out) or out
        result = self._results[file]
        if isinstance(result, str):
            raise DataError(result)
        return msgspec.json.decode(result.read_bytes(), type=Extracted)

    def _convert(self, file: Path, out: Path) -> str:
        """Convert a file in the process, and return the error message, or "" after success."""
        process = self._process = self._process or _start_process()
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(TIMEOUT_SECONDS, process.kill)
        timer.start()
        try:
            process.stdin.write(msgspec.json.encode([str(file.absolute()), str(file), str(out)]))
            process.stdin.write(b"\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        finally:
            in_time = not timer.finished.is_set()
            timer.cancel()
        if answer:
            return msgspec.json.decode(answer, type=str)
        self._stop_process()
        problem = "reading it crashed" if in_time else f"reading it took over {TIMEOUT_SECONDS} s"
        return f"{file}: {problem}; the file may be damaged or malicious, so remove it"

    def _stop_process(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _start_process() -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(
        [sys.executable, "-P", "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    )


def main() -> None:
    """Convert the file that each line of stdin names, and write an error message or "" to stdout.

    A line contains the path of the file, its name in error messages, and the path to write the
    result to.
    """
    _limit_resources()
    answers = os.fdopen(os.dup(1), "wb")
    # Discard what libraries print to stdout.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for line in sys.stdin.buffer:
        path, name, out = msgspec.json.decode(line, type=tuple[str, str, str])
        answers.write(msgspec.json.encode(_read(Path(path), name, Path(out))) + b"\n")
        answers.flush()


def _read(path: Path, name: str, out: Path) -> str:
    try:
        extracted = convert(path)
        if len(extracted.text) > MAX_DOCUMENT_CHARACTERS:
            return too_long_message(name, len(extracted.text))
        out.write_bytes(msgspec.json.encode(extracted))
    except DataError as error:
        return str(error).replace(str(path), name)
    except MemoryError:
        limit = MAX_MEMORY_BYTES >> 30
        return f"{name}: reading the file requires more than {limit} GiB of memory; remove the file"
    return ""


def too_long_message(name: str, characters: int) -> str:
    """Return the error message for a document that is too long."""
    return (
        f"{name}: the document has {characters:,} characters, but the maximum is "
        f"{MAX_DOCUMENT_CHARACTERS:,}; split the document into parts such as chapters"
    )


def _limit_resources() -> None:
    # Some systems do not support these limits.
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
