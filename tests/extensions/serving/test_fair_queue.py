"""Clients share the models in turns, so a light client does not wait for heavy clients.

The tests count batches and decoding steps, not seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Generator, Sequence
from typing import Any

import pytest
from tests.extensions.serving.test_batcher import Recorder, Sized, batcher, send, start

from bertkit.extensions.serving.batcher import Batcher, Full
from bertkit.extensions.serving.fair_queue import Client
from bertkit.extensions.serving.models import ModelRegistry
from bertkit.pipelines import Work

LIGHT: Client = ("light", "a connection")


class Decoder(Recorder):
    """Pipeline that decodes each work in `tokens` steps, and waits at its start if it is held."""

    def __init__(self, log: list[Any], *, held: bool = False) -> None:
        super().__init__(held=held)
        self.log = log

    def steps(self, works: Sequence[Work]) -> Generator[int, None, list[Any]]:
        self.began.set()
        assert self.go.wait(10)
        for _ in range(max(work.tokens for work in works)):
            self.log.append("step")
            yield len(works)
        self.log.append([work.item for work in works])
        return [("answer", work.item) for work in works]


class Logged(Recorder):
    """Pipeline that logs its works in the order of its batches."""

    def __init__(self, log: list[Any], *, held: bool = False) -> None:
        super().__init__(held=held)
        self.log = log

    def run(self, works: Sequence[Work]) -> list[Any]:
        results = super().run(works)
        self.log.append([work.item for work in works])
        return results


Request = tuple[Client, list[int]]


def batches_of(requests: list[Request], queue: Batcher) -> list[list[Client]]:
    """Return the clients of the works in each batch if all requests wait at the same time."""
    pipeline = Recorder(held=True)

    async def run() -> None:
        first, waiting = await start(queue, pipeline, Sized(1)), []
        for client, sizes in requests:
            works = [Sized(size, client) for size in sizes]
            waiting.append(await send(queue, pipeline, *works, client=client))
        pipeline.go.set()
        await asyncio.gather(first, *waiting)

    asyncio.run(run())
    queue.close()
    return pipeline.batches[1:]


# The light client has another key than the heavy clients, or the same key.
@pytest.mark.parametrize("light", [LIGHT, ("key", "24")])
@pytest.mark.parametrize("size", [100, 7, 1000])
def test_light_client_waits_for_few_heavy_batches(light: Client, size: int) -> None:
    heavy: list[Request] = [(("key", str(number)), [size] * 40) for number in range(24)]
    batches = batches_of([*heavy, (light, [5])], batcher(queue=1_000_000))
    assert any(light in batch for batch in batches[:2])


def test_equal_clients_get_equal_parts_of_batch() -> None:
    requests: list[Request] = [(("key", str(number)), [2] * 200) for number in range(4)]
    counts = Counter(batches_of(requests, batcher(queue=10_000, batch=400))[0])
    # The batch has a quarter of the limit, because each client has more work than one turn.
    assert sum(counts.values()) == 50
    assert set(counts.values()) <= {10, 11, 12, 13, 14}


def test_keys_share_evenly_regardless_of_connections() -> None:
    many: list[Request] = [(("many", str(number)), [5] * 40) for number in range(20)]
    batches = batches_of([*many, (("one", "0"), [5] * 200)], batcher(queue=100_000))
    first = Counter(key for batch in batches[:10] for key, _ in batch)
    assert abs(first["many"] - first["one"]) <= 10


def test_heavy_client_is_served_among_many_light_clients() -> None:
    """Light clients that arrive all the time do not block a heavy client."""
    queue, pipeline, position = batcher(queue=1_000_000), Recorder(), list[int]()

    async def light(number: int) -> None:
        for turn in range(40):
            # Each request has a new connection.
            client = ("key", f"{number} {turn}")
            await queue.answers(pipeline, [Sized(60, client)], client=client)

    async def heavy() -> None:
        await asyncio.sleep(0)
        await queue.answers(pipeline, [Sized(100, "heavy")], client=("key", "heavy"))
        position.append(len(pipeline.batches))

    async def run() -> None:
        await asyncio.gather(*(light(number) for number in range(5)), heavy())

    asyncio.run(run())
    queue.close()
    assert position[0] < 40


def test_light_client_is_served_between_decoding_steps() -> None:
    log: list[Any] = []
    queue, decoder, other = batcher(queue=100_000), Decoder(log, held=True), Logged(log)

    async def run() -> None:
        works = [Sized(100, number) for number in range(4)]
        heavy = await start(queue, decoder, *works, client=("key", "0"))
        light = await send(queue, other, Sized(5, "light"), client=LIGHT)
        decoder.go.set()
        await light
        assert await heavy == [("answer", number) for number in range(4)]

    asyncio.run(run())
    queue.close()
    assert log.count("step") == 400
    assert log.index(["light"]) <= 2


def test_short_text_does_not_share_a_decoding_run_with_long_texts() -> None:
    """A decoding run returns its predictions at its end, so it would delay the short text."""
    log: list[Any] = []
    queue, decoder, other = batcher(queue=100_000, batch=4_000), Decoder(log), Recorder(held=True)

    async def run() -> None:
        blocking = asyncio.ensure_future(queue.answers(other, [Sized(1)]))
        await asyncio.to_thread(other.began.wait)
        heavy = [Sized(200, number) for number in range(4)]
        long = asyncio.ensure_future(queue.answers(decoder, heavy, client=("key", "0")))
        short = asyncio.ensure_future(queue.answers(decoder, [Sized(5, "short")], client=LIGHT))
        await asyncio.sleep(0)
        other.go.set()
        await asyncio.gather(blocking, long, short)

    asyncio.run(run())
    queue.close()
    assert log.index(["short"]) < 50


class Slow(Logged):
    """Pipeline whose batches take 40 ms, and that logs their seconds."""

    def run(self, works: Sequence[Work]) -> list[Any]:
        start = time.perf_counter()
        time.sleep(0.04)
        answers = Recorder.run(self, works)
        self.log.append(("batch", time.perf_counter() - start))
        return answers


class SlowDecoder(Decoder):
    """Pipeline whose steps take 2 ms, and that logs their seconds."""

    def steps(self, works: Sequence[Work]) -> Generator[int, None, list[Any]]:
        for _ in range(works[0].tokens):
            start = time.perf_counter()
            time.sleep(0.002)
            self.log.append(("step", time.perf_counter() - start))
            yield 1
        return [("answer", work.item) for work in works]


def test_batches_and_decoding_steps_get_equal_time() -> None:
    log: list[tuple[str, float]] = []
    queue, decoder = batcher(queue=1_000_000, batch=4096), SlowDecoder(log)
    other = Slow(log, held=True)

    async def run() -> None:
        first = asyncio.ensure_future(queue.answers(other, [Sized(1, "first")]))
        await asyncio.sleep(0.1)
        works = [Sized(4096, number) for number in range(9)]
        heavy = await send(queue, other, *works, client=("key", "0"))
        run = await send(queue, decoder, Sized(300, "text"), client=LIGHT)
        other.go.set()
        await asyncio.gather(first, heavy, run)

    asyncio.run(run())
    queue.close()
    batches = [index for index, (kind, _) in enumerate(log) if kind == "batch"]
    seconds = dict.fromkeys(("batch", "step"), 0.0)
    # Both pipelines have waiting works between these batches.
    for kind, spent in log[batches[1] + 1 : batches[7] + 1]:
        seconds[kind] += spent
    assert 0.5 < seconds["step"] / seconds["batch"] < 1.5


@pytest.mark.parametrize("decoded", [True, False])
def test_abandoned_works_are_dropped(decoded: bool) -> None:
    """Works are dropped between decoding steps, and before they are computed."""
    log: list[Any] = []
    queue, other = batcher(queue=1_000_000), Logged(log, held=True)
    decoder: Any = Decoder(log, held=True) if decoded else Logged(log)

    async def run() -> None:
        blocking = asyncio.ensure_future(queue.answers(other, [Sized(1, "first")]))
        works = [Sized(100_000 if decoded else 90, number) for number in range(3)]
        abandoned = asyncio.ensure_future(queue.answers(decoder, works, client=("key", "0")))
        if decoded:
            other.go.set()
            await asyncio.to_thread(decoder.began.wait)
        else:
            await asyncio.to_thread(other.began.wait)
        abandoned.cancel()
        await asyncio.gather(abandoned, return_exceptions=True)
        decoder.go.set()
        other.go.set()
        await queue.answers(other, [Sized(5, "light")], client=LIGHT)
        await blocking

    asyncio.run(run())
    # `close` waits for all remaining works.
    queue.close()
    assert log.count("step") < 100_000
    assert [entry for entry in log if entry != "step"] == [["first"], ["light"]]


def test_light_client_is_served_between_parts_of_text(registry: ModelRegistry) -> None:
    entities = registry.models["entities"].pipelines["ner"]
    text = "a b c d e f g h " * 200
    expected = list(entities.run(entities.prepare([text], long="window")))
    log: list[Any] = []
    queue, first = batcher(queue=100_000, batch=200), Logged(log, held=True)

    async def run() -> None:
        works = entities.prepare([text], long="window")
        parts = sum(1 for _ in entities.parts(works, 50))  # type: ignore[attr-defined]
        assert parts > 30
        blocked = await start(queue, first, Sized(1, "first"))
        long = await send(queue, entities, *works, client=("key", "0"))
        light = await send(queue, first, Sized(5, "light"), client=LIGHT)
        first.go.set()
        await asyncio.gather(blocked, light)
        assert not long.done()
        assert await long == expected

    asyncio.run(run())
    queue.close()


def test_failing_run_raises_only_for_its_request() -> None:
    class Broken(Decoder):
        def steps(self, works: Sequence[Work]) -> Generator[int, None, list[Any]]:
            yield 1
            raise ArithmeticError("bad")

    log: list[Any] = []
    queue = batcher()

    async def run() -> None:
        with pytest.raises(ArithmeticError):
            await queue.answers(Broken(log), [Sized(1)])
        assert await queue.answers(Decoder(log), [Sized(1, "a")]) == [("answer", "a")]

    asyncio.run(run())
    queue.close()


def test_full_queue_rejects_client_that_fills_it() -> None:
    queue, slow = batcher(queue=100), Recorder(held=True)
    heavy: Client = ("key", "heavy")

    async def run() -> None:
        running = await start(queue, slow, Sized(40))
        waiting = [
            await send(queue, slow, Sized(50, name), client=heavy) for name in ("old", "new")
        ]
        with pytest.raises(Full):
            await queue.answers(slow, [Sized(1)], client=heavy)
        # The light client would have more waiting tokens than the heavy client.
        with pytest.raises(Full):
            await queue.answers(slow, [Sized(101)], client=LIGHT)
        queue.room(30, LIGHT)
        light = await send(queue, slow, Sized(30, "light"), client=LIGHT)
        assert queue.waiting == 80
        slow.go.set()
        old, new = await asyncio.gather(*waiting, return_exceptions=True)
        assert old == [("answer", "old")]
        assert isinstance(new, Full)
        assert await light == [("answer", "light")]
        await running

    asyncio.run(run())
    assert queue.waiting == 0
    queue.close()
