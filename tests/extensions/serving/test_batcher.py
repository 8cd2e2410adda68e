"""The queue: batches by tokens, a bound that holds, nothing lost, and nobody waits for the gone."""

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
    """A work of so many tokens, which knows itself again."""

    def __init__(self, tokens: int, name: Any = None) -> None:
        super().__init__([], name)
        object.__setattr__(self, "size", tokens)

    @property
    def tokens(self) -> int:
        return self.size  # type: ignore[attr-defined, no-any-return]


class Recorder:
    """A pipeline that notes its batches, and waits until it is let go on."""

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


@given(
    requests=st.lists(
        st.tuples(st.lists(st.integers(1, 60), min_size=1, max_size=6), st.booleans()),
        min_size=1,
        max_size=12,
    )
)
def test_everyone_gets_their_own_answers(requests: list[tuple[list[int], bool]]) -> None:
    queue = batcher(queue=10_000)
    pipelines = Recorder(), Recorder()

    async def one(number: int, sizes: list[int], which: bool) -> None:
        works = [Sized(size, (number, place)) for place, size in enumerate(sizes)]
        found = await queue.answers(pipelines[which], works)
        assert found == [("answer", (number, place)) for place in range(len(sizes))]

    async def all_of_them() -> None:
        await asyncio.gather(*(one(i, *request) for i, request in enumerate(requests)))

    asyncio.run(all_of_them())
    assert queue.waiting == 0
    queue.close()
    sizes = {(i, p): s for i, (own, _) in enumerate(requests) for p, s in enumerate(own)}
    for pipeline in pipelines:
        for batch in pipeline.batches:
            assert len(batch) == 1 or sum(sizes[name] for name in batch) <= 100


def test_what_waits_goes_together_oldest_first() -> None:
    queue, first, other = batcher(), Recorder(held=True), Recorder()

    async def run() -> None:
        tasks = [asyncio.ensure_future(queue.answers(first, [Sized(10, "a")]))]
        await asyncio.to_thread(first.began.wait)
        for pipeline, name in ((first, "b"), (other, "c"), (first, "d")):
            tasks.append(asyncio.ensure_future(queue.answers(pipeline, [Sized(10, name)])))
            await asyncio.sleep(0)
        first.go.set()
        await asyncio.gather(*tasks)

    asyncio.run(run())
    queue.close()
    assert first.batches == [["a"], ["b", "d"]]
    assert other.batches == [["c"]]


def test_a_full_queue_says_when_to_come_again() -> None:
    queue, slow = batcher(queue=50), Recorder(held=True)

    async def run() -> None:
        running = asyncio.ensure_future(queue.answers(slow, [Sized(40)]))
        await asyncio.to_thread(slow.began.wait)
        waiting = asyncio.ensure_future(queue.answers(slow, [Sized(40)]))
        await asyncio.sleep(0)
        with pytest.raises(Full, match="retry in 1 s"):
            await queue.answers(slow, [Sized(11)])
        fits = asyncio.ensure_future(queue.answers(slow, [Sized(10)]))
        await asyncio.sleep(0)
        sign = asyncio.ensure_future(queue.answers(slow, [Sized(99)], urgent=True))
        await asyncio.sleep(0)
        slow.go.set()
        await asyncio.gather(running, waiting, fits, sign)

    asyncio.run(run())
    assert queue.waiting == 0
    queue.close()


def test_who_is_gone_is_not_answered() -> None:
    queue, slow = batcher(), Recorder(held=True)

    async def run() -> None:
        running = asyncio.ensure_future(queue.answers(slow, [Sized(40, "first")]))
        await asyncio.to_thread(slow.began.wait)
        gone = asyncio.ensure_future(queue.answers(slow, [Sized(40, "gone")]))
        stays = asyncio.ensure_future(queue.answers(slow, [Sized(40, "stays")]))
        await asyncio.sleep(0)
        assert queue.waiting == 80
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        assert queue.waiting == 40
        running.cancel()  # what is with the model already comes back to nobody
        slow.go.set()
        assert await stays == [("answer", "stays")]

    asyncio.run(run())
    queue.close()
    assert slow.batches == [["first"], ["stays"]]


def test_one_bad_item_costs_nobody_else() -> None:
    queue, slow = batcher(), Recorder(held=True)

    async def run() -> None:
        running = asyncio.ensure_future(queue.answers(slow, [Sized(1, "first")]))
        await asyncio.to_thread(slow.began.wait)
        names = ("good", "bad", "fine")
        tasks = [asyncio.ensure_future(queue.answers(slow, [Sized(1, name)])) for name in names]
        await asyncio.sleep(0)
        slow.go.set()
        await running
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert found[0] == [("answer", "good")]
        assert isinstance(found[1], ArithmeticError)
        assert found[2] == [("answer", "fine")]

    asyncio.run(run())
    queue.close()


def test_closing_answers_what_waits() -> None:
    queue, slow = batcher(), Recorder(held=True)

    async def run() -> None:
        tasks = [asyncio.ensure_future(queue.answers(slow, [Sized(90, i)])) for i in range(4)]
        await asyncio.to_thread(slow.began.wait)
        closing = asyncio.ensure_future(asyncio.to_thread(queue.close))
        slow.go.set()
        assert await asyncio.gather(*tasks) == [[("answer", i)] for i in range(4)]
        await closing

    asyncio.run(run())
