"""A normal client of a server that `tests.extensions.serving.hostile` attacks."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.extensions.generation.test_routes import folder
from tests.extensions.serving.test_processes import process
from tests.extensions.serving.test_soak import MOST, resident

__all__ = ["folder"]

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")


class Normal:
    """Client that sends one sentence per request, and a second client for `/health/live`."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.statuses, self.seconds, self.live = Counter[int](), list[float](), list[float]()

    def embed(self, client: httpx.Client) -> None:
        start = time.perf_counter()
        response = client.post(f"{self.address}/embed", json={"inputs": "a b c d e"})
        self.seconds.append(time.perf_counter() - start)
        self.statuses[response.status_code] += 1

    def ask_until(self, end: threading.Event) -> None:
        with httpx.Client(timeout=60) as client:
            while not end.is_set():
                self.embed(client)
                end.wait(0.02)

    def live_until(self, end: threading.Event) -> None:
        while not end.is_set():
            start = time.perf_counter()
            with closing(HTTPConnection(self.address.removeprefix("http://"), timeout=60)) as live:
                live.request("GET", "/health/live")
                assert live.getresponse().status == 200
            self.live.append(time.perf_counter() - start)
            end.wait(0.2)

    def p99(self) -> float:
        return float(np.quantile(self.seconds, 0.99))


def measure_attack(folders: Path, writer: Path, count: int) -> dict[str, Any]:
    """Attack a server with `count` requests, and measure statuses, times and memory."""
    models = [str(folders / name) for name in ("pretrained", "entities", "ending")]
    logged: list[str] = []
    with process(*models, str(writer), "--memory-bytes", str(MOST), logged=logged) as server:
        running, address = server
        idle, normal = Normal(address), Normal(address)
        with httpx.Client() as client:
            for _ in range(300):
                idle.embed(client)
        before = resident(running.pid, "VmRSS")
        end = threading.Event()
        clients = [
            threading.Thread(target=run, args=(end,))
            for run in (normal.ask_until, normal.live_until)
        ]
        for thread in clients:
            thread.start()
        port = address.rpartition(":")[2]
        start = time.perf_counter()
        attack = subprocess.run(
            [sys.executable, "-m", "tests.extensions.serving.hostile", port, str(count), "0"],
            capture_output=True, text=True, timeout=1500, check=False,
        )  # fmt: skip
        seconds = time.perf_counter() - start
        end.set()
        for thread in clients:
            thread.join()
        assert attack.returncode == 0, attack.stderr
        return {
            "hostile": json.loads(attack.stdout),
            "seconds": round(seconds, 1),
            "normal": dict(normal.statuses),
            "p99 idle": idle.p99(),
            "p99": normal.p99(),
            "live": max(normal.live),
            "memory": resident(running.pid) - before,
            "defects": [line for line in logged if '"defect"' in line][:3],
        }


def check_served(results: dict[str, Any]) -> None:
    """Check that the server had no defect and answered each request of the normal client."""
    print(json.dumps(results, indent=1))
    assert not results["defects"]
    assert "500" not in results["hostile"]
    assert set(results["normal"]) == {200}


def test_normal_client_is_served_during_attack(folders: Path, folder: Path) -> None:
    results = measure_attack(folders, folder, 300)
    check_served(results)
    # The largest batch and a reloaded model are allocated in addition to the requests.
    assert results["memory"] < MOST + (256 << 20)


@pytest.mark.slow
@pytest.mark.xfail(
    reason="on an idle machine with 2 cores, p99 next to 32 hostile clients is 0.30 to 0.70 s "
    "(idle: 5 to 11 ms), and memory is 34 to 52 MiB above the limit",
    strict=False,
)
def test_normal_client_is_served_quickly_during_attack(folders: Path, folder: Path) -> None:
    results = measure_attack(folders, folder, 20_000)
    check_served(results)
    assert results["p99"] < 10 * results["p99 idle"]
    assert results["live"] < 2
    assert results["memory"] < MOST
