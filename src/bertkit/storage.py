"""Files, written so that a reader never sees half of them, and read within bounds.

Writing is beside, synced, renamed. What is read may come from anywhere: its size, its depth and its
numbers are bounded before anything is made of it.
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
"""The most bytes of a file of settings, and of one with the pieces of a vocabulary."""

EXPANSION, FLOOR = 100, 16 << 20
"""Largest ratio of unpacked to packed size, and number of unpacked bytes that is always allowed.

Text is packed to a third or a tenth; a ratio of 1,000 is that of a file of equal bytes.
"""

_UMASK = os.umask(0)
os.umask(_UMASK)
NEW_FILE = 0o666 & ~_UMASK
"""Who may do what with a new file, as this process began."""

DEPTH, BRACKETS = 64, 1 << 17
"""Of JSON: the most lists and objects within each other, and in all."""

MAX_DIGITS = 40
"""The most of a whole number; one of more is taken as a fraction, which has an end."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_ROUND = bytes.maketrans(b"[{]}", b"(())")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path`, which takes its place when the block ends well.

    Raises: StorageError when the disk is full or the place cannot be written; the old file stays.
    """
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.unlink(missing_ok=True)  # of a killed process that had our number
        yield partial
        _sync(partial)
        partial.replace(path)
        _sync(path.parent)
    except OSError as error:
        raise StorageError(_reason(path, error)) from None
    finally:
        with contextlib.suppress(OSError):  # the reason has been said
            partial.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path`, which becomes `path` when the block ends well.

    Every file is on disk before the name is; `path` must not exist yet.
    Raises: StorageError as `writing` does; nothing is left behind.
    """
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        with told(path):
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
def told(path: Path) -> Iterator[None]:
    """Tell in a sentence why something cannot be written. Raises: StorageError."""
    try:
        yield
    except OSError as error:
        raise StorageError(_reason(path, error)) from None


def used(out: Path) -> bool:
    """Whether something is at a place: a file, or a folder that is not empty."""
    return out.exists() and (not out.is_dir() or any(out.iterdir()))


def refuse_used(out: Path, *, resumable: bool = False, option: str = "--out") -> None:
    """Raises: ConfigError when something is at the place where a result is to be."""
    if used(out):
        hint = "; a run that was stopped goes on with --resume" if resumable else ""
        raise ConfigError(
            f"{out}: exists already; choose another {option}, or remove it first{hint}"
        )


def check_out(out: Path, *, resume: bool | str) -> None:
    """Raises: ConfigError for a place of several runs that is in use, or of none to resume.

    With `resume` "auto" it may be either.
    """
    if out.is_dir():
        sweep(out)
    if not resume:
        refuse_used(out, resumable=True)
    elif resume is True and not used(out):
        raise ConfigError(f"{out}: no run to resume here; remove --resume")


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """The last parts of paths, or where two are the same the parts that are not common to all."""
    names = [path.name or str(path) for path in paths]
    if len(set(names)) == len(set(paths)):
        return names
    every = [path.absolute().parts for path in paths]
    first = _common(every)
    last = _common([parts[first:][::-1] for parts in every])
    return ["/".join(parts[first : len(parts) - last]) for parts in every]


def _common(every: Sequence[Sequence[str]]) -> int:
    """How many of the first items are the same in all, of which one stays in the shortest."""
    same = (len(set(items)) == 1 for items in zip(*every, strict=False))
    return min(len(list(itertools.takewhile(bool, same))), min(map(len, every)) - 1)


def link_or_copy(source: Path, target: Path) -> None:
    """The same content under a new name; without a second copy on disk where links are known."""
    try:
        os.link(source.resolve(), target)  # the hub's cache contains symbolic links
    except OSError:  # a file system without links
        shutil.copyfile(source, target)


def sweep(folder: Path) -> None:
    """Remove what killed processes left half-written in a folder."""
    for partial in folder.glob(".*.partial-*"):
        number = partial.name.rpartition("-")[2]
        if number.isdigit() and not running(int(number)):
            if partial.is_dir():
                shutil.rmtree(partial, ignore_errors=True)
            else:
                partial.unlink(missing_ok=True)


def csv_line(cells: Sequence[str]) -> str:
    """A line of a .csv file. Its writer leaves a lone "\r" bare, which readers take for an end."""
    line, bare = io.StringIO(), any("\r" in cell for cell in cells)
    csv.writer(
        line, lineterminator="\n", quoting=csv.QUOTE_ALL if bare else csv.QUOTE_MINIMAL
    ).writerow(cells)
    return line.getvalue()


def append_text(path: Path, text: str) -> None:
    """Add to the end of a file. Raises: StorageError; a part of `text` may then be there."""
    with told(path), path.open("a", encoding="utf-8") as file:
        file.write(text)


