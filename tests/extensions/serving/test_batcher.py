"""Batches of limited size, the limit of the queue, cancelled requests, and failing works."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.extensions.serving.batcher import Batcher, Full
from bertkit.extensions.serving.metrics import Metrics
from bertkit.pipelines import Work


class Sized(Work):
    """Work with a given number of tokens and a name."""

    def __init__(self, tokens: int, name: Any = None) -> None:
        super().__init__([], name)
        object.__setattr__(self, "size", tokens)

    @property
    def tokens(self) -> int:
        return self.size  # type: ignore[attr-defined, no-any-return]


class Recorder:
    """Pipeline that records its batches, and waits for `go` if it is held."""

    def __init__(self, *, held: bool = False) -> None:
        self.batches: list[list[Any]] = []
        self.go = threading.Event()
        self.began = threading.Event()
        if not held:
            self.go.set()

    def run(self, works: Sequence[Work]) -> list[Any]:
        self.batches.append([work.item for work in works])
        self.began.set()
        assert self.go.wait(10)
        if any(work.item == "bad" for work in works):
            raise ArithmeticError("bad")
        return [("answer", work.item) for work in works]


def batcher(queue: int = 1000, batch: int = 100) -> Batcher:
    return Batcher(queue_tokens=queue, batch_tokens=batch, metrics=Metrics())


async def send(queue: Batcher, pipeline: Any, *works: Work, **options: Any) -> asyncio.Future[Any]:
    """Send a request, which waits in the queue."""
    request = asyncio.ensure_future(queue.answers(pipeline, works, **options))
    await asyncio.sleep(0)
    return request


async def start(queue: Batcher, pipeline: Any, *works: Work, **options: Any) -> asyncio.Future[Any]:
    """Send a request, and wait until the pipeline computes it."""
    request = await send(queue, pipeline, *works, **options)
    await asyncio.to_thread(pipeline.began.wait)
    return request


@given(
    requests=st.lists(
        st.tuples(st.lists(st.integers(1, 60), min_size=1, max_size=6), st.booleans()),
        min_size=1,
        max_size=12,
    )
)
def test_batcher_returns_each_request_its_answers(requests: list[tuple[list[int], bool]]) -> None:
    queue = batcher(queue=10_000)
    pipelines = Recorder(), Recorder()

    async def send_request(number: int, sizes: list[int], is_second: bool) -> None:
        works = [Sized(size, (number, index)) for index, size in enumerate(sizes)]
        results = await queue.answers(pipelines[is_second], works)
        assert results == [("answer", (number, index)) for index in range(len(sizes))]

    async def send_all() -> None:
        await asyncio.gather(*(send_request(i, *request) for i, request in enumerate(requests)))

    asyncio.run(send_all())
    assert queue.waiting == 0
    queue.close()
    sizes = {
        (i, p): s
        for i, (request_sizes, _) in enumerate(requests)
        for p, s in enumerate(request_sizes)
    }
    for pipeline in pipelines:
        for batch in pipeline.batches:
            assert len(batch) == 1 or sum(sizes[name] for name in batch) <= 100


def test_batcher_combines_waiting_works_in_order() -> None:
    queue, first, other = batcher(), Recorder(held=True), Recorder()

    async def run() -> None:
        tasks = [await start(queue, first, Sized(10, "a"))]
        for pipeline, name in ((first, "b"), (other, "c"), (first, "d")):
            tasks.append(await send(queue, pipeline, Sized(10, name)))
        first.go.set()
        await asyncio.gather(*tasks)

    asyncio.run(run())
    queue.close()
    assert first.batches == [["a"], ["b", "d"]]
    assert other.batches == [["c"]]


def test_full_queue_raises_with_retry_time() -> None:
    queue, slow = batcher(queue=50), Recorder(held=True)

    async def run() -> None:
        running, waiting = await start(queue, slow, Sized(40)), await send(queue, slow, Sized(40))
        with pytest.raises(Full, match="retry in 1 s"):
            await queue.answers(slow, [Sized(11)])
        fitting = await send(queue, slow, Sized(10))
        urgent_request = await send(queue, slow, Sized(99), urgent=True)
        slow.go.set()
        await asyncio.gather(running, waiting, fitting, urgent_request)

    asyncio.run(run())
    assert queue.waiting == 0
    queue.close()


def test_cancelled_requests_leave_the_queue() -> None:
    queue, slow = batcher(), Recorder(held=True)

    async def run() -> None:
        running = await start(queue, slow, Sized(40, "first"))
        cancelled = await send(queue, slow, Sized(40, "gone"))
        kept_request = await send(queue, slow, Sized(40, "stays"))
        assert queue.waiting == 80
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        assert queue.waiting == 40
        # The result of a running batch is dropped.
        running.cancel()
        slow.go.set()
        assert await kept_request == [("answer", "stays")]

    asyncio.run(run())
    queue.close()
    assert slow.batches == [["first"], ["stays"]]


def test_failing_item_does_not_affect_other_items() -> None:
    queue, slow = batcher(), Recorder(held=True)

    async def run() -> None:
        running = await start(queue, slow, Sized(1, "first"))
        tasks = [await send(queue, slow, Sized(1, name)) for name in ("good", "bad", "fine")]
        slow.go.set()
        await running
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert results[0] == [("answer", "good")]
        assert isinstance(results[1], ArithmeticError)
        assert results[2] == [("answer", "fine")]

    asyncio.run(run())
    queue.close()


def test_close_answers_waiting_requests() -> None:
    queue, slow = batcher(), Recorder(held=True)

    async def run() -> None:
        tasks = [asyncio.ensure_future(queue.answers(slow, [Sized(90, i)])) for i in range(4)]
        await asyncio.to_thread(slow.began.wait)
        closing = asyncio.ensure_future(asyncio.to_thread(queue.close))
        slow.go.set()
        assert await asyncio.gather(*tasks) == [[("answer", i)] for i in range(4)]
        await closing

    asyncio.run(run())
