"""Remote directories in object stores or on web servers. Files are downloaded when needed."""

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

CACHE, LIMIT = "BERTKIT_CACHE", "BERTKIT_CACHE_GB"
"""Environment variables that set the cache directory, and the maximum size of a corpus in the
cache in gigabytes."""

PASSWORD = re.compile(r"//[^/@]*:[^/@]*@")

TRIES, WAIT = 3, 1.0
"""Number of attempts to read a file, and seconds between the first and second attempt. The wait
before each further attempt is four times as long."""


class FileInfo(NamedTuple):
    """Expected size and hash of a file."""

    bytes: int
    sha256: str


class _CopyError(Exception):
    """A file could not be downloaded, or differs from the manifest."""


def is_url(path: str | Path) -> bool:
    """Return whether a path is a URL."""
    return "://" in str(path)


@dataclass(frozen=True)
class RemoteDirectory:
    """Remote directory, and the local directory that caches its files."""

    url: str
    folder: Path
    """Local directory."""
    files: Any
    """File system object of fsspec."""
    root: str
    """Path of the remote directory in the file system."""

    @staticmethod
    def open(url: str) -> RemoteDirectory:
        """Open a remote directory: download its manifest and tokenizer to a local directory.

        The name of the local directory is the hash of the manifest.

        Raises:
            DataError: If the directory cannot be reached.
            ConfigError: If the protocol of the URL is unknown, the package for it is not installed,
                or the URL contains a password.
        """
        from fsspec.core import url_to_fs

        url = url.rstrip("/")
        if PASSWORD.search(url):
            raise ConfigError(
                "corpus: a URL must not contain a password, because it would be saved in run.json; "
                "use the environment variables or credential files of the store"
            )
        try:
            files, root = url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise ConfigError(f"{url}: {error}") from None
        cache = Path(os.environ.get(CACHE) or Path.home() / ".cache" / "bertkit")
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
        """Read a small file.

        Raises:
            DataError: If the file cannot be read, or is too large.
        """
        most = storage.VOCABULARY + 1
        content: bytes = self._retry(name, lambda path: self.files.cat_file(path, 0, most))
        if len(content) > storage.VOCABULARY:
            raise DataError(
                f"{self.url}/{name}: the size exceeds the limit of {storage.VOCABULARY:,} bytes; "
                "check that the URL is a corpus"
            )
        return content

    def names(self, folder: str) -> list[str]:
        """Return the names of the tokenizer files (.json, .txt and .model) in a directory.

        Raises:
            DataError: If the directory cannot be read.
        """
        entries = self._retry(folder, lambda path: self.files.ls(path, detail=True))
        paths = [Path(entry["name"]) for entry in entries if entry["type"] == "file"]
        return [path.name for path in paths if path.suffix in (".json", ".txt", ".model")]

    def fetch(self, files: Mapping[str, FileInfo]) -> None:
        """Download the files that are not in the local directory.

        If the size limit of the cache would be exceeded, the least recently used files are deleted.
        A lock prevents several processes of a machine from downloading at the same time.

        Args:
            files: Expected size and hash of each file, by name.

        Raises:
            DataError: If several attempts to download a file fail, or a file differs from the
                manifest.
        """
        with (self.folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            missing = {n: info for n, info in files.items() if not self._is_cached(n, info.bytes)}
            self._free_space(sum(info.bytes for info in missing.values()), files)
            for name, info in missing.items():
                self._retry(name, lambda path, n=name, i=info: self._copy(path, n, i))

    def _is_cached(self, name: str, size: int) -> bool:
        path = self.folder / name
        if not path.is_file() or path.stat().st_size != size:
            return False
        path.touch()
        return True

    def _copy(self, path: str, name: str, info: FileInfo) -> None:
        with storage.writing(self.folder / name) as partial:
            try:
                self.files.get_file(path, str(partial))
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise
                raise _CopyError(_reason(error)) from None
            if partial.stat().st_size != info.bytes:
                raise _CopyError(f"got {partial.stat().st_size:,} of {info.bytes:,} bytes")
            if storage.sha256(partial) != info.sha256:
                raise _CopyError("the hash differs from the manifest")

    def _free_space(self, size: int, required: Mapping[str, FileInfo]) -> None:
        value = os.environ.get(LIMIT) or "100"
        try:
            limit = float(value) * 1e9
        except ValueError:
            raise ConfigError(f"{LIMIT} must be a number of gigabytes, got {value!r}") from None
        shards = [p for p in self.folder.glob("shard-*") if p.name not in required]
        oldest = sorted(shards, key=lambda path: path.stat().st_mtime)
        used = size + sum(path.stat().st_size for path in oldest)
        for path in oldest:
            if used <= limit:
                break
            used -= path.stat().st_size
            path.unlink()

    def _retry(self, name: str, request: Any) -> Any:
        """Call a request for a file, retry if it fails, and return its result."""
        for number in range(TRIES):
            if number:
                time.sleep(WAIT * 4 ** (number - 1))
            try:
                return request(f"{self.root}/{name}")
            except FileNotFoundError:
                raise DataError(f"{self.url}/{name} not found; check the corpus URL") from None
            # Requests are not retried after errors of the local disk.
            except BertkitError:
                raise
            # Each type of store raises its own exceptions.
            except Exception as error:
                reason = _reason(error)
        raise DataError(f"{self.url}/{name}: {TRIES} attempts failed ({reason}); try again later")


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
