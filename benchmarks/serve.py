"""Servers under load on the same cores: bertkit and FastAPI with sentence-transformers.

Each request is one of 1,024 sentences of mixed length, embedded with all-MiniLM-L6-v2 in fp32. The
baselines are typical applications: a synchronous route that calls `model.encode`, and a queue from
which a thread takes up to 64 waiting texts at once. This process generates the load as raw bytes
over keep-alive connections, so that the client uses little CPU.

The benchmark also measures latency at half the load that saturates the server. One worker of
bertkit is then tested with ten times that load for a minute, with invalid requests, and with texts
of one megabyte.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks import kept, text
from benchmarks.embed import load_bertkit, minilm
from benchmarks.harness import Options, run_in_process

CONNECTIONS = 64
SECONDS = 20.0
OVERLOAD = 60.0
BROKEN = 10_000
FP32 = kept.Setup("fp32")
LATE = "p99 at half the load"
ENGINE, ALONE = "the engine", "5 × one alone, p50"

PEER_APP = """
import sys
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

app = FastAPI()
model = SentenceTransformer(sys.argv[1], device="cpu")

class Ask(BaseModel):
    inputs: str | list[str]

@app.post("/embed")
def embed(ask: Ask):
    texts = [ask.inputs] if isinstance(ask.inputs, str) else ask.inputs
    return model.encode(texts, show_progress_bar=False).tolist()

uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
"""

BATCHING_APP = """
import asyncio
import sys
from contextlib import asynccontextmanager
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(sys.argv[1], device="cpu")
waiting = asyncio.Queue()

def encode(texts):
    return model.encode(texts, batch_size=32, show_progress_bar=False).tolist()

async def work():
    while True:
        asked = [await waiting.get()]
        while not waiting.empty() and len(asked) < 64:
            asked.append(waiting.get_nowait())
        try:
            found = await asyncio.to_thread(encode, [text for text, _ in asked])
        except Exception as error:
            for _, answer in asked:
                answer.set_exception(error)
            continue
        for (_, answer), vector in zip(asked, found):
            answer.set_result(vector)

@asynccontextmanager
async def life(app):
    worker = asyncio.create_task(work())
    yield
    worker.cancel()

app = FastAPI(lifespan=life)

class Ask(BaseModel):
    inputs: str | list[str]

@app.post("/embed")
async def embed(ask: Ask):
    texts = [ask.inputs] if isinstance(ask.inputs, str) else ask.inputs
    answers = [asyncio.get_running_loop().create_future() for _ in texts]
    for pair in zip(texts, answers):
        waiting.put_nowait(pair)
    return await asyncio.gather(*answers)

uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
"""


class Peer(NamedTuple):
    """Baseline server: its code, its settings, and the minimum speedup of bertkit."""

    app: str
    settings: str
    target: float


PEERS: Mapping[str, Peer] = {
    "FastAPI + sentence-transformers": Peer(
        PEER_APP, "fp32, one process, a text by itself, threads of the route", 2.0
    ),
    "FastAPI + a batching queue + sentence-transformers": Peer(
        BATCHING_APP, "fp32, one process, at most 64 texts at once, sorted by length", 1.0
    ),
}


def main(options: Options) -> None:
    quick, book = options.quick, options.book("serve")
    sentences = text.sentences(96 if quick else 1024)
    seconds, overload, broken = (2.0, 3.0, 300) if quick else (SECONDS, OVERLOAD, BROKEN)
    requests = [ask("/embed", {"inputs": s, "truncate": True}) for s in sentences]
    cores = os.cpu_count() or 1
    labels = {n: f"{n} worker{'s' * (n > 1)}" for n in dict.fromkeys((cores, 1))}
    loads = [f"texts/s under load, {label}" for label in labels.values()]
    if any(book.needs(title, ENGINE, *PEERS) for title in loads):
        engine = run_in_process(engine_rate, sentences)
        rates = {name: peer_rate(name, sentences, seconds) for name in PEERS}
        for workers, label in labels.items():
            with server(workers) as (address, _):
                result = asyncio.run(saturate(address, requests, seconds))
                settings = kept.Setup(f"fp32, {label}", 1.0)
                load = f"texts/s under load, {label}"
                book.add(row(load, result.rate, engine, ENGINE, 0.8, setups=settings))
                for name, peer in PEERS.items():
                    both = (settings, kept.Setup(peer.settings))
                    book.add(row(load, result.rate, rates[name], name, peer.target, setups=both))
                book.add(latency(address, requests, result.rate, seconds, label))
    bounds = [("memory after it", "before, and 300 MB"), (BROKEN_BODIES, kept.LIMIT)]
    bounds += [(f"twice the {name}, time", kept.LIMIT) for name in HOSTILE]
    if not options.late and any(book.needs(*bound) for bound in bounds):
        with server(1) as (address, process):
            rate = asyncio.run(saturate(address, requests, seconds)).rate
            book.add(*overloaded(address, requests, rate, overload, process.pid))
            book.add(*hostile(address))
            book.add(*fuzz(address, broken, process.pid))
    book.close()


BROKEN_BODIES = f"memory grown by {BROKEN:,} broken bodies, none a 5xx"


def row(
    title: str,
    value: float,
    other: float,
    name: str,
    target: float,
    *,
    unit: str = "/s",
    setups: kept.Setup | tuple[kept.Setup, kept.Setup] = FP32,
) -> kept.Row:
    return kept.row(
        title,
        value,
        other,
        peer_name=name,
        unit=unit,
        target=target,
        better="higher" if unit == "/s" else "lower",
        setups=setups if isinstance(setups, tuple) else (setups, setups),
    )


def peer_rate(name: str, sentences: Sequence[str], seconds: float) -> float:
    """Measure the texts per second of a baseline under load."""
    with peer(PEERS[name].app) as address:
        requests = [ask("/embed", {"inputs": s}) for s in sentences]
        return asyncio.run(saturate(address, requests, seconds)).rate


def engine_rate(sentences: list[str]) -> float:
    """Measure the texts per second of the engine without a server (median of three runs)."""
    embed = load_bertkit(minilm(), "fp32").embed
    embed(sentences)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        embed(sentences)
        times.append(time.perf_counter() - start)
    return len(sentences) / sorted(times)[1]


# ---- Servers


@contextmanager
def server(workers: int) -> Iterator[tuple[tuple[str, int], subprocess.Popen[str]]]:
    """Start bertkit's server in a separate process, and discard its log."""
    command = [sys.executable, "-m", "bertkit", "serve", str(minilm()), "--port", "0"]
    command += ["--workers", str(workers)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines = [process.stderr.readline() for _ in range(workers)]
            found = re.search(r"served at http://([\d.]+):(\d+)", lines[-1])
            if not found:
                raise SystemExit("".join(lines) + process.stderr.read())
            drain = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
            yield (found[1], int(found[2])), process
            process.terminate()
            process.wait()
            drain.wait()
        finally:
            process.kill()


@contextmanager
def peer(app: str) -> Iterator[tuple[str, int]]:
    """Start a baseline server in a separate process."""
    port = random.randint(20_000, 40_000)
    command = [sys.executable, "-c", app, str(minilm()), str(port)]
    with subprocess.Popen(command) as process:
        try:
            for _ in range(1500):
                time.sleep(0.2)
                if process.poll() is not None:
                    raise SystemExit(f"the baseline server exited with status {process.returncode}")
                try:
                    reply = asyncio.run(once(("127.0.0.1", port), ask("/embed", {"inputs": "a"})))
                except OSError:
                    continue
                assert reply.status == 200
                break
            else:
                raise SystemExit("the baseline server did not start within five minutes")
            yield "127.0.0.1", port
            process.terminate()
            process.wait()
        finally:
            process.kill()


# ---- Load


@dataclass
class Reply:
    status: int
    body: bytes = b""


@dataclass
class Seen:
    """Responses: number of each status, and the time of each response in seconds."""

    seconds: float
    statuses: Counter[int] = field(default_factory=Counter)
    times: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        assert self.statuses[200], self.statuses
        return self.statuses[200] / self.seconds


def ask(path: str, body: object, *, raw: bytes | None = None) -> bytes:
    content = json.dumps(body).encode() if raw is None else raw
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


class Connection:
    """Keep-alive connection."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, request: bytes) -> Reply:
        if self.streams is not None:
            try:
                return await self._send(request, *self.streams)
            except (OSError, EOFError):  # The server may close idle connections.
                self.close()
        self.streams = await asyncio.open_connection(*self.address)
        return await self._send(request, *self.streams)

    async def _send(
        self, request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Reply:
        writer.write(request)
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        length = re.search(rb"content-length: (\d+)", head.lower())
        body = await reader.readexactly(int(length[1])) if length else b""
        if b"connection: close" in head.lower():
            self.close()
        return Reply(status, body)

    def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None


async def once(address: tuple[str, int], request: bytes) -> Reply:
    connection = Connection(address)
    try:
        return await connection.send(request)
    finally:
        connection.close()


async def saturate(address: tuple[str, int], requests: Sequence[bytes], seconds: float) -> Seen:
    """Send requests without pause on all connections, after a warmup."""
    await _closed(address, requests, CONNECTIONS, min(3.0, seconds))
    return await _closed(address, requests, CONNECTIONS, seconds)


async def _closed(
    address: tuple[str, int], requests: Sequence[bytes], connections: int, seconds: float
) -> Seen:
    seen, end = Seen(seconds), time.perf_counter() + seconds

    async def send_all(number: int) -> None:
        connection, index = Connection(address), number
        while time.perf_counter() < end:
            start = time.perf_counter()
            reply = await connection.send(requests[index % len(requests)])
            now = time.perf_counter()
            if now <= end:
                seen.statuses[reply.status] += 1
                seen.times.append(now - start)
            index += connections
        connection.close()

    await asyncio.gather(*(send_all(number) for number in range(connections)))
    return seen


async def _open(
    address: tuple[str, int], requests: Sequence[bytes], rate: float, seconds: float
) -> Seen:
    """Send requests at a fixed rate, without waiting for responses."""
    seen, idle = Seen(seconds), list[Connection]()
    tasks: set[asyncio.Task[None]] = set()
    pace = random.Random(0)

    async def send(request: bytes) -> None:
        connection = idle.pop() if idle else Connection(address)
        start = time.perf_counter()
        try:
            reply = await connection.send(request)
        except (OSError, EOFError):
            seen.statuses[0] += 1
            connection.close()
            return
        seen.times.append(time.perf_counter() - start)
        seen.statuses[reply.status] += 1
        idle.append(connection)

    start = due = time.perf_counter()
    index = 0
    while due < start + seconds:
        due += pace.expovariate(rate)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        task = asyncio.ensure_future(send(requests[index % len(requests)]))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        index += 1
    await asyncio.gather(*tasks)
    for connection in idle:
        connection.close()
    seen.seconds = time.perf_counter() - start
    return seen


# ---- Requirements of bertkit's server


def latency(
    address: tuple[str, int], requests: Sequence[bytes], rate: float, seconds: float, label: str
) -> kept.Row:
    sequential = asyncio.run(_closed(address, requests, 1, seconds / 2))
    half = asyncio.run(_open(address, requests, rate / 2, seconds))
    single = 1000 * float(np.median(sequential.times))
    p99 = 1000 * float(np.percentile(half.times, 99))
    return row(f"{LATE}, {label}", p99, 5 * single, ALONE, 1.0, unit="ms")


def overloaded(
    address: tuple[str, int], requests: Sequence[bytes], rate: float, seconds: float, pid: int
) -> list[kept.Row]:
    before = resident(pid)
    seen = asyncio.run(_open(address, requests, 10 * rate, seconds))
    after = resident(pid)
    start = time.perf_counter()
    reply = asyncio.run(once(address, requests[0]))
    recovered = time.perf_counter() - start
    unexpected = {s: n for s, n in seen.statuses.items() if s not in (200, 429)}
    assert not unexpected, f"unexpected statuses at ten times the load: {unexpected}"
    assert reply.status == 200
    sent = sum(seen.statuses.values()) / seen.seconds
    return [
        row(f"texts/s at {sent / rate:.1f} × the load", seen.rate, rate, "at its load", 0.8),
        row("memory after it", after, before + 300, "before, and 300 MB", 1.0, unit="MB"),
        row("first answer after it", recovered, 2.0, kept.LIMIT, 1.0, unit="s"),
    ]


HOSTILE = {"dots": ".", "combining marks": "e\u0301", "CJK": "\u6f22", "no spaces": "x"}


def hostile(address: tuple[str, int]) -> list[kept.Row]:
    """Measure texts of 1 MB, and of the maximum number of characters and half of it."""
    rows = []
    for name, unit in HOSTILE.items():
        slowest, growth = 0.0, 0.0
        for path in ("/tokenize", "/embed"):
            more = {"truncate": True} if path == "/embed" else {}
            times = []
            for count in (1 << 20, 100_000, 50_000):
                content = unit * (
                    count // len(unit.encode()) if count > 100_000 else count // len(unit)
                )
                request = ask(path, {"inputs": content, **more})
                found = []
                for _ in range(3):
                    start = time.perf_counter()
                    reply = asyncio.run(once(address, request))
                    found.append(time.perf_counter() - start)
                    assert reply.status in (200, 413, 422), reply.status
                times.append(min(found))
            slowest = max(slowest, *times)
            growth = max(growth, times[1] / times[2])
        rows.append(row(f"1 MB of {name}, slowest reply", slowest, 1.0, kept.LIMIT, 1.0, unit="s"))
        rows.append(row(f"twice the {name}, time", growth, 2.2, kept.LIMIT, 1.0, unit="×"))
    return rows


def fuzz(address: tuple[str, int], count: int, pid: int) -> list[kept.Row]:
    """Send corrupted bodies, and check that no response has a 5xx status."""
    rng = random.Random(0)
    routes = ["/embed", "/v1/embeddings", "/similarity", "/tokenize", "/info", "/none"]
    bodies = [
        b'{"inputs": ["a", "b"], "truncate": true}',
        b'{"input": "a cat", "encoding_format": "base64", "dimensions": 3}',
        b'{"inputs": {"source_sentence": "a", "sentences": ["b", "c"]}}',
        b'{"inputs": "\\ud800", "top": 1e999, "model": null}',
        b"[" * 3000,
    ]

    def broken() -> bytes:
        body = bytearray(rng.choice(bodies))
        for _ in range(rng.randint(0, 6)):
            index = rng.randrange(len(body) + 1)
            match rng.randrange(3):
                case 0:
                    body[index:index] = bytes(rng.choices(range(256), k=rng.randint(1, 4)))
                case 1:
                    del body[index : index + rng.randint(1, 5)]
                case _:
                    body[index:index] = rng.choice([b'"', b"{", b"[", b"null", b"\\u", b"1e9"])
        return bytes(body)

    async def send_all() -> Counter[int]:
        statuses: Counter[int] = Counter()
        connection = Connection(address)
        for _ in range(count):
            reply = await connection.send(ask(rng.choice(routes), None, raw=broken()))
            statuses[reply.status] += 1
        connection.close()
        return statuses

    before = resident(pid)
    statuses = asyncio.run(send_all())
    wrong = sum(n for status, n in statuses.items() if status >= 500)
    assert not wrong, statuses
    grown = resident(pid) - before
    return [
        row(
            BROKEN_BODIES.replace(f"{BROKEN:,}", f"{count:,}"),
            max(grown, 0.1),
            50,
            kept.LIMIT,
            1.0,
            unit="MB",
        )
    ]


def resident(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