def write_text(path: Path, text: str) -> None:
    """Replace a file's content in one go."""
    with writing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file's content in one go."""
    with writing(path) as partial:
        partial.write_bytes(content)


def write_json(path: Path, data: Any) -> None:
    """Replace a JSON file in one go, its keys in the order given."""
    write_text(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def check_file(path: Path, refuse: type[BertkitError], *, most: int) -> None:
    """Raises: FileNotFoundError where nothing is; `refuse` for what is no file, or has too many
    bytes.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a zero byte in its name
        raise refuse(
            f"{str(path)!r}: cannot be read ({error}); mend its name or its rights"
        ) from None
    if not stat.S_ISREG(status.st_mode):  # a pipe or a device may never end
        raise refuse(f"{path}: not a file; put the file of this name in its place")
    if status.st_size > most:
        raise refuse(
            f"{path}: {status.st_size:,} bytes, and a file of its kind has at most {most:,}; fetch "
            "or write it again"
        )


def fits(path: Path, most: int) -> bool:
    """Return whether a path is a regular file of up to `most` bytes."""
    return path.is_file() and path.stat().st_size <= most


def read_bytes(path: Path, refuse: type[BertkitError], *, most: int = SETTINGS) -> bytes:
    """A small file's content. Raises: as `check_file`, and `refuse` when it cannot be read."""
    check_file(path, refuse, most=most)
    try:
        return path.read_bytes()
    except OSError as error:
        raise refuse(f"{path}: cannot be read ({error.strerror or error})") from None


def check_unpacked(path: Path, packed: int, unpacked: int, refuse: type[BertkitError]) -> None:
    """Raise `refuse` if a compressed file unpacks to far more bytes than text or numbers do."""
    most = max(FLOOR, EXPANSION * packed)
    if unpacked > most:
        raise refuse(
            f"{path}: {packed:,} bytes that unpack to more than {most:,}; the file may be made to "
            "exhaust the memory, so remove it, or unpack it if you trust it"
        )


class _Unpacked(io.RawIOBase):
    """The unpacked bytes of a .gz file, up to the limit of `check_unpacked`."""

    def __init__(self, path: Path, refuse: type[BertkitError]) -> None:
        self.path, self.refuse, self.count = path, refuse, 0
        self.packed = path.stat().st_size
        self.stream = gzip.GzipFile(path, "rb")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = self.stream.readinto(buffer)
        self.count += size
        check_unpacked(self.path, self.packed, self.count, self.refuse)
        return size

    def close(self) -> None:
        self.stream.close()
        super().close()


def open_gzip(path: Path, refuse: type[BertkitError]) -> IO[bytes]:
    """Open the unpacked bytes of a .gz file.

    Reading raises `refuse` as `check_unpacked` does.
    """
    return io.BufferedReader(_Unpacked(path, refuse), 1 << 16)


def read_json(path: Path, refuse: type[BertkitError], remedy: str, *, most: int = SETTINGS) -> Any:
    """What a JSON file holds.

    Raises: FileNotFoundError; `refuse` with the `remedy` for a file that is damaged, nested deeper
    than `DEPTH`, or holds numbers or text that no JSON has.
    """
    content = read_bytes(path, refuse, most=most)
    try:
        return from_json(content)
    except ValueError as error:
        raise refuse(f"{path}: not valid JSON ({error}); {remedy}") from None


def from_json(content: bytes) -> Any:
    """Raises: ValueError for what `read_json` refuses."""
    brackets = _STRING.sub(b"", content).translate(_ROUND, _NO_BRACKETS)
    if len(brackets) > 2 * BRACKETS:
        raise ValueError(f"more than {BRACKETS:,} lists and objects")
    for _ in range(DEPTH):  # the innermost go first
        brackets = brackets.replace(b"()", b"")
    if brackets:
        raise ValueError(f"brackets that are not closed, or more than {DEPTH} within each other")
    text = content.decode("utf-8-sig")
    data = json.loads(text, parse_int=_whole, parse_constant=_no_number)
    if "\\u" in text:
        json.dumps(data, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    return data


def _whole(digits: str) -> int | float:
    return int(digits) if len(digits) <= MAX_DIGITS else float(digits)


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def sha256(path: Path) -> str:
    """Return the hash of a regular file, in hexadecimal."""
    if path.exists() and not path.is_file():  # a pipe may never end
        raise OSError(errno.EINVAL, "not a file", str(path))
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def running(process: int) -> bool:
    """Whether another process of this number is there."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # there, and another user's
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
        return f"{path}: the disk is full; what stood there is untouched; free space and run again"
    return f"{path}: cannot be written ({error.strerror or error}); choose another place"
