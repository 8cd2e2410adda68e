"""The memory budget of requests: reserved before use, refused where too little is left.

A request reserves for the worst text of its size, and returns what it did not use.
Figures are of glibc's malloc, measured on WordPiece (notes/2026-11.md).
"""

from __future__ import annotations

import asyncio
import unicodedata
from typing import Any

import msgspec

from bertkit import memory
from bertkit.extensions.serving.errors import busy, too_much
from bertkit.extensions.serving.metrics import Metrics

BYTES_PER_BODY_BYTE = 8
"""Bytes held for each byte of a body: as it came, as JSON, as what is asked."""

BYTES_PER_READ_TOKEN = 1024
"""Bytes held for each piece while texts are read: the library's, and offsets and words of it."""

BYTES_PER_TOKEN = 2048
"""Bytes held for each token until its request is answered, the answer included."""

TRIM_BYTES = 64 << 20
"""Freed bytes after which malloc is told to return memory to the kernel."""


class Budget:
    """The bytes that all requests of a process may hold; not thread-safe."""

    def __init__(self, most: int, metrics: Metrics) -> None:
        self.most, self.metrics = most, metrics
        self.used = self._loose = 0

    def take(self, count: int) -> None:
        """Raises: RequestError for more than there is, or is left."""
        if count > self.most:
            raise too_much(
                f"this would take {count >> 20:,} MB of memory, and {self.most >> 20:,} are what "
                "there is (memory_bytes); send fewer or shorter texts"
            )
        if self.used + count > self.most:
            raise busy(1, "other requests hold the memory that this one needs; try again in 1 s")
        self._use(count)

    def give(self, count: int) -> None:
        """Return what was taken."""
        self._use(-count)

    def read(self, count: int) -> None:
        """Return what a thread read with, and now and then malloc's free memory to the kernel."""
        self.give(count)
        self._loose += count
        if self._loose >= TRIM_BYTES:
            self._loose = 0
            asyncio.get_running_loop().run_in_executor(None, memory.give_back)

    def _use(self, count: int) -> None:
        self.used += count
        self.metrics.memory.set(self.used)


def pieces(item: Any) -> int:
    """How many pieces an item has at most, whatever the vocabulary: a text, a pair, or a text that
    is read with each of several others.

    A piece holds a character at least as the vocabulary's rules write it, of which decomposing
    gives most (one Hangul syllable is three letters, U+FDFA eighteen), or a byte.
    Raises: UnicodeEncodeError for half of a surrogate pair.
    """
    match item:
        case None | int() | float():
            return 0
        case msgspec.Struct():  # such as a message, with its role
            return sum(map(pieces, msgspec.structs.astuple(item)))
        case str(text):
            if text.isascii():
                return len(text)
            return max(len(text.encode()), len(unicodedata.normalize("NFKD", text)))
        case (str(text), [*others]):
            return (pieces(text) + 2) * len(others) + sum(map(pieces, others))
    return sum(map(pieces, item))
