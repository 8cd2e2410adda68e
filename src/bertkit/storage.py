"""Writing so that a reader never sees half of it: beside, synced, renamed."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertkit.errors import ConfigError, StorageError


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
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        for file in sorted(partial.rglob("*"), reverse=True):
            _sync(file)
        _sync(partial)
        partial.rename(path)
        _sync(path.parent)
    except OSError as error:
        raise StorageError(_reason(path, error)) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


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


def link_or_copy(source: Path, target: Path) -> None:
    """The same content under a new name; without a second copy on disk where links are known."""
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copyfile(source, target)


def sweep(folder: Path) -> None:
    """Remove what killed processes left half-written in a folder."""
    for partial in folder.glob(".*.partial-*"):
        number = partial.name.rpartition("-")[2]
        if number.isdigit() and not _running(int(number)):
            if partial.is_dir():
                shutil.rmtree(partial, ignore_errors=True)
            else:
                partial.unlink(missing_ok=True)


def append_text(path: Path, text: str) -> None:
    """Add to the end of a file. Raises: StorageError; a part of `text` may then be there."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise StorageError(_reason(path, error)) from None


def write_text(path: Path, text: str) -> None:
    """Replace a file's content in one go."""
    with writing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, data: Any) -> None:
    """Replace a JSON file in one go, its keys in the order given."""
    write_text(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def sha256(path: Path) -> str:
    """The hash of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _running(process: int) -> bool:
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
