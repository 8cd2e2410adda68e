"""Dynamic batching: one thread runs the models on requests from a bounded queue.

As soon as the thread is free, it runs one pipeline on a batch of waiting requests, which it takes
from the clients in fair turns. Requests never wait for a batch to fill up. Between batches, the
thread generates texts step by step, and processes requests that are longer than a batch in parts.
If both are waiting, these steps and the batches get about the same time.
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
from bertkit.extensions.serving.jobs import DecodingRun, Job, Steps, Stream, StreamBatch, Works
from bertkit.extensions.serving.metrics import Metrics
from bertkit.pipelines import Pipeline, Work
from bertkit.pipelines.base import CACHE_TOKENS

CLIENTS_PER_BATCH = 16
"""Number of turns into which a batch is divided. In one turn, a client gets about the batch's
tokens divided by this number, and at least one work."""

BULK_FRACTION = 4
"""Requests that need more than one turn fill at most the batch's tokens divided by this number, so
that the next request does not wait long."""

SIMILAR_FACTOR = 4
"""Works share a decoding run only if their numbers of tokens differ by at most this factor, because
a run returns all its predictions at its end."""

STEP_TOKENS = 64
"""Number of tokens that a model encodes in about the time that it takes to decode one step of one
sequence."""


class Full(BertkitError):
    """The error that is raised if the queue is full.

    `seconds` is an estimate of the time until the queue has space again.
    """

    def __init__(self, seconds: int) -> None:
        super().__init__(f"the server is overloaded; retry in {seconds} s")
        self.seconds = seconds


class Batcher:
    """A request queue with the thread that runs the models.

    Each batch is shared fairly among the clients. If the queue is full, a new request can still
    displace another one. This happens if another client has more waiting tokens than the new
    request's client would have with the request. The newest request of the client with the most
    waiting tokens is then rejected.

    Args:
        queue_tokens: Maximum number of waiting tokens.
        batch_tokens: Approximate number of tokens in a batch.
        metrics: Metrics of the server.
    """

    def __init__(self, *, queue_tokens: int, batch_tokens: int, metrics: Metrics) -> None:
        self.queue_tokens, self.batch_tokens, self.metrics = queue_tokens, batch_tokens, metrics
        self.waiting = 0
        # Number of waiting tokens of each client.
        self._tokens: Counter[Client] = Counter()
        self._rate = 0.0
        self._num_jobs = 0
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
        """Check that the queue has space for a request.

        Args:
            tokens: Number of tokens in the request.
            client: Client that sent the request.

        Raises:
            Full: If the queue has no space for the request.
        """
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
        """Wait for the predictions of a pipeline.

        If the caller is cancelled, its works are removed from the queue.

        Args:
            pipeline: The pipeline.
            works: Units of work of the request.
            urgent: Whether the works run before all others and are never rejected, as for health
                checks.
            client: Client that sent the request.

        Raises:
            Full: If the queue has no space for the request.
            Exception: Any exception that the pipeline raises.
        """
        if not works:
            return []
        with self._changed:
            self._num_jobs += 1
            job = Job(self._num_jobs, client, pipeline, works)
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
        """Start to generate texts with a pipeline. The caller must call `leave` at the end.

        Args:
            pipeline: The pipeline.
            texts: The texts to generate.

        Raises:
            Full: If the queue has no space for the request.
        """
        with self._changed:
            self._make_room(sum(text.cost for text in texts), texts[0].client)
            live = self._live.get(pipeline)
            if live is None:
                live = texts[0].batch(self.batch_tokens, self._lowest_cost())
                self._live[pipeline] = live
            live.waiting.extend(texts)
            for text in texts:
                self._wait(text.client, text.cost)
            self._changed.notify()

    @property
    def writing(self) -> int:
        """Number of texts that are waiting or being generated."""
        return sum(len(live) for live in self._live.values())

    def leave(self, texts: Sequence[Stream]) -> None:
        """Stop generating texts, because no client reads them any more."""
        with self._changed:
            for text in texts:
                text.gone = True
            self._changed.notify()

    def close(self) -> None:
        """Stop the thread after it has completed all waiting requests."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    # ---- The queue. Callers must hold its lock.

    def _wait(self, client: Client, tokens: int) -> None:
        self.waiting += tokens
        self._tokens[client] += tokens
        if not self._tokens[client]:
            del self._tokens[client]
        self.metrics.queue.set(self.waiting)

    def _full(self) -> Full:
        return Full(min(60, math.ceil(self.waiting / self._rate)) if self._rate else 1)

    def _make_room(self, tokens: int, client: Client) -> None:
        """Reject the newest jobs or texts of the clients with the most tokens, or raise Full."""
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
        """Remove a job from the queue, because its client no longer waits for it."""
        if job.next == len(job.works):
            return
        with self._changed:
            if job in self._urgent:
                self._urgent.remove(job)
            elif job in self._jobs.get(job.client, ()):
                self._remove(job)

    def _next(self, client: Client, pipeline: Pipeline | None = None) -> Job | None:
        """Return the client's oldest job that can start, of one pipeline if it is given."""
        for job in self._jobs[client]:
            if pipeline in (None, job.pipeline) and self._can_start(job):
                return job
        return None

    def _can_start(self, job: Job) -> bool:
        """Return whether the key/value caches have space for a job.

        A quarter of the space is reserved for clients for which no decoding run is in progress.
        """
        if not self._runs or not hasattr(job.pipeline, "steps"):
            return True
        tokens = sum(run.cache_tokens for run in self._runs) + job.works[job.next].tokens
        is_new = all(other.client != job.client for run in self._runs for other, _ in run.works)
        return tokens <= CACHE_TOKENS if is_new else tokens <= CACHE_TOKENS * 3 // 4

    def _next_batch(self) -> tuple[Pipeline, Works] | None:
        """Return the next batch: works of one pipeline, taken from the clients in fair turns."""
        if self._urgent:
            job = self._urgent.popleft()
            job.next, job.waiting = len(job.works), 0
            return job.pipeline, [(job, index) for index in range(len(job.works))]
        heads = [head for client in self._jobs if (head := self._next(client))]
        if not heads:
            return None
        first = min(heads, key=self._order)
        decodes = hasattr(first.pipeline, "steps")
        jobs = (self._next(head.client, first.pipeline) for head in heads)
        heap = [(*self._order(job), job) for job in jobs if job is not None]
        heapq.heapify(heap)
        size = first.works[first.next].tokens
        sizes = range(size // SIMILAR_FACTOR, size * SIMILAR_FACTOR + 1)
        works: list[tuple[Job, int]] = []
        tokens = 0
        while heap:
            job = heapq.heappop(heap)[-1]
            if decodes and job.works[job.next].tokens not in sizes:
                continue
            bulk = job.next > 0 or job.waiting > self.batch_tokens // CLIENTS_PER_BATCH
            capacity = self.batch_tokens // BULK_FRACTION if bulk else self.batch_tokens
            more = self._turn(job, capacity - tokens, bool(works))
            if not more:
                break
            works += more
            tokens += sum(job.works[index].tokens for _, index in more)
            if job.client in self._jobs:
                following = self._next(job.client, first.pipeline)
                if following is not None:
                    heapq.heappush(heap, (*self._order(following), following))
        return first.pipeline, works

    def _order(self, job: Job) -> tuple[float, float, int]:
        cost = min(job.works[job.next].tokens, self.batch_tokens)
        return (*self._shares.turn(job.client, cost), job.number)

    def _turn(self, job: Job, capacity: int, has_works: bool) -> Works:
        """Return the works of a job for one turn, at least one if the batch is empty."""
        begin, tokens = job.next, 0
        while job.next < len(job.works) and tokens < self.batch_tokens // CLIENTS_PER_BATCH + 1:
            cost = job.works[job.next].tokens
            if (has_works or job.next > begin) and tokens + cost > capacity:
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

    # ---- The thread that runs the models

    def _loop(self) -> None:
        """Alternate between batches and decoding steps; both get equal time if both are waiting."""
        # How many more seconds decoding has used than batches have.
        ahead = 0.0
        while True:
            with self._changed:
                self._live = {pipeline: live for pipeline, live in self._live.items() if live}
                while not (self._urgent or self._jobs or self._live or self._runs):
                    if self._closed:
                        return
                    self._changed.wait()
                decodes = bool(self._live or self._runs)
                batch = self._next_batch() if self._urgent or ahead >= 0 or not decodes else None
                new = {} if batch else {live: self._start(live) for live in self._live.values()}
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

    def _start(self, live: StreamBatch) -> list[Stream]:
        """Return the waiting texts that can start, and subtract their cost from the queue."""
        costs = Counter[Client]()
        for text in live.waiting:
            costs[text.client] += text.cost
        started: list[Stream] = live.take()
        for text in live.waiting:
            costs[text.client] -= text.cost
        for client, cost in costs.items():
            self._wait(client, -cost)
        return started

    def _decode(self, new: dict[StreamBatch, list[Stream]]) -> None:
        """Encode new prompts, or else run one step of the decoder with the lowest cost."""
        for live, texts in new.items():
            if texts:
                self._step(live, texts)
        if not any(new.values()) and (decoders := self._decoders()):
            self._step(min(decoders, key=lambda decoder: decoder.cost), [])

    def _lowest_cost(self) -> float:
        """Return the lowest cost of all decoders. A new decoder starts with this cost."""
        return min((decoder.cost for decoder in self._decoders()), default=0.0)

    def _decoders(self) -> list[StreamBatch | DecodingRun]:
        return [*(live for live in list(self._live.values()) if live.at_work), *self._runs]

    def _step(self, decoder: StreamBatch | DecodingRun, new: list[Stream]) -> None:
        """Run one step of a decoder, and add its cost to the decoder."""
        rows = self._step_run(decoder) if isinstance(decoder, DecodingRun) else decoder.step(new)
        decoder.cost += STEP_TOKENS + rows

    def _step_run(self, run: DecodingRun) -> int:
        """Run one step of a decoding run, or end the run if all its clients have disconnected."""
        try:
            if not all(job.gone for job, _ in run.works):
                return next(run.steps)
            run.steps.close()
        except StopIteration as end:
            self._finish(run.works, end.value)
        except Exception as error:
            self._fail(run.pipeline, run.works, error)
        self._runs.remove(run)
        return 0

    def _answer(self, pipeline: Pipeline, works: Works) -> None:
        """Run a batch or, if it needs several steps, start its decoding run."""
        tokens = sum(job.works[index].tokens for job, index in works)
        # Count the batch before it runs, so that it is already counted when clients get their
        # responses.
        self.metrics.batch.observe(tokens)
        if steps := self._steps(pipeline, works, tokens):
            cached, cost = tokens if hasattr(pipeline, "steps") else 0, self._lowest_cost()
            self._runs.append(DecodingRun(pipeline, works, steps, cache_tokens=cached, cost=cost))
            return
        start = time.perf_counter()
        self._run(pipeline, works)
        seconds = time.perf_counter() - start
        self._rate += 0.2 * (tokens / seconds - self._rate) if self._rate else tokens / seconds

    def _steps(self, pipeline: Pipeline, works: Works, tokens: int) -> Steps | None:
        """Return the steps for works that generate text or are longer than a batch, else None."""
        items = [job.works[index] for job, index in works]
        if hasattr(pipeline, "steps"):
            return pipeline.steps(items)  # type: ignore[no-any-return]
        if tokens > self.batch_tokens and hasattr(pipeline, "parts"):
            return pipeline.parts(items, self.batch_tokens // BULK_FRACTION)  # type: ignore[no-any-return]
        return None

    def _run(self, pipeline: Pipeline, works: Works) -> None:
        """Run the works together or, if that fails, job by job."""
        try:
            answers = list(pipeline.run([job.works[index] for job, index in works]))
        except Exception as error:
            self._fail(pipeline, works, error)
        else:
            self._finish(works, answers)

    def _fail(self, pipeline: Pipeline, works: Works, error: Exception) -> None:
        """Run each job again separately or, if there is only one job, report the error to it."""
        jobs = list(dict.fromkeys(job for job, _ in works))
        if len(jobs) == 1:
            jobs[0].finish(error)
            return
        for failed in jobs:
            self._run(pipeline, [(job, index) for job, index in works if job is failed])

    def _finish(self, works: Works, answers: Sequence[Any]) -> None:
        for (job, index), answer in zip(works, answers, strict=True):
            job.answers[index] = answer
            job.done += 1
            if job.done == len(job.works):
                job.finish()
