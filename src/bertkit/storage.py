"""Functions that write files atomically, and read files whose size and structure are limited.

A file is written under a temporary name in the directory of its target, synced to disk, and then
renamed. Input files may be untrusted, so size and depth are checked before a file is parsed.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import gzip
import hashlib
import io
import itertools
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from bertkit.errors import BertkitError, ConfigError, StorageError

SETTINGS, VOCABULARY = 8 << 20, 64 << 20
"""Maximum size in bytes of a settings file, and of a vocabulary file."""

EXPANSION, FLOOR = 100, 16 << 20
"""Maximum ratio of uncompressed to compressed size, and uncompressed size that is always allowed.

Text is typically compressed to between a third and a tenth of its size. A file that repeats one
byte reaches a ratio of 1,000.
"""

_UMASK = os.umask(0)
os.umask(_UMASK)
NEW_FILE = 0o666 & ~_UMASK
"""Permissions of new files, according to the umask when this module is imported."""

DEPTH, BRACKETS = 64, 1 << 17
"""Maximum nesting depth of lists and objects in JSON, and maximum number of lists and objects."""

MAX_DIGITS = 40
"""Maximum number of digits of an integer in JSON. Longer integers are converted to floats."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_ROUND = bytes.maketrans(b"[{]}", b"(())")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Yield a temporary path for a file that replaces `path` at the end of the `with` block.

    If the block raises an error, the temporary file is deleted and `path` is unchanged.

    Raises:
        StorageError: If the disk is full or the file cannot be written. The old file is unchanged.
    """
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        with name_file_in_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            # A killed process that had the same process id may have left this file.
            partial.unlink(missing_ok=True)
            yield partial
            _sync(partial)
            partial.replace(path)
            _sync(path.parent)
    finally:
        # An error here must not replace an error that is already being raised.
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary directory that is renamed to `path` at the end of the `with` block.

    All files are synced to disk before the directory is renamed. `path` must not exist, or be an
    empty directory. If the block raises an error, the temporary directory is deleted.

    Raises:
        StorageError: If a file cannot be written.
    """
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        with name_file_in_errors(path):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            yield partial
            for file in sorted(partial.rglob("*"), reverse=True):
                _sync(file)
            _sync(partial)
            partial.rename(path)
            _sync(path.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def name_file_in_errors(path: Path) -> Iterator[None]:
    """Convert an OSError in a `with` block to a StorageError that names the file and the reason."""
    try:
        yield
    except OSError as error:
        raise StorageError(_reason(path, error)) from None


def is_used(out: Path) -> bool:
    """Return whether a path is a file, or a directory that is not empty."""
    return out.exists() and (not out.is_dir() or any(out.iterdir()))


def check_unused(out: Path, *, resumable: bool = False, option: str = "--out") -> None:
    """Check that an output path does not exist, or is an empty directory.

    Args:
        out: The output path.
        resumable: Whether the error message suggests --resume.
        option: Option that sets the path, for the error message.

    Raises:
        ConfigError: If the path is a file, or a directory that is not empty.
    """
    if is_used(out):
        hint = ", delete it, or resume a stopped run with --resume"
        remedy = hint if resumable else " or delete it"
        raise ConfigError(f"{out} already exists; choose another {option}{remedy}")


def check_out(out: Path, *, resume: bool | str) -> None:
    """Check that a run directory is unused or, if a run is resumed, that it is not empty.

    Args:
        out: The directory.
        resume: Whether to resume a run. "auto" accepts both kinds of directories.

    Raises:
        ConfigError: If a new run would use a directory that is not empty, or the directory of a
            run to resume is empty or does not exist.
    """
    if out.is_dir():
        sweep(out)
    if not resume:
        check_unused(out, resumable=True)
    elif resume is True and not is_used(out):
        raise ConfigError(f"{out} contains no run to resume; remove --resume")


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Return the last part of each path or, if two are equal, the parts in which paths differ."""
    names = [path.name or str(path) for path in paths]
    if len(set(names)) == len(set(paths)):
        return names
    all_parts = [path.absolute().parts for path in paths]
    first = _common(all_parts)
    last = _common([parts[first:][::-1] for parts in all_parts])
    return ["/".join(parts[first : len(parts) - last]) for parts in all_parts]


def _common(sequences: Sequence[Sequence[str]]) -> int:
    """Return the number of leading items that all sequences have in common.

    The last item of the shortest sequence is never counted.
    """
    is_common = (len(set(items)) == 1 for items in zip(*sequences, strict=False))
    return min(len(list(itertools.takewhile(bool, is_common))), min(map(len, sequences)) - 1)


def link_or_copy(source: Path, target: Path) -> None:
    """Create a hard link to a file, or a copy of the file if a link is not possible."""
    try:
        # Files in the cache of the hub are symbolic links.
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)


def sweep(folder: Path) -> None:
    """Remove the temporary files that killed processes have left in a directory."""
    for partial in folder.glob(".*.partial-*"):
        process_id = partial.name.rpartition("-")[2]
        if process_id.isdigit() and not running(int(process_id)):
            if partial.is_dir():
                shutil.rmtree(partial, ignore_errors=True)
            else:
                partial.unlink(missing_ok=True)


def csv_line(cells: Sequence[str]) -> str:
    """Format cells as a line of a .csv file.

    If a cell contains a carriage return, all cells are quoted. Python's writer does not quote a
    carriage return without a line feed, but readers interpret it as the end of the line.
    """
    line, has_cr = io.StringIO(), any("\r" in cell for cell in cells)
    csv.writer(
        line, lineterminator="\n", quoting=csv.QUOTE_ALL if has_cr else csv.QUOTE_MINIMAL
    ).writerow(cells)
    return line.getvalue()


def append_text(path: Path, text: str) -> None:
    """Append text to a file.

    Raises:
        StorageError: If the file cannot be written. Part of the text may have been appended.
    """
    with name_file_in_errors(path), path.open("a", encoding="utf-8") as file:
        file.write(text)


def write_text(path: Path, text: str) -> None:
    """Replace the content of a file atomically."""
    with writing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_bytes(path: Path, content: bytes) -> None:
    """Replace the content of a file atomically."""
    with writing(path) as partial:
        partial.write_bytes(content)


def write_json(path: Path, data: Any) -> None:
    """Write data to a JSON file atomically, and keep the order of its keys."""
    write_text(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def check_file(path: Path, error_type: type[BertkitError], *, most: int) -> None:
    """Check that a path is a regular file that is not too large.

    Args:
        path: The path.
        error_type: Class of the error to raise.
        most: Maximum size in bytes.

    Raises:
        FileNotFoundError: If the path does not exist.
        BertkitError: If the path is not a regular file, or the file is too large.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        # A zero byte in the path raises a ValueError.
        raise error_type(
            f"{str(path)!r}: cannot be read ({error}); fix the file's name or permissions"
        ) from None
    # Reading a pipe or a device may never end.
    if not stat.S_ISREG(status.st_mode):
        raise error_type(f"{path}: not a file; replace it with a regular file")
    if status.st_size > most:
        raise error_type(
            f"{path}: {status.st_size:,} bytes exceed the limit of {most:,}; download it again"
        )


def fits(path: Path, most: int) -> bool:
    """Return whether a path is a regular file of up to `most` bytes."""
    return path.is_file() and path.stat().st_size <= most


def read_bytes(path: Path, error_type: type[BertkitError], *, most: int = SETTINGS) -> bytes:
    """Return the content of a small file.

    Args:
        path: The file.
        error_type: Class of the error to raise.
        most: Maximum size in bytes.

    Raises:
        FileNotFoundError: If the file does not exist.
        BertkitError: If the file cannot be read, or is too large.
    """
    check_file(path, error_type, most=most)
    try:
        return path.read_bytes()
    except OSError as error:
        raise error_type(f"{path}: cannot be read ({error.strerror or error})") from None


def check_unpacked(path: Path, packed: int, unpacked: int, error_type: type[BertkitError]) -> None:
    """Check that the uncompressed content of a file will not exhaust the memory.

    Args:
        path: The file.
        packed: Compressed size in bytes.
        unpacked: Uncompressed size in bytes.
        error_type: Class of the error to raise.

    Raises:
        BertkitError: If the ratio of the sizes is much larger than for text or numbers.
    """
    most = max(FLOOR, EXPANSION * packed)
    if unpacked > most:
        raise error_type(
            f"{path}: {packed:,} bytes expand to more than {most:,}, which may exhaust the memory; "
            "remove the file, or decompress it if you trust it"
        )


class _Unpacked(io.RawIOBase):
    """Stream of the uncompressed bytes of a .gz file, up to the limit of `check_unpacked`."""

    def __init__(self, path: Path, error_type: type[BertkitError]) -> None:
        self.path, self.error_type, self.count = path, error_type, 0
        self.packed = path.stat().st_size
        self.stream = gzip.GzipFile(path, "rb")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = self.stream.readinto(buffer)
        self.count += size
        check_unpacked(self.path, self.packed, self.count, self.error_type)
        return size

    def close(self) -> None:
        self.stream.close()
        super().close()


def open_gzip(path: Path, error_type: type[BertkitError]) -> IO[bytes]:
    """Open a .gz file, and return a stream of its uncompressed bytes.

    Reading from the stream raises `error_type` if the limit of `check_unpacked` is exceeded.
    """
    return io.BufferedReader(_Unpacked(path, error_type), 1 << 16)


def read_json(
    path: Path, error_type: type[BertkitError], remedy: str, *, most: int = SETTINGS
) -> Any:
    """Load a JSON file.

    Args:
        path: The file.
        error_type: Class of the error to raise.
        remedy: End of the error message, which states what to do.
        most: Maximum size in bytes.

    Raises:
        FileNotFoundError: If the file does not exist.
        BertkitError: If the file is damaged, or exceeds a limit of `from_json`.
    """
    content = read_bytes(path, error_type, most=most)
    try:
        return from_json(content)
    except ValueError as error:
        raise error_type(f"{path}: invalid JSON ({error}); {remedy}") from None


def from_json(content: bytes) -> Any:
    """Parse JSON whose nesting depth and number of lists and objects are limited.

    Raises:
        ValueError: If the JSON is invalid, contains NaN, infinity or a lone surrogate, or exceeds
            `DEPTH` or `BRACKETS`.
    """
    brackets = _STRING.sub(b"", content).translate(_ROUND, _NO_BRACKETS)
    if len(brackets) > 2 * BRACKETS:
        raise ValueError(f"more than {BRACKETS:,} lists and objects")
    # Each iteration removes the innermost brackets.
    for _ in range(DEPTH):
        brackets = brackets.replace(b"()", b"")
    if brackets:
        raise ValueError(f"unclosed brackets, or more than {DEPTH} levels")
    text = content.decode("utf-8-sig")
    data = json.loads(text, parse_int=_whole, parse_constant=_no_number)
    if "\\u" in text:
        # Encoding as UTF-8 raises a ValueError if a string contains a lone surrogate.
        json.dumps(data, ensure_ascii=False).encode()
    return data


def _whole(digits: str) -> int | float:
    return int(digits) if len(digits) <= MAX_DIGITS else float(digits)


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not valid JSON")


def sha256(path: Path) -> str:
    """Return the SHA-256 hash of a regular file, in hexadecimal."""
    # Reading a pipe may never end.
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a file", str(path))
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def running(process: int) -> bool:
    """Return whether a process other than this one has the given process id."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    # The process exists, but belongs to another user.
    except (OSError, OverflowError):
        return True
    return True


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _reason(path: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{path}: the disk is full and the old file is unchanged; free space and run again"
    return f"{path}: cannot be written ({error.strerror or error}); choose another path"
