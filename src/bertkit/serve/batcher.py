"""Dynamic batching: one thread runs the models, a bounded queue holds the requests.

The requests of one pipeline go through the model together, oldest first, as soon as the model is
free; none waits for a fuller batch. Between two batches each model that writes goes a step on.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from bertkit.errors import BertkitError
from bertkit.pipelines import Generate, Pipeline, Work
from bertkit.serve.live import LiveText, LiveWriting
from bertkit.serve.metrics import Metrics


class Full(BertkitError):
    """The queue is full; `seconds` estimates when it has room."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"the server has more to do than it can; try again in {seconds} s")
        self.seconds = seconds


class _Job:
    """The works of one request, and their answers."""

    def __init__(self, number: int, works: Sequence[Work], loop: asyncio.AbstractEventLoop) -> None:
        self.number, self.works = number, works
        self.answers: list[Any] = [None] * len(works)
        self.next = self.done = 0
        self.loop = loop
        self.future: asyncio.Future[list[Any]] = loop.create_future()

    @property
    def waiting(self) -> int:
        """Tokens that have not gone to the model."""
        return sum(work.tokens for work in self.works[self.next :])

    def finish(self, error: Exception | None = None) -> None:
        """Tell the request, from the models' thread."""

        def tell() -> None:
            if not self.future.done():
                if error is None:
                    self.future.set_result(self.answers)
                else:
                    self.future.set_exception(error)

        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
            self.loop.call_soon_threadsafe(tell)


class Batcher:
    """A queue of at most `queue_tokens`, and its thread: batches of about `batch_tokens`."""

    def __init__(self, *, queue_tokens: int, batch_tokens: int, metrics: Metrics) -> None:
        self.queue_tokens, self.batch_tokens, self.metrics = queue_tokens, batch_tokens, metrics
        self.waiting = 0
        self._rate = 0.0
        self._jobs = 0
        self._queues: dict[Pipeline, deque[_Job]] = {}
        self._live: dict[Generate, LiveWriting] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="models", daemon=True)
        self._thread.start()

    def room(self, tokens: int = 1) -> None:
        """Raises: Full when no request of so many tokens can wait now."""
        if self.waiting and self.waiting + tokens > self.queue_tokens:
            raise Full(min(60, math.ceil(self.waiting / self._rate)) if self._rate else 1)

    async def answers(
        self, pipeline: Pipeline, works: Sequence[Work], *, urgent: bool = False
    ) -> list[Any]:
        """The pipeline's answers. A caller that is cancelled leaves the queue.

        `urgent` works go first, and are never refused: a health check.
        Raises: Full; what the pipeline raises.
        """
        tokens = sum(work.tokens for work in works)
        if not works:
            return []
        if not urgent:
            self.room(tokens)
        with self._changed:
            self._jobs += 1
            job = _Job(-1 if urgent else self._jobs, works, asyncio.get_running_loop())
            queue = self._queues.setdefault(pipeline, deque())
            (queue.appendleft if urgent else queue.append)(job)
            self._wait(tokens)
            self._changed.notify()
        try:
            return await job.future
        finally:
            self._withdraw(pipeline, job)

    def write(self, pipeline: Generate, texts: Sequence[LiveText]) -> None:
        """Let texts be written beside those that are; who reads them says when he leaves."""
        with self._changed:
            live = self._live.setdefault(pipeline, LiveWriting(pipeline, self.batch_tokens))
            live.waiting.extend(texts)
            self._wait(sum(text.cost for text in texts))
            self._changed.notify()

    @property
    def writing(self) -> int:
        """Texts that wait, or are being written."""
        return sum(len(live) for live in self._live.values())

    def leave(self, texts: Sequence[LiveText]) -> None:
        """Nobody reads these any more: those that are not at their end give up their places."""
        with self._changed:
            for text in texts:
                text.gone = True
            self._changed.notify()

    def close(self) -> None:
        """End the thread, after what waits is answered."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _wait(self, tokens: int) -> None:
        self.waiting += tokens
        self.metrics.queue.set(self.waiting)

    def _withdraw(self, pipeline: Pipeline, job: _Job) -> None:
        if job.next == len(job.works):
            return
        with self._changed:
            queue = self._queues.get(pipeline)
            if queue is not None and job in queue:
                queue.remove(job)
                self._wait(-job.waiting)
                if not queue:
                    del self._queues[pipeline]

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._live = {one: live for one, live in self._live.items() if live}
                while not self._queues and not self._live:
                    if self._closed:
                        return
                    self._changed.wait()
                batch = self._take() if self._queues else None
                new = [(live, self._taken(live)) for live in self._live.values()]
            if batch is not None:
                self._answer(*batch)
            for live, texts in new:
                live.step(texts)

    def _taken(self, live: LiveWriting) -> list[LiveText]:
        before = sum(text.cost for text in live.waiting)
        taken = live.take()
        self._wait(sum(text.cost for text in live.waiting) - before)
        return taken

    def _answer(self, pipeline: Pipeline, taken: Sequence[tuple[_Job, int]]) -> None:
        tokens = sum(job.works[place].tokens for job, place in taken)
        self.metrics.batch.observe(tokens)  # before: who has an answer finds its batch counted
        start = time.perf_counter()
        self._run(pipeline, taken)
        seconds = time.perf_counter() - start
        self._rate += 0.2 * (tokens / seconds - self._rate) if self._rate else tokens / seconds

    def _take(self) -> tuple[Pipeline, list[tuple[_Job, int]]]:
        """The oldest job's pipeline, and as many of what waits for it as make a batch."""
        pipeline = min(self._queues, key=lambda p: self._queues[p][0].number)
        queue, tokens = self._queues[pipeline], 0
        taken: list[tuple[_Job, int]] = []
        while queue:
            job = queue[0]
            while job.next < len(job.works):
                cost = job.works[job.next].tokens
                if taken and tokens + cost > self.batch_tokens:
                    break
                taken.append((job, job.next))
                tokens += cost
                job.next += 1
            if job.next < len(job.works):
                break
            queue.popleft()
        if not queue:
            del self._queues[pipeline]
        self._wait(-tokens)
        return pipeline, taken

    def _run(self, pipeline: Pipeline, taken: Sequence[tuple[_Job, int]]) -> None:
        """Answer the works together or, if that fails, job by job."""
        try:
            answers = list(pipeline.run([job.works[place] for job, place in taken]))
            assert len(answers) == len(taken)
        except Exception as error:
            jobs = list(dict.fromkeys(job for job, _ in taken))
            if len(jobs) == 1:
                jobs[0].finish(error)
                return
            for one in jobs:
                self._run(pipeline, [(job, place) for job, place in taken if job is one])
            return
        for (job, place), answer in zip(taken, answers, strict=True):
            job.answers[place] = answer
            job.done += 1
            if job.done == len(job.works):
                job.finish()
