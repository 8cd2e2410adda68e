"""Limits of connections, and requests to a server that stops."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import uvicorn

from bertkit.extensions.serving import connection
from bertkit.extensions.serving.connection import HEAD_BYTES, Connection

HEAD = b"POST / HTTP/1.1\r\nhost: here\r\n"
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bytes]]


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Respond with the length of the body."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    length = str(len(body)).encode()
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-length", str(len(length)).encode())],
        }
    )
    await send({"type": "http.response.body", "body": length})


async def echo_after_1(scope: Any, receive: Any, send: Any) -> None:
    """Respond like `echo`, after one second for `/slow`, and with status 413 for `/refuse`."""
    if scope["path"] == "/refuse":
        length = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 413, "headers": length})
        await send({"type": "http.response.body", "body": b"no"})
        return
    await asyncio.sleep(1.0 if scope["path"] == "/slow" else 0.0)
    await echo(scope, receive, send)


@asynccontextmanager
async def serving(app: Any = echo, limit: int = 100) -> AsyncIterator[tuple[uvicorn.Server, int]]:
    """Run a server with limited connections, yield it and its port, and stop it at the end."""
    http: Any = partial(Connection, limit=limit)
    config = uvicorn.Config(app, port=0, http=http, lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    running = asyncio.ensure_future(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield server, server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await running


def talk(client: Talk) -> bytes:
    """Return the bytes that a client receives."""

    async def run() -> bytes:
        async with serving() as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                return await asyncio.wait_for(client(reader, writer), 30)
            finally:
                writer.close()

    return asyncio.run(run())


def test_connection_accepts_two_long_bodies() -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        received = b""
        # Both requests use one connection.
        for _ in range(2):
            writer.write(HEAD + b"content-length: 1000000\r\n\r\n" + b"x" * 1_000_000)
            received += await reader.readuntil(b"1000000")
        return received

    assert talk(client).count(b"200 OK") == 2


@pytest.mark.parametrize("part", [b"a: b\r\n", b"a"])
def test_endless_head_returns_431(part: bytes) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(HEAD + b"long: " + part * (HEAD_BYTES // len(part)))
        return await reader.read()

    assert talk(client).startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize("sent", [b"", b"GET / HT", HEAD])
def test_connection_without_complete_head_is_closed(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.2)

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(sent)
        return await reader.read()

    assert talk(client) == b""


async def connections_to_a_server_that_stops(sent: bytes) -> list[bytes]:
    """Return the bytes received by two idle connections, of which the first sends a request."""
    async with serving() as (server, port):
        connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        while len(server.server_state.connections) < 2:
            await asyncio.sleep(0.01)
        server.should_exit = True
        while server.servers[0].is_serving():
            await asyncio.sleep(0.01)
        connections[0][1].write(sent)
        try:
            return [await asyncio.wait_for(reader.read(), 10) for reader, _ in connections]
        finally:
            for _, writer in connections:
                writer.close()


def test_stopping_server_answers_first_request_of_connection() -> None:
    sent = HEAD + b"content-length: 3\r\n\r\nabc"
    active, silent = asyncio.run(connections_to_a_server_that_stops(sent))
    assert active.startswith(b"HTTP/1.1 200 OK")
    assert active.endswith(b"3")
    assert b"connection: close" in active.lower()
    assert silent == b""


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[..., Awaitable[Streams]]
GET = b"GET %s HTTP/1.1\r\nhost: here\r\n\r\n"


@asynccontextmanager
async def connecting(limit: int = 100) -> AsyncIterator[Connect]:
    """Yield a function that opens a connection, and waits for the response to `GET /`."""
    connections: list[asyncio.StreamWriter] = []
    async with serving(echo_after_1, limit) as (_, port):

        async def connect(sent: bytes = b"") -> Streams:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            connections.append(writer)
            writer.write(sent)
            if sent == GET % b"/":
                assert b"200 OK" in await reader.readuntil(b"\r\n\r\n0")
            return reader, writer

        yield connect
        for writer in connections:
            writer.close()


async def closed_connections(limit: int, sent: list[bytes], newcomers: int) -> list[bool]:
    """Return whether later connections close each connection; later connections get responses."""
    async with connecting(limit) as connect:
        connections = []
        for data in sent:
            connections.append(await connect(data))
            await asyncio.sleep(0.05)
        for _ in range(newcomers):
            await connect(GET % b"/")
        return [reader.at_eof() or reader.exception() is not None for reader, _ in connections]


@pytest.mark.parametrize(
    ("sent", "closed"),
    [
        ([GET % b"/"] * 4, [True, True, False, False]),
        ([b"", GET % b"/", b"GET", HEAD], [True, True, False, False]),
        ([GET % b"/slow", *[GET % b"/"] * 3], [False, True, True, False]),
        # A connection that waits for a body is idle, too.
        ([HEAD + b"content-length: 9\r\n\r\nab", *[GET % b"/"] * 3], [True, True, False, False]),
    ],
)
def test_new_connections_close_longest_idle_connections(
    sent: list[bytes], closed: list[bool]
) -> None:
    assert asyncio.run(closed_connections(4, sent, 2)) == closed


def test_closed_idle_connections_are_logged_once(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "logged", -connection.LOG_SECONDS)
    asyncio.run(closed_connections(3, [b""] * 3, 20))
    assert capsys.readouterr().err.count("connections: limit of 3 reached") == 1


def test_new_connection_is_closed_if_all_are_busy() -> None:
    async def run() -> tuple[bytes, list[bytes]]:
        async with connecting(3) as connect:
            busy = [await connect(GET % b"/slow") for _ in range(3)]
            await asyncio.sleep(0.2)
            reader, _ = await connect(GET % b"/slow")
            try:
                last = await reader.read()
            except ConnectionError:
                last = b""
            return last, [await reader.readuntil(b"\r\n\r\n0") for reader, _ in busy]

    last, answers = asyncio.run(run())
    assert last == b""
    assert all(b"200 OK" in answer for answer in answers)


@pytest.mark.parametrize(
    ("sent", "response_start"),
    [
        (HEAD + b"a: b\r\n" * 101 + b"\r\n", b"HTTP/1.1 431"),
        (GET % b"/slow" + (GET % b"/") * 100, b""),
    ],
)
def test_too_many_headers_or_pipelined_requests_close_connection(
    sent: bytes, response_start: bytes
) -> None:
    async def run() -> bytes:
        async with connecting() as connect:
            reader, _ = await connect(sent + b" ")
            try:
                return await asyncio.wait_for(reader.read(), 5)
            except ConnectionError:
                return b""

    assert asyncio.run(run()).startswith(response_start)


def test_eleven_pipelined_requests_are_answered() -> None:
    async def run() -> bytes:
        async with connecting() as connect:
            reader, _ = await connect(GET % b"/slow" + (GET % b"/") * 10 + b"GET")
            received = b""
            while received.count(b"200 OK") < 11:
                received += await asyncio.wait_for(reader.read(1000), 5)
            return received

    assert asyncio.run(run()).count(b"200 OK") == 11


@pytest.mark.parametrize("is_complete", [False, True])
def test_connection_with_rejected_body_is_closed_after_timeout(
    is_complete: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that sends the complete body keeps its connection."""
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.4)
    size = 200_000
    head = b"POST /refuse HTTP/1.1\r\nhost: here\r\ncontent-length: %d\r\n\r\n" % size

    async def run() -> bool:
        async with connecting() as connect:
            reader, writer = await connect(head)
            assert b"413" in await reader.readuntil(b"no")
            writer.write(b"x" * (size if is_complete else 10))
            try:
                return await asyncio.wait_for(reader.read(), 1.0) != b""
            except TimeoutError:
                writer.write(GET % b"/")
                return b"200 OK" in await reader.readuntil(b"\r\n\r\n0")

    assert asyncio.run(run()) is is_complete


@pytest.mark.parametrize(("hard", "files"), [(256, 256), (1024, 1024), (100_000, 4096)])
def test_limit_of_open_files_is_raised_and_logged(hard: int, files: int) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < hard:
        pytest.skip("the hard limit of this process is lower")
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (200, {hard}))\n"
        "from bertkit.extensions.serving.connection import raise_file_limit\n"
        "print(raise_file_limit(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.split() == [str(files * 3 // 4), str(files)]
    assert f"(limit of open files: {files:,}, raised from 200)" in result.stderr
