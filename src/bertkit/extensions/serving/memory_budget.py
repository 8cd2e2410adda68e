"""Memory budget: each request reserves memory before it uses the memory.

A request first reserves the memory that it needs in the worst case, and later releases what it does
not need. If too little memory is left, the request is rejected. The constants were measured with
WordPiece and glibc's malloc (notes/2026-11.md).
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
"""Reserved bytes per byte of a request body, which exists as raw bytes, as decoded JSON, and as
request objects."""

BYTES_PER_READ_TOKEN = 1024
"""Reserved bytes per token while texts are tokenized, for the memory of the `tokenizers` library,
offsets and words."""

BYTES_PER_TOKEN = 2048
"""Reserved bytes per token until the response is complete. The response itself is included."""

TRIM_BYTES = 64 << 20
"""Number of released bytes after which malloc is told to return free memory to the kernel."""


class Budget:
    """The memory budget of all requests in a process. The class is not thread-safe.

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
            RequestError: If the memory exceeds the whole budget, or the part of the budget that is
                left.
        """
        if count > self.limit:
            raise too_much(
                f"the request requires {count >> 20:,} MB of memory, but the maximum "
                f"(memory_bytes) is {self.limit >> 20:,} MB; send fewer or shorter texts"
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
        """Release memory after tokenization, and sometimes make malloc return free memory.

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
    """Return the largest number of tokens that an item can have with any vocabulary.

    Each token covers at least one byte, or one character of the normalized text. NFKD is the
    normalization that gives the most characters: three for a Hangul syllable, and eighteen for
    U+FDFA.

    Args:
        item: A text, a pair of texts, or a text with a list of texts. In a list, each text is
            encoded together with the first.

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
