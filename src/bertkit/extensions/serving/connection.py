"""Connections that limit the resources a client can use before its API key is checked."""

from __future__ import annotations

import asyncio
import math
import resource
import time
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bertkit.console import say

HEAD_BYTES = 64 << 10
"""Maximum size in bytes of the request line and headers. The last part that is read may exceed
it."""

MAX_HEADERS = 100
"""Maximum number of headers in a request."""

HEAD_SECONDS = 10.0
"""Time in seconds within which the request line and headers must arrive."""

MAX_PIPELINED_REQUESTS = 16
"""Maximum number of requests on a connection that can wait for a response."""

FILE_DESCRIPTORS = 4096
"""Number of file descriptors that a server requests. Three quarters of them are for connections."""

LOG_SECONDS = 60.0
"""Minimum time in seconds between two log messages about closed connections."""

LAST_SECONDS = 1.0
"""Time in seconds for which a stopping server waits for the first request on a connection."""

TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"connection: close\r\ncontent-length: 0\r\n\r\n"
)


def raise_file_limit() -> int:
    """Raise the limit on open files, and return the maximum number of connections."""
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
    """A uvicorn connection with limits on request heads and on the number of connections.

    uvicorn itself cannot limit how long headers take to arrive or how many there are. It does not
    close idle connections to make room for new ones. When the server stops, uvicorn also closes
    connections whose first request is still arriving. The methods override those of asyncio's
    protocol and the callbacks of httptools; tests/extensions/serving/test_connection.py checks them
    with a real server.

    Args:
        given: Positional arguments for uvicorn's connection class.
        limit: Maximum number of connections. If it is exceeded, the connection whose client has
            been idle longest is closed.
        named: Keyword arguments for uvicorn's connection class.
    """

    logged: ClassVar[float] = -LOG_SECONDS

    def __init__(self, *given: Any, limit: int = FILE_DESCRIPTORS, **named: Any) -> None:
        super().__init__(*given, **named)
        self.limit = limit
        # Number of bytes of the current request head that have been read.
        self._read = 0.0
        # Timer that closes the connection.
        self._timer: asyncio.TimerHandle | None = None
        # Whether the connection has received a complete request head.
        self._has_head = False
        # Whether the server is stopping, so that this request is the last.
        self._is_last = False
        # Time at which the connection began to wait for its client, or None while the server works.
        self._idle: float | None = time.monotonic()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head(HEAD_SECONDS)
        if len(self.connections) > self.limit:
            self._close_longest_idle()

    def _close_longest_idle(self) -> None:
        """Close the connection whose client has been idle longest, or else this connection."""
        others = [other for other in self.connections if isinstance(other, Connection)]
        waiting = [other for other in others if other._idle is not None]
        longest = min(waiting, key=lambda other: other._idle or 0.0, default=self)
        # Remove the connection now, because asyncio calls connection_lost only later.
        self.connections.discard(longest)
        longest.transport.abort()
        now = time.monotonic()
        if now - Connection.logged >= LOG_SECONDS:
            Connection.logged = now
            say(
                f"connections: limit of {self.limit:,} reached; closing idle ones to accept new "
                "ones"
            )

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
        # If the response is already complete, what has arrived is the rest of a rejected request's
        # body.
        if self.cycle.response_complete:
            self._stop_timer()
        else:
            self._idle = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._idle = None if self.pipeline else time.monotonic()
        unread = self.cycle.response_complete and self.cycle.more_body
        super().on_response_complete()
        # uvicorn has no timeout for reading the rest of a rejected request's body.
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
