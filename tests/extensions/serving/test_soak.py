"""Memory of a server process under heavy requests that are within all limits."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.extensions.serving.test_processes import process

from bertkit.extensions.serving.client import Client

MOST = 420 << 20
"""Number of bytes for one of the heavy requests, or for several smaller requests."""

DOTS = "." * 99_999
"""A text with one token and one word per character."""

HEAVY: list[tuple[str, Any]] = [
    ("/choose", {"text": DOTS, "choices": ["a", "b"]}),
    ("/choose", {"text": DOTS, "choices": ["a"] * 24}),
    ("/embed", [DOTS] * 20),
    ("/tokenize", [DOTS] * 20),
    ("/ner", [DOTS] * 20),
    ("/tokenize", ["." * 3_000] * 20),
    ("/embed", ["a"] * 2_048),
]

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")


def resident(pid: int, field: str = "VmHWM") -> int:
    """Return the peak (VmHWM) or current (VmRSS) memory of a process in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) << 10
    raise AssertionError(f"{field} is not in /proc/{pid}/status")


@contextmanager
def heavy_load(address: str, clients: int = 4) -> Iterator[Counter[int]]:
    """Send heavy requests until the end, and yield the number of responses per status."""
    end, statuses = threading.Event(), Counter[int]()

    def send_requests(number: int) -> None:
        # Connections fail if a test kills the server.
        connection_errors = contextlib.suppress(httpx.TransportError)
        with connection_errors, httpx.Client(base_url=address, timeout=60) as client:
            while not end.is_set():
                path, inputs = HEAVY[number % len(HEAVY)]
                body = {
                    "inputs": inputs,
                    **({"truncate": True} if path in ("/embed", "/choose") else {}),
                }
                statuses[client.post(path, json=body).status_code] += 1
                number += 1

    threads = [threading.Thread(target=send_requests, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield statuses
    finally:
        end.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("seconds", [5, pytest.param(30, marks=pytest.mark.slow)])
def test_memory_stays_below_limit(folders: Path, seconds: float) -> None:
    model_dirs = [str(folders / name) for name in ("pretrained", "entities", "ending")]
    with process(*model_dirs, "--memory-bytes", str(MOST)) as (running, address):
        with Client(address) as client:
            assert client.embed("a b").shape == (1, 16)
            idle = resident(running.pid, "VmRSS")
            with heavy_load(address) as statuses:
                time.sleep(seconds)
            assert resident(running.pid) - idle < MOST
            assert set(statuses) <= {200, 413, 429}
            assert client.embed("a b").shape == (1, 16)
            # The client may receive a response before the server releases its memory.
            end = time.monotonic() + 10
            while "bertkit_memory_bytes 0.0" not in (
                metrics := httpx.get(f"{address}/metrics").text
            ):
                assert time.monotonic() < end, metrics
        time.sleep(1)
        # The process returns memory to the operating system.
        assert resident(running.pid, "VmRSS") - idle < MOST / 2


def test_memory_without_limit_grows(folders: Path) -> None:
    """The same requests need more than `MOST` bytes if the limit is very large."""
    model_dirs = [str(folders / name) for name in ("pretrained", "entities", "ending")]
    with process(*model_dirs, "--memory-bytes", str(1 << 50)) as (running, address):
        idle = resident(running.pid, "VmRSS")
        end = time.monotonic() + 60
        with heavy_load(address):
            while resident(running.pid) - idle < MOST:
                assert time.monotonic() < end
                time.sleep(0.05)
            running.kill()
