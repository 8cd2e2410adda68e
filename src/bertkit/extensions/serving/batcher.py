"""Dynamic batching: one thread runs the models, a bounded queue contains the requests.

The requests of one pipeline go through the model together, in turns of their clients, as soon as
the model is free; none waits for a fuller batch. Texts are generated between the batches, step by
step, and texts longer than a batch are read there in parts. They take about as much time as the
batches.
"""

from __future__ import annotations

import heapq
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from bertkit.errors import BertkitError
from bertkit.extensions.serving.fair_queue import ANYONE, Client, Shares
from bertkit.extensions.serving.jobs import DecodingRun, Job, Steps, Stream, StreamBatch, Taken
from bertkit.extensions.serving.metrics import Metrics
from bertkit.pipelines import Pipeline, Work
from bertkit.pipelines.base import CACHE_TOKENS

CLIENTS_PER_BATCH = 16
"""Clients that share a batch evenly: a turn has at most the batch's tokens divided by it."""

BULK_FRACTION = 4
"""Works of requests that take more than a turn get at most the batch's tokens divided by it, so
that the next request does not wait long."""

STEP_TOKENS = 64
"""Tokens that a model reads in about the time of a decoding step of one sequence."""


class Full(BertkitError):
    """The queue is full; `seconds` estimates when it has room."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"the server has more to do than it can; try again in {seconds} s")
        self.seconds = seconds


class Batcher:
    """A queue of at most `queue_tokens`, and its thread: batches of about `batch_tokens`.

    Clients get fair shares of each batch. A request that finds the queue full takes the place of
    the newest request of the client with the most tokens in it, if that has more than itself.
    """

    def __init__(self, *, queue_tokens: int, batch_tokens: int, metrics: Metrics) -> None:
        self.queue_tokens, self.batch_tokens, self.metrics = queue_tokens, batch_tokens, metrics
        self.waiting = 0
        self._tokens: Counter[Client] = Counter()  # that wait, of each client
        self._rate = 0.0
        self._numbers = 0
        self._shares = Shares()
        self._urgent: deque[Job] = deque()
        self._jobs: dict[Client, deque[Job]] = {}
        self._runs: list[DecodingRun] = []
        self._live: dict[Pipeline, StreamBatch] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="models", daemon=True)
        self._thread.start()

    def room(self, tokens: int = 1, client: Client = ANYONE) -> None:
        """Raises: Full when no request of this size can wait now."""
        if not self.waiting or self.waiting + tokens <= self.queue_tokens:
            return
        with self._changed:
            if max(self._tokens.values(), default=0) <= self._tokens[client] + tokens:
                raise self._full()

    async def answers(
        self,
        pipeline: Pipeline,
        works: Sequence[Work],
        *,
        urgent: bool = False,
        client: Client = ANYONE,
    ) -> list[Any]:
        """The pipeline's answers. A caller that is cancelled leaves the queue.

        `urgent` works go first, and are never refused: a health check.
        Raises: Full; what the pipeline raises.
        """
        if not works:
            return []
        with self._changed:
            self._numbers += 1
            job = Job(self._numbers, client, pipeline, works)
            if urgent:
                self._urgent.append(job)
            else:
                self._make_room(job.waiting, client)
                self._jobs.setdefault(client, deque()).append(job)
                self._shares.arrive(client)
                self._wait(client, job.waiting)
            self._changed.notify()
        try:
            return await job.future
        finally:
            job.gone = True
            self._withdraw(job)

    def write(self, pipeline: Pipeline, texts: Sequence[Stream]) -> None:
        """Generate texts together with those that are; their reader calls `leave`. Raises: Full."""
        with self._changed:
            self._make_room(sum(text.cost for text in texts), texts[0].client)
            live = self._live.get(pipeline)
            if live is None:
                live = texts[0].batch(self.batch_tokens, self._least())
                self._live[pipeline] = live
            live.waiting.extend(texts)
            for text in texts:
                self._wait(text.client, text.cost)
            self._changed.notify()

    @property
    def writing(self) -> int:
        """Texts that wait, or are being written."""
        return sum(len(live) for live in self._live.values())

    def leave(self, texts: Sequence[Stream]) -> None:
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

    # ---- the queue, whose lock the callers hold

    def _wait(self, client: Client, tokens: int) -> None:
        self.waiting += tokens
        self._tokens[client] += tokens
        if not self._tokens[client]:
            del self._tokens[client]
        self.metrics.queue.set(self.waiting)

    def _full(self) -> Full:
        return Full(min(60, math.ceil(self.waiting / self._rate)) if self._rate else 1)

    def _make_room(self, tokens: int, client: Client) -> None:
        """Remove the newest jobs and texts of the clients with the most tokens. Raises: Full."""
        while self.waiting and self.waiting + tokens > self.queue_tokens:
            largest = max(self._tokens, key=self._tokens.__getitem__)
            if self._tokens[largest] <= self._tokens[client] + tokens:
                raise self._full()
            if largest in self._jobs:
                job = self._jobs[largest][-1]
                self._remove(job)
                job.finish(self._full())
                continue
            for live in self._live.values():
                for text in [text for text in live.waiting if text.client == largest]:
                    live.waiting.remove(text)
                    self._wait(largest, -text.cost)
                    text.tell(self._full())

    def _remove(self, job: Job) -> None:
        jobs = self._jobs[job.client]
        jobs.remove(job)
        if not jobs:
            del self._jobs[job.client]
        self._shares.leave(job.client)
        self._wait(job.client, -job.waiting)

    def _withdraw(self, job: Job) -> None:
        """Remove a job that no longer waits for an answer."""
        if job.next == len(job.works):
            return
        with self._changed:
            if job in self._urgent:
                self._urgent.remove(job)
            elif job in self._jobs.get(job.client, ()):
                self._remove(job)

    def _next(self, client: Client, pipeline: Pipeline | None = None) -> Job | None:
        """The oldest job of a client, and of a pipeline, that can begin."""
        for job in self._jobs[client]:
            if pipeline in (None, job.pipeline) and self._may_begin(job):
                return job
        return None

    def _may_begin(self, job: Job) -> bool:
        """Whether the caches have room; a quarter is for clients for whom nothing is decoded."""
        if not self._runs or not hasattr(job.pipeline, "steps"):
            return True
        places = sum(run.places for run in self._runs) + job.works[job.next].tokens
        others = all(one.client != job.client for run in self._runs for one, _ in run.taken)
        return places <= CACHE_TOKENS if others else places <= CACHE_TOKENS * 3 // 4

    def _take(self) -> tuple[Pipeline, Taken] | None:
        """The next batch: works of one pipeline, in turns of the clients that wait for it."""
        if self._urgent:
            job = self._urgent.popleft()
            job.next, job.waiting = len(job.works), 0
            return job.pipeline, [(job, index) for index in range(len(job.works))]
        heads = [head for client in self._jobs if (head := self._next(client))]
        if not heads:
            return None
        first = min(heads, key=self._order)
        same = (self._next(head.client, first.pipeline) for head in heads)
        heap = [(*self._order(one), one) for one in same if one is not None]
        heapq.heapify(heap)
        taken: list[tuple[Job, int]] = []
        tokens = 0
        while heap:
            job = heapq.heappop(heap)[-1]
            bulk = job.next > 0 or job.waiting > self.batch_tokens // CLIENTS_PER_BATCH
            room = self.batch_tokens // BULK_FRACTION if bulk else self.batch_tokens
            more = self._turn(job, room - tokens, bool(taken))
            if not more:
                break
            taken += more
            tokens += sum(job.works[index].tokens for _, index in more)
            if job.client in self._jobs:
                following = self._next(job.client, first.pipeline)
                if following is not None:
                    heapq.heappush(heap, (*self._order(following), following))
        return first.pipeline, taken

    def _order(self, job: Job) -> tuple[float, float, int]:
        cost = min(job.works[job.next].tokens, self.batch_tokens)
        return (*self._shares.turn(job.client, cost), job.number)

    def _turn(self, job: Job, room: int, some: bool) -> Taken:
        """The next works of a job for a batch with so much room, which may have some."""
        begin, tokens = job.next, 0
        while job.next < len(job.works) and tokens < self.batch_tokens // CLIENTS_PER_BATCH + 1:
            cost = job.works[job.next].tokens
            if (some or job.next > begin) and tokens + cost > room:
                break
            tokens += cost
            job.next += 1
        if job.next > begin:
            self._shares.charge(job.client, tokens)
            self._wait(job.client, -tokens)
            job.waiting -= tokens
        if job.next == len(job.works):
            self._remove(job)
        return [(job, index) for index in range(begin, job.next)]

    # ---- the models' thread

    def _loop(self) -> None:
        """Alternate batches and decoding steps, so that both take the same time if both wait."""
        ahead = 0.0  # seconds that decoding has taken more than batches
        while True:
            with self._changed:
                self._live = {one: live for one, live in self._live.items() if live}
                while not (self._urgent or self._jobs or self._live or self._runs):
                    if self._closed:
                        return
                    self._changed.wait()
                decodes = bool(self._live or self._runs)
                batch = self._take() if self._urgent or ahead >= 0 or not decodes else None
                new = {} if batch else {one: self._taken(one) for one in self._live.values()}
            start = time.perf_counter()
            if batch is not None:
                self._answer(*batch)
            else:
                self._decode(new)
            seconds = time.perf_counter() - start
            if not (decodes and self._jobs):
                ahead = 0.0
            else:
                ahead += seconds if batch is None else -seconds

    def _taken(self, live: StreamBatch) -> list[Stream]:
        before = Counter[Client]()
        for text in live.waiting:
            before[text.client] += text.cost
        taken: list[Stream] = live.take()
        for text in live.waiting:
            before[text.client] -= text.cost
        for client, cost in before.items():
            self._wait(client, -cost)
        return taken

    def _decode(self, new: dict[StreamBatch, list[Stream]]) -> None:
        """Read new prompts, or do a step of the texts or run with the lowest cost so far."""
        for live, texts in new.items():
            if texts:
                self._step(live, texts)
        if not any(new.values()) and (decoders := self._decoders()):
            self._step(min(decoders, key=lambda one: one.cost), [])

    def _least(self) -> float:
        """The lowest cost of all that is decoded, with which others begin."""
        return min((one.cost for one in self._decoders()), default=0.0)

    def _decoders(self) -> list[StreamBatch | DecodingRun]:
        return [*(live for live in list(self._live.values()) if live.at_work), *self._runs]

    def _step(self, one: StreamBatch | DecodingRun, new: list[Stream]) -> None:
        """Do one step, and charge its cost."""
        rows = self._step_run(one) if isinstance(one, DecodingRun) else one.step(new)
        one.cost += STEP_TOKENS + rows

    def _step_run(self, run: DecodingRun) -> int:
        """One step of a run, which ends if all its clients have left."""
        try:
            if not all(job.gone for job, _ in run.taken):
                return next(run.steps)
            run.steps.close()
        except StopIteration as end:
            self._finish(run.taken, end.value)
        except Exception as error:
            self._fail(run.pipeline, run.taken, error)
        self._runs.remove(run)
        return 0

    def _answer(self, pipeline: Pipeline, taken: Taken) -> None:
        """Answer a batch, or begin to decode it."""
        tokens = sum(job.works[index].tokens for job, index in taken)
        self.metrics.batch.observe(tokens)  # before: who has an answer finds its batch counted
        if steps := self._steps(pipeline, taken, tokens):
            places = tokens if hasattr(pipeline, "steps") else 0
            self._runs.append(
                DecodingRun(pipeline, taken, steps, places=places, cost=self._least())
            )
            return
        start = time.perf_counter()
        self._run(pipeline, taken)
        seconds = time.perf_counter() - start
        self._rate += 0.2 * (tokens / seconds - self._rate) if self._rate else tokens / seconds

    def _steps(self, pipeline: Pipeline, taken: Taken, tokens: int) -> Steps | None:
        """The steps of works that generate text, or are longer than a batch."""
        works = [job.works[index] for job, index in taken]
        if hasattr(pipeline, "steps"):
            return pipeline.steps(works)  # type: ignore[no-any-return]
        if tokens > self.batch_tokens and hasattr(pipeline, "parts"):
            return pipeline.parts(works, self.batch_tokens // BULK_FRACTION)  # type: ignore[no-any-return]
        return None

    def _run(self, pipeline: Pipeline, taken: Taken) -> None:
        """Answer the works together or, if that fails, job by job."""
        try:
            answers = list(pipeline.run([job.works[index] for job, index in taken]))
        except Exception as error:
            self._fail(pipeline, taken, error)
        else:
            self._finish(taken, answers)

    def _fail(self, pipeline: Pipeline, taken: Taken, error: Exception) -> None:
        """Answer each job separately; a single one gets the error."""
        jobs = list(dict.fromkeys(job for job, _ in taken))
        if len(jobs) == 1:
            jobs[0].finish(error)
            return
        for one in jobs:
            self._run(pipeline, [(job, index) for job, index in taken if job is one])

    def _finish(self, taken: Taken, answers: Sequence[Any]) -> None:
        for (job, index), answer in zip(taken, answers, strict=True):
            job.answers[index] = answer
            job.done += 1
            if job.done == len(job.works):
                job.finish()
