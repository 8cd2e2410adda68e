"""Connections with limits on all resources that a client can use before its key is checked."""

from __future__ import annotations

import asyncio
import math
import resource
import time
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bertkit.console import say

HEAD_BYTES = 64 << 10
"""Maximum size of the request line and headers in bytes; the last read may exceed it."""

MAX_HEADERS = 100
"""Maximum number of headers."""

HEAD_SECONDS = 10.0
"""Maximum time in seconds until the request line and headers have arrived."""

MAX_PIPELINED_REQUESTS = 16
"""Maximum number of requests of a connection that wait for a response."""

FILE_DESCRIPTORS = 4096
"""Number of file descriptors that a server requests; three quarters are for connections."""

LOG_SECONDS = 60.0
"""Minimum time in seconds between two messages about closed connections."""

LAST_SECONDS = 1.0
"""Time in seconds that a stopping server waits for the first request of a connection."""

TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"connection: close\r\ncontent-length: 0\r\n\r\n"
)


def raise_file_limit() -> int:
    """Raise the limit of open files, and return the maximum number of connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = FILE_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(FILE_DESCRIPTORS, hard)
    raised = ""
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
        raised = f", raised from {soft:,}"
    connections = files * 3 // 4
    say(f"connections: at most {connections:,} (limit of open files: {files:,}{raised})")
    return connections


class Connection(HttpToolsProtocol):
    """uvicorn's connection, with limits for request heads and for the number of connections.

    uvicorn has no settings for the time and number of headers. It does not close idle connections
    for new ones. When the server stops, it closes connections whose first request is still
    arriving. The methods override the protocol of asyncio and the callbacks of httptools;
    tests/extensions/serving/test_connection.py checks them with a real server.

    Args:
        given: Positional arguments of uvicorn's connection.
        limit: Maximum number of connections. A new connection closes the connection that has waited
            longest for its client.
        named: Keyword arguments of uvicorn's connection.
    """

    logged: ClassVar[float] = -LOG_SECONDS

    def __init__(self, *given: Any, limit: int = FILE_DESCRIPTORS, **named: Any) -> None:
        super().__init__(*given, **named)
        self.limit = limit
        # Number of bytes of the current request head.
        self._read = 0.0
        # Timer that closes the connection.
        self._timer: asyncio.TimerHandle | None = None
        # Whether the connection has received a complete head.
        self._has_head = False
        # Whether the server stops after the current request.
        self._is_last = False
        # Time since which the connection waits for its client, or None while the server works.
        self._idle: float | None = time.monotonic()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head(HEAD_SECONDS)
        if len(self.connections) > self.limit:
            self._close_longest_idle()

    def _close_longest_idle(self) -> None:
        """Close the connection that has waited longest for its client, or else this connection."""
        others = [other for other in self.connections if isinstance(other, Connection)]
        waiting = [other for other in others if other._idle is not None]
        longest = min(waiting, key=lambda other: other._idle or 0.0, default=self)
        # asyncio calls connection_lost only later.
        self.connections.discard(longest)
        longest.transport.abort()
        now = time.monotonic()
        if now - Connection.logged >= LOG_SECONDS:
            Connection.logged = now
            say(f"connections: limit of {self.limit:,} reached; new connections close idle ones")

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED_REQUESTS:
            self.transport.abort()
            # The exception stops the parser.
            raise ValueError("too many requests at once")
        super().on_message_begin()
        self._await_head(HEAD_SECONDS)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._timer is not None:
            self._read += len(data)
            if self._read > HEAD_BYTES:
                self._reject_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS:
            self._reject_head()
            # The exception stops the parser.
            raise ValueError("too many headers")

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._has_head = True
        super().on_headers_complete()
        if self._is_last:
            super().shutdown()

    def on_message_complete(self) -> None:
        # After a complete response, this is the rest of the body of a rejected request.
        if self.cycle.response_complete:
            self._stop_timer()
        else:
            self._idle = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._idle = None if self.pipeline else time.monotonic()
        unread = self.cycle.response_complete and self.cycle.more_body
        super().on_response_complete()
        # uvicorn reads the rest of a rejected body without a timeout.
        if unread:
            self._await_head(HEAD_SECONDS)
            self._read = -math.inf

    def pause_writing(self) -> None:
        self._idle = time.monotonic()
        super().pause_writing()

    def resume_writing(self) -> None:
        if not self.cycle.response_complete:
            self._idle = None
        super().resume_writing()

    def shutdown(self) -> None:
        if self._has_head or self._is_last:
            super().shutdown()
        else:
            self._is_last = True
            self._await_head(LAST_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _reject_head(self) -> None:
        self.transport.write(TOO_LARGE)
        self.transport.close()

    def _await_head(self, seconds: float) -> None:
        self._stop_timer()
        self._read, self._idle = 0.0, time.monotonic()
        self._timer = self.loop.call_later(seconds, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
