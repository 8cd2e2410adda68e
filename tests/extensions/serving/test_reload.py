"""Reloads of a model by several requests."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import httpx
import pytest

from bertkit.errors import CheckpointError
from bertkit.extensions.serving.admission import AdmissionMiddleware
from bertkit.extensions.serving.api_keys import ApiKeys
from bertkit.extensions.serving.app import install_app
from bertkit.extensions.serving.batcher import Batcher
from bertkit.extensions.serving.limits import Limits
from bertkit.extensions.serving.metrics import Metrics
from bertkit.extensions.serving.models import ModelRegistry


class SlowRegistry(ModelRegistry):
    """Registry whose reloads wait for `go`, and are recorded in `calls`."""

    def __init__(self, *files: str) -> None:
        super().__init__(files, None)
        self.go, self.calls = threading.Event(), list[str]()
        self.broken = False

    def reload(self, name: str) -> None:
        self.calls.append(name)
        assert self.go.wait(10)
        if self.broken:
            raise CheckpointError(f"{name}: damaged; save it again")


@pytest.fixture
def registry(tmp_path: Path) -> SlowRegistry:
    for name in ("a", "b"):
        (tmp_path / f"{name}.vec").write_text("cat 0.1 0.2\ndog 0.2 0.1\n")
    return SlowRegistry(*(f"{name}={tmp_path / name}.vec" for name in ("a", "b")))


async def reload_often(registry: SlowRegistry, abandoned: int, waiting: int) -> list[int]:
    """Abandon requests for `a`, then return the statuses of `waiting` requests and one for `b`."""
    metrics, limits = Metrics(), Limits()
    batcher = Batcher(queue_tokens=1000, batch_tokens=100, metrics=metrics)
    admission = AdmissionMiddleware(limits=limits, keys=ApiKeys([]), metrics=metrics)
    install_app(admission, registry, batcher)
    transport = httpx.ASGITransport(app=admission)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:

        async def post(name: str) -> int:
            return (await client.post(f"/models/{name}/reload")).status_code

        gone = [asyncio.ensure_future(post("a")) for _ in range(abandoned)]
        while not registry.calls:
            await asyncio.sleep(0.01)
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        stay = [asyncio.ensure_future(post(name)) for name in ["a"] * waiting + ["b"]]
        await asyncio.sleep(0.05)
        registry.go.set()
        statuses = await asyncio.gather(*stay)
    batcher.close()
    assert not registry.reloads
    return statuses


@pytest.mark.parametrize(("abandoned", "waiting"), [(1, 1), (50, 1), (3, 20)])
def test_abandoned_reloads_do_not_queue(
    registry: SlowRegistry, abandoned: int, waiting: int
) -> None:
    assert asyncio.run(reload_often(registry, abandoned, waiting)) == [200] * (waiting + 1)
    assert registry.calls == ["a", "a", "b"]


def test_failed_reload_returns_error_to_all_requests(registry: SlowRegistry) -> None:
    registry.broken = True
    assert asyncio.run(reload_often(registry, 2, 3)) == [422] * 4
