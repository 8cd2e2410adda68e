"""Continuous batching: texts from several requests join and leave a batch between decoding steps.

Source: Yu et al. 2022 (Orca).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Hashable, Sequence
from dataclasses import dataclass

from bertkit.extensions.generation.decoding import Decoding, Ended, Rules
from bertkit.extensions.generation.generate import GeneratedRow, GenerationBatch
from bertkit.extensions.generation.pipeline import Generate
from bertkit.extensions.generation.stepper import Request
from bertkit.pipelines.base import CACHE_TOKENS


@dataclass(frozen=True)
class TextPart:
    """New part of a text that is being generated."""

    text: str
    tokens: int
    """Number of tokens generated so far, including earlier parts."""
    ended: Ended | None = None
    """Reason why the text ended, or None if it continues."""


class LiveText:
    """A text that is generated in the model thread and sent to a client by the event loop."""

    def __init__(
        self,
        pipeline: Generate,
        request: Request,
        decoding: Decoding,
        rules: Rules,
        stop: Sequence[str],
        client: Hashable = None,
    ) -> None:
        self.client = client
        self.pipeline, self.stop, self.tokens = pipeline, stop, request.tokens
        self.cost = pipeline.cost(request, decoding)
        self.row = GeneratedRow.of(pipeline.stepper, request, decoding, rules)
        self.gone = False
        """Whether the client has disconnected."""
        self._sent = 0
        self._loop = asyncio.get_running_loop()
        self._parts: asyncio.Queue[TextPart | Exception] = asyncio.Queue()

    def batch(self, most: int, cost: float) -> LiveBatch:
        """Return an empty batch for the model that generates this text.

        Args:
            most: Maximum number of prompt tokens per step.
            cost: Initial cost of the batch; see `LiveBatch.cost`.
        """
        return LiveBatch(self.pipeline, most, cost)

    async def parts(self) -> AsyncIterator[TextPart]:
        """Yield the parts of the text as soon as they are generated.

        Raises:
            Exception: If the generation failed; the exception that the model raised.
        """
        while True:
            part = await self._parts.get()
            if isinstance(part, Exception):
                raise part
            yield part
            if part.ended is not None:
                return

    def tell(self, error: Exception | None = None) -> None:
        """Send the newly generated part of the text, or an error, to the event loop.

        Call it from the model thread.
        """
        part: TextPart | Exception
        if error is not None:
            part = error
        else:
            ready = self.pipeline.ready(self.row, self.stop)
            part = TextPart(ready[self._sent :], len(self.row.ids), self.row.ended)
            self._sent = max(self._sent, len(ready))
            if not part.text and part.ended is None:
                return
        # If the event loop is closed, no client is left, so the part can be dropped.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._parts.put_nowait, part)


MAX_SEQUENCES = 64
"""Maximum number of texts in a batch. A client without a text in the batch may exceed it."""


class LiveBatch:
    """Batch of the texts that one model generates together, and queue of the waiting texts."""

    def __init__(self, pipeline: Generate, most: int, cost: float = 0.0) -> None:
        self.most = most
        """Maximum number of prompt tokens per step."""
        self.cost = cost
        """Cost of the steps so far. The batcher next runs the batch with the lowest cost."""
        self.waiting: deque[LiveText] = deque()
        self._texts: list[LiveText] = []
        self._batch = GenerationBatch(pipeline.stepper)

    def __len__(self) -> int:
        return len(self.waiting) + len(self._texts)

    @property
    def at_work(self) -> bool:
        """Whether any text is being generated."""
        return bool(self._texts)

    def take(self) -> list[LiveText]:
        """Take the next texts that fit into the cache from the queue, and return them.

        Clients with the fewest active texts come first. A quarter of the cache is reserved for
        clients without an active text. Waiting texts whose client has disconnected are dropped.
        """
        self.waiting = deque(text for text in self.waiting if not text.gone)
        cost, read = sum(text.cost for text in self._texts), 0
        active = Counter(text.client for text in self._texts)
        selected: list[LiveText] = []
        while self.waiting:
            # `min` returns the text that has waited longest if several are equal.
            text = min(self.waiting, key=lambda waiting: active[waiting.client])
            cost, read = cost + text.cost, read + text.tokens
            bulk = active[text.client] > 0
            full = (
                cost > CACHE_TOKENS * 3 // 4 or active.total() >= MAX_SEQUENCES
                if bulk
                else cost > CACHE_TOKENS
            )
            if (self._texts or selected) and (full or read > self.most):
                break
            self.waiting.remove(text)
            active[text.client] += 1
            selected.append(text)
        return selected

    def step(self, new: Sequence[LiveText]) -> int:
        """Process the prompts of the new texts, and generate at least one token per text.

        If the step fails, the clients of all texts get the error, and the batch becomes empty.

        Returns:
            The number of texts that this step processed.
        """
        connected = [index for index, text in enumerate(self._texts) if not text.gone]
        if len(connected) < len(self._texts):
            self._batch.drop(set(range(len(self._texts))) - set(connected))
            self._texts = [self._texts[index] for index in connected]
        texts = [*self._texts, *new]
        try:
            self._batch.step()
            if new:
                self._batch.add([text.row for text in new])
            for text in texts:
                text.tell()
        except Exception as error:
            for text in texts:
                text.tell(error)
            self._batch, self._texts = GenerationBatch(self._batch.stepper), []
            return len(texts)
        self._texts = [text for text in texts if text.row.ended is None]
        return len(texts)
