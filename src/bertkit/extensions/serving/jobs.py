"""Units of work ("works") of requests, which wait in the queue or are being computed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator, Sequence
from typing import Any

from bertkit.extensions.serving.fair_queue import Client
from bertkit.pipelines import Pipeline, Work


class Job:
    """The works of one request, together with their predictions."""

    def __init__(self, number: int, client: Client, pipeline: Pipeline, works: Sequence[Work]):
        self.number, self.client, self.pipeline, self.works = number, client, pipeline, works
        self.answers: list[Any] = [None] * len(works)
        self.next = self.done = 0
        self.waiting = sum(work.tokens for work in works)
        """Number of tokens of the job that still wait for the model."""
        self.gone = False
        """Whether the client has disconnected."""
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[list[Any]] = self.loop.create_future()

    def finish(self, error: Exception | None = None) -> None:
        """Report the result or an error to the event loop, from the thread that runs the models.

        Args:
            error: The error. If it is None, the predictions are reported as the result.
        """

        def set_result() -> None:
            if not self.future.done():
                if error is None:
                    self.future.set_result(self.answers)
                else:
                    self.future.set_exception(error)

        # The event loop raises RuntimeError if it has stopped. No request is waiting then.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(set_result)


Stream = Any
"""A text that is being generated for a request, such as `LiveText` of the generation extension."""

StreamBatch = Any
"""A batch of texts that are being generated, such as `LiveBatch` of the generation extension."""

Works = Sequence[tuple[Job, int]]
"""Works in a batch. Each is given by its job and its index in the job."""


Steps = Generator[int, None, list[Any]]
"""Generator that runs a step whenever it is advanced, yields the size of the step, and finally
returns the predictions."""


class DecodingRun:
    """A batch of works that a model computes step by step, between other batches."""

    def __init__(
        self, pipeline: Pipeline, works: Works, steps: Steps, *, cache_tokens: int, cost: float
    ) -> None:
        self.pipeline, self.works, self.steps, self.cost = pipeline, works, steps, cost
        self.cache_tokens = cache_tokens
        """Number of tokens in the key/value caches of the run."""
