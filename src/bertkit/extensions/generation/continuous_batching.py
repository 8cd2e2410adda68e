"""Continuous batching: a model generates the texts of several requests step by step, together.

A text can join or leave before each step.
Source: Yu et al. 2022 (Orca).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Hashable, Sequence
from dataclasses import dataclass

from bertkit.extensions.generation.decoding import Decoding, Ended, Rules
from bertkit.extensions.generation.generate import GeneratedRow, Writing
from bertkit.extensions.generation.pipeline import Generate
from bertkit.extensions.generation.stepper import Request
from bertkit.pipelines.base import CACHE_TOKENS


@dataclass(frozen=True)
class Piece:
    """What was written since the last one, and why the text has ended if it has."""

    text: str
    tokens: int
    """Of the text so far."""
    ended: Ended | None = None


class LiveText:
    """A text while it is written by the models' thread, and read on the event loop."""

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
        """Set when nobody reads it any more."""
        self._sent = 0
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[Piece | Exception] = asyncio.Queue()

    def batch(self, most: int, cost: float) -> LiveWriting:
        """Return an empty batch of texts of the same model; see `LiveWriting`."""
        return LiveWriting(self.pipeline, most, cost)

    async def pieces(self) -> AsyncIterator[Piece]:
        """What is written, as it comes. Raises: what the model raises."""
        while True:
            piece = await self._pieces.get()
            if isinstance(piece, Exception):
                raise piece
            yield piece
            if piece.ended is not None:
                return

    def tell(self, error: Exception | None = None) -> None:
        """Hand on what is new, from the models' thread."""
        piece: Piece | Exception
        if error is not None:
            piece = error
        else:
            ready = self.pipeline.ready(self.row, self.stop)
            piece = Piece(ready[self._sent :], len(self.row.ids), self.row.ended)
            self._sent = max(self._sent, len(ready))
            if not piece.text and piece.ended is None:
                return
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody reads any more
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)


MAX_SEQUENCES = 64
"""Texts that are generated together; a client that has none at work may add one more."""


class LiveWriting:
    """The texts that one model writes, as many at once as its cache has room for."""

    def __init__(self, pipeline: Generate, most: int, cost: float = 0.0) -> None:
        self.most = most
        """Tokens of prompts that are read at a time."""
        self.cost = cost
        """What its steps have cost, for the batcher."""
        self.waiting: deque[LiveText] = deque()
        self._texts: list[LiveText] = []
        self._writing = Writing(pipeline.stepper)

    def __len__(self) -> int:
        return len(self.waiting) + len(self._texts)

    @property
    def at_work(self) -> bool:
        """Whether texts are generated now."""
        return bool(self._texts)

    def take(self) -> list[LiveText]:
        """The next of those that wait, as far as the cache has room; those that are gone leave.

        Clients with the fewest texts at work are first. A quarter of the cache is for clients that
        have none.
        """
        self.waiting = deque(text for text in self.waiting if not text.gone)
        places, read = sum(text.cost for text in self._texts), 0
        working = Counter(text.client for text in self._texts)
        taken: list[LiveText] = []
        while self.waiting:
            text = min(self.waiting, key=lambda one: working[one.client])  # the first of equals
            places, read = places + text.cost, read + text.tokens
            bulk = working[text.client] > 0
            full = (
                places > CACHE_TOKENS * 3 // 4 or working.total() >= MAX_SEQUENCES
                if bulk
                else places > CACHE_TOKENS
            )
            if (self._texts or taken) and (full or read > self.most):
                break
            self.waiting.remove(text)
            working[text.client] += 1
            taken.append(text)
        return taken

    def step(self, new: Sequence[LiveText]) -> int:
        """Read the prompts of the new, write a word of each; how many texts were written to."""
        here = [place for place, text in enumerate(self._texts) if not text.gone]
        if len(here) < len(self._texts):
            self._writing.drop(set(range(len(self._texts))) - set(here))
            self._texts = [self._texts[place] for place in here]
        texts = [*self._texts, *new]
        try:
            self._writing.step()
            if new:
                self._writing.add([text.row for text in new])
            for text in texts:
                text.tell()
        except Exception as error:
            for text in texts:
                text.tell(error)
            self._writing, self._texts = Writing(self._writing.stepper), []
            return len(texts)
        self._texts = [text for text in texts if text.row.ended is None]
        return len(texts)
