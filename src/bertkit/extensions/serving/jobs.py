"""The works of requests, in the queue and while they are decoded."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator, Sequence
from typing import Any

from bertkit.extensions.serving.fair_queue import Client
from bertkit.pipelines import Pipeline, Work


class Job:
    """The works of one request, and their answers."""

    def __init__(self, number: int, client: Client, pipeline: Pipeline, works: Sequence[Work]):
        self.number, self.client, self.pipeline, self.works = number, client, pipeline, works
        self.answers: list[Any] = [None] * len(works)
        self.next = self.done = 0
        self.waiting = sum(work.tokens for work in works)
        """Tokens that have not gone to the model."""
        self.gone = False
        """Whether its client has left."""
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[list[Any]] = self.loop.create_future()

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


Stream = Any
"""Text that is generated for a request, such as `LiveText` of the extension generation."""

StreamBatch = Any
"""Texts that a model generates together, such as `LiveBatch` of the extension generation."""

Taken = Sequence[tuple[Job, int]]
"""Works of a batch: jobs, and the index of a work of each."""


Steps = Generator[int, None, list[Any]]
"""Yields the size of each step before it, and returns the answers."""


class DecodingRun:
    """Works that a model computes step by step, between the batches of others."""

    def __init__(
        self, pipeline: Pipeline, taken: Taken, steps: Steps, *, places: int, cost: float
    ) -> None:
        self.pipeline, self.taken, self.steps, self.cost = pipeline, taken, steps, cost
        self.places = places
        """Tokens that it keeps in caches."""
