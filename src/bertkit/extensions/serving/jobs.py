"""Works of requests that wait in the queue or are decoded."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator, Sequence
from typing import Any

from bertkit.extensions.serving.fair_queue import Client
from bertkit.pipelines import Pipeline, Work


class Job:
    """The works of one request, and their predictions."""

    def __init__(self, number: int, client: Client, pipeline: Pipeline, works: Sequence[Work]):
        self.number, self.client, self.pipeline, self.works = number, client, pipeline, works
        self.answers: list[Any] = [None] * len(works)
        self.next = self.done = 0
        self.waiting = sum(work.tokens for work in works)
        """Number of tokens that wait for the model."""
        self.gone = False
        """Whether its client has disconnected."""
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[list[Any]] = self.loop.create_future()

    def finish(self, error: Exception | None = None) -> None:
        """Set the result or the error of the request, from the thread that runs the models.

        Args:
            error: The error. Default: the predictions are complete.
        """

        def set_result() -> None:
            if not self.future.done():
                if error is None:
                    self.future.set_result(self.answers)
                else:
                    self.future.set_exception(error)

        # The event loop raises it if it has stopped, when no request waits any more.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(set_result)


Stream = Any
"""A text that is generated for a request, such as `LiveText` of the generation extension."""

StreamBatch = Any
"""A batch of texts that are generated, such as `LiveBatch` of the generation extension."""

Works = Sequence[tuple[Job, int]]
"""Works of a batch: pairs of a job and the index of one of its works."""


Steps = Generator[int, None, list[Any]]
"""Generator that yields the size of each step before it runs, and returns the predictions."""


class DecodingRun:
    """Works that a model computes step by step, between other batches."""

    def __init__(
        self, pipeline: Pipeline, works: Works, steps: Steps, *, cache_tokens: int, cost: float
    ) -> None:
        self.pipeline, self.works, self.steps, self.cost = pipeline, works, steps, cost
        self.cache_tokens = cache_tokens
        """Number of tokens in its key/value caches."""
