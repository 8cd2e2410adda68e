"""A connection with limits, for all that a client can use before its key is checked."""

from __future__ import annotations

import asyncio
import math
import resource
import time
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bertkit.console import say

HEAD_BYTES = 64 << 10
"""Limit of a request's line and headers; the last read may exceed it."""

MAX_HEADERS = 100
"""Limit of the number of headers."""

HEAD_SECONDS = 10.0
"""That they may take to arrive."""

MAX_PIPELINED_REQUESTS = 16
"""Limit of the requests that a connection sends before the first one is answered."""

FILE_DESCRIPTORS = 4096
"""File descriptors that a server asks for; three quarters of them are for connections."""

LOG_SECONDS = 60.0
"""Minimum time between two messages on connections that were closed."""

LAST_SECONDS = 1.0
"""That a server which stops waits for the request of a connection that has asked nothing yet."""

TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"connection: close\r\ncontent-length: 0\r\n\r\n"
)


def raise_file_limit() -> int:
    """Raise the limit of open files of this process, and return the limit of its connections."""
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

    uvicorn has no setting for a head's time and number of headers, closes no idle connection for a
    new one, and closes a connection whose first request is on its way when the server stops. The
    methods are those of asyncio's protocols and of httptools' callbacks;
    tests/extensions/serving/test_connection.py checks them with a real server.

    Args:
        limit: Maximum number of connections. A new connection closes the one that has waited for
            its client for the longest time.
    """

    logged: ClassVar[float] = -LOG_SECONDS

    def __init__(self, *given: Any, limit: int = FILE_DESCRIPTORS, **named: Any) -> None:
        super().__init__(*given, **named)
        self.limit = limit
        self._read = 0.0  # bytes of a head
        self._late: asyncio.TimerHandle | None = None  # closes the connection
        self._asked = False  # whether a head was read
        self._last = False  # whether the server stops after this request
        # when the connection began to wait for its client; None while the server works
        self._idle: float | None = time.monotonic()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head(HEAD_SECONDS)
        if len(self.connections) > self.limit:
            self._close_longest_idle()

    def _close_longest_idle(self) -> None:
        """Close the connection that has waited for its client longest; this one if none waits."""
        others = [one for one in self.connections if isinstance(one, Connection)]
        waiting = [one for one in others if one._idle is not None]
        longest = min(waiting, key=lambda one: one._idle or 0.0, default=self)
        self.connections.discard(longest)  # asyncio calls connection_lost later
        longest.transport.abort()
        now = time.monotonic()
        if now - Connection.logged >= LOG_SECONDS:
            Connection.logged = now
            say(f"connections: {self.limit:,} are open; idle connections are closed for new ones")

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED_REQUESTS:
            self.transport.abort()
            raise ValueError("too many requests at once")  # ends the parser
        super().on_message_begin()
        self._await_head(HEAD_SECONDS)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._late is not None:
            self._read += len(data)
            if self._read > HEAD_BYTES:
                self._refuse_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS:
            self._refuse_head()
            raise ValueError("too many headers")  # ends the parser

    def on_headers_complete(self) -> None:
        self._stop()
        self._asked = True
        super().on_headers_complete()
        if self._last:
            super().shutdown()

    def on_message_complete(self) -> None:
        if self.cycle.response_complete:  # the rest of a body that was refused
            self._stop()
        else:
            self._idle = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._idle = None if self.pipeline else time.monotonic()
        unread = self.cycle.response_complete and self.cycle.more_body
        super().on_response_complete()
        if unread:  # uvicorn skips a body that was refused, without any timeout
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
        if self._asked or self._last:
            super().shutdown()
        else:
            self._last = True
            self._await_head(LAST_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _refuse_head(self) -> None:
        self.transport.write(TOO_LARGE)
        self.transport.close()

    def _await_head(self, seconds: float) -> None:
        self._stop()
        self._read, self._idle = 0.0, time.monotonic()
        self._late = self.loop.call_later(seconds, self.transport.close)

    def _stop(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
