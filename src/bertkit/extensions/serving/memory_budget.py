"""Memory budget of requests, which reserve memory before they use it.

A request reserves memory for the worst case of its size, and releases the rest later. If too little
memory is left, it is rejected. The constants were measured with WordPiece and glibc's malloc
(notes/2026-11.md).
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
"""Reserved bytes per byte of a body: raw, as decoded JSON, and as request objects."""

BYTES_PER_READ_TOKEN = 1024
"""Reserved bytes per token while texts are tokenized: the library's memory, offsets and words."""

BYTES_PER_TOKEN = 2048
"""Reserved bytes per token until the response is complete, including the response."""

TRIM_BYTES = 64 << 20
"""Released bytes after which malloc returns its free memory to the kernel."""


class Budget:
    """The memory budget of all requests of a process. It is not thread-safe.

    Args:
        limit: Maximum number of bytes.
        metrics: Metrics of the server.
    """

    def __init__(self, limit: int, metrics: Metrics) -> None:
        self.limit, self.metrics = limit, metrics
        self.used = self._released = 0

    def take(self, count: int) -> None:
        """Reserve memory.

        Args:
            count: Number of bytes.

        Raises:
            RequestError: If the memory exceeds the budget, or the part of it that is left.
        """
        if count > self.limit:
            raise too_much(
                f"the request requires {count >> 20:,} MB of memory, the maximum (memory_bytes) is "
                f"{self.limit >> 20:,} MB; send fewer or shorter texts"
            )
        if self.used + count > self.limit:
            raise busy(1, "other requests use the memory that this request needs; retry in 1 s")
        self._use(count)

    def give(self, count: int) -> None:
        """Release reserved memory.

        Args:
            count: Number of bytes.
        """
        self._use(-count)

    def read(self, count: int) -> None:
        """Release memory after tokenization, and from time to time trim malloc's free memory.

        Args:
            count: Number of bytes.
        """
        self.give(count)
        self._released += count
        if self._released >= TRIM_BYTES:
            self._released = 0
            asyncio.get_running_loop().run_in_executor(None, memory.give_back)

    def _use(self, count: int) -> None:
        self.used += count
        self.metrics.memory.set(self.used)


def max_tokens(item: Any) -> int:
    """Return the maximum number of tokens of an item, for any vocabulary.

    A token contains at least one byte, or one character of the normalized text. NFKD gives most
    characters: a Hangul syllable has three letters, U+FDFA eighteen.

    Args:
        item: A text, a pair, or a text with a list of texts that are each encoded with it.

    Raises:
        UnicodeEncodeError: If a text contains a lone surrogate.
    """
    match item:
        case None | int() | float():
            return 0
        case msgspec.Struct():
            return sum(map(max_tokens, msgspec.structs.astuple(item)))
        case str(text):
            if text.isascii():
                return len(text)
            return max(len(text.encode()), len(unicodedata.normalize("NFKD", text)))
        case (str(text), [*others]):
            return (max_tokens(text) + 2) * len(others) + sum(map(max_tokens, others))
    return sum(map(max_tokens, item))
