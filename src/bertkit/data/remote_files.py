"""A folder that lies elsewhere, in an object store or on a web server: its files are copied here,
each as a whole, when they are needed.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bertkit import storage
from bertkit.errors import BertkitError, ConfigError, DataError

PLACE, LIMIT = "BERTKIT_CACHE", "BERTKIT_CACHE_GB"
"""Environment variables: the folder of the copies, and how much those of a corpus may take."""

PASSWORD = re.compile(r"//[^/@]*:[^/@]*@")

TRIES, WAIT = 3, 1.0
"""How often a file is asked for, and seconds before the second time; then four times as long."""


class Kept(NamedTuple):
    """What a file must be like."""

    bytes: int
    sha256: str


class _Unlike(Exception):
    """A file did not come, or not as it must be."""


def is_url(place: str | Path) -> bool:
    return "://" in str(place)


@dataclass(frozen=True)
class RemoteDirectory:
    """A folder elsewhere, and the one here that holds copies of its files."""

    url: str
    folder: Path
    files: Any
    """The file system of fsspec that reads it."""
    root: str
    """Its path there."""

    @staticmethod
    def open(url: str) -> RemoteDirectory:
        """Copy its manifest, whose hash names the folder here, and its tokenizer.

        Raises: DataError where it cannot be reached, ConfigError for a protocol that is unknown or
        not installed.
        """
        from fsspec.core import url_to_fs

        url = url.rstrip("/")
        if PASSWORD.search(url):
            raise ConfigError(
                "corpus: an address with a password would be written to run.json and shown; give "
                "it by the store's own environment variables or files"
            )
        try:
            files, root = url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise ConfigError(f"{url}: {error}") from None
        cache = Path(os.environ.get(PLACE) or Path.home() / ".cache" / "bertkit")
        store = RemoteDirectory(url, cache, files, root)
        manifest = store.read("manifest.json")
        folder = cache / hashlib.sha256(manifest).hexdigest()[:32]
        store = RemoteDirectory(url, folder, files, root)
        if not (folder / "manifest.json").exists():
            for name in store.names("tokenizer"):
                content = store.read(f"tokenizer/{name}")
                storage.write_bytes(folder / "tokenizer" / name, content)
            storage.write_bytes(folder / "manifest.json", manifest)
        storage.sweep(folder)
        return store

    def read(self, name: str) -> bytes:
        """A small file. Raises: DataError."""
        most = storage.VOCABULARY + 1
        content: bytes = self._asked(name, lambda place: self.files.cat_file(place, 0, most))
        if len(content) > storage.VOCABULARY:
            raise DataError(
                f"{self.url}/{name}: {len(content):,} bytes, and a file of its kind has at most "
                f"{storage.VOCABULARY:,}; is this a corpus?"
            )
        return content

    def names(self, folder: str) -> list[str]:
        """Of the files in a folder. Raises: DataError."""
        listed = self._asked(folder, lambda place: self.files.ls(place, detail=True))
        paths = [Path(one["name"]) for one in listed if one["type"] == "file"]
        return [path.name for path in paths if path.suffix in (".json", ".txt", ".model")]

    def fetch(self, files: Mapping[str, Kept]) -> None:
        """Copy those that are not here yet; others go, the longest unused first, where the limit
        asks for it. Processes of one machine take turns.

        Raises: DataError for one that cannot be had as it must be, after some tries.
        """
        with (self.folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            missing = {n: kept for n, kept in files.items() if not self._here(n, kept.bytes)}
            self._make_room(sum(kept.bytes for kept in missing.values()), files)
            for name, kept in missing.items():
                self._asked(name, lambda place, n=name, k=kept: self._copy(place, n, k))

    def _here(self, name: str, size: int) -> bool:
        path = self.folder / name
        if not path.is_file() or path.stat().st_size != size:
            return False
        path.touch()
        return True

    def _copy(self, place: str, name: str, kept: Kept) -> None:
        with storage.writing(self.folder / name) as partial:
            try:
                self.files.get_file(place, str(partial))
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise
                raise _Unlike(_said(error)) from None
            if partial.stat().st_size != kept.bytes:
                raise _Unlike(f"{partial.stat().st_size:,} of {kept.bytes:,} bytes came")
            if storage.sha256(partial) != kept.sha256:
                raise _Unlike("its hash is not the manifest's")

    def _make_room(self, size: int, wanted: Mapping[str, Kept]) -> None:
        given = os.environ.get(LIMIT) or "100"
        try:
            limit = float(given) * 1e9
        except ValueError:
            raise ConfigError(f"{LIMIT}: {given!r} is no number; write gigabytes, as 100") from None
        shards = [p for p in self.folder.glob("shard-*") if p.name not in wanted]
        oldest = sorted(shards, key=lambda path: path.stat().st_mtime)
        held = size + sum(path.stat().st_size for path in oldest)
        for path in oldest:
            if held <= limit:
                break
            held -= path.stat().st_size
            path.unlink()

    def _asked(self, name: str, ask: Any) -> Any:
        """What the store says, asked again where it fails. Raises: DataError."""
        for number in range(TRIES):
            if number:
                time.sleep(WAIT * 4 ** (number - 1))
            try:
                return ask(f"{self.root}/{name}")
            except FileNotFoundError:
                raise DataError(f"{self.url}/{name}: not there; is this a corpus?") from None
            except BertkitError:  # the disk here
                raise
            except Exception as error:  # each store has its own
                reason = _said(error)
        raise DataError(
            f"{self.url}/{name}: asked for {TRIES} times, and {reason}; try again later"
        )


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
