"""The context of a request: it finds the pipeline, checks limits, and runs the items."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from bertkit.errors import BertkitError, CheckpointError, SearchError
from bertkit.extensions.serving.batcher import Batcher, Full
from bertkit.extensions.serving.errors import busy, too_much
from bertkit.extensions.serving.fair_queue import Client
from bertkit.extensions.serving.limits import ApiKeyState, Limits
from bertkit.extensions.serving.memory_budget import (
    BYTES_PER_READ_TOKEN,
    BYTES_PER_TOKEN,
    Budget,
    pieces,
)
from bertkit.extensions.serving.models import ModelRegistry
from bertkit.extensions.serving.request_bodies import decode_form
from bertkit.pipelines import Pipeline
from bertkit.web import Ask, RequestError, invalid

READERS = ThreadPoolExecutor(1, "reading")
"""Thread that encodes long texts. With more threads, the event loop and the models wait longer for
the GIL, and fewer requests are served."""

INLINE_TOKENS = 1_000
"""Tokens that are encoded on the event loop; more go to a thread, so that others are served."""

TOKENS_AT_ONCE = 1 << 17
"""Tokens that a thread encodes at a time, or those of one item: this bounds its memory."""

T = TypeVar("T")


def refusal(error: BertkitError | RequestError) -> RequestError:
    """Return the error of the response to a request that raises this error."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, Full):
        return busy(error.seconds, str(error))
    if isinstance(error, CheckpointError | SearchError):  # whatever is asked
        return RequestError(503, "unhealthy", str(error))
    return invalid(str(error))


class RequestContext:
    """A request, with the models, the queue, and the limits of the server; see `web.Context`."""

    def __init__(self, request: Request) -> None:
        self.state: dict[str, Any] = request.scope["state"]
        self.id: str = self.state["id"]
        self.app: Starlette = request.app
        self.path_params = request.path_params
        self.registry: ModelRegistry = self.app.state.registry
        self.batcher: Batcher = self.app.state.batcher
        self.limits: Limits = self.app.state.limits
        self.budget: Budget = self.state["budget"]
        self.client: Client = self.state["client"]
        self.models, self.form = self.registry.supporting, decode_form

    def pipeline(self, ability: str, model: str | None) -> tuple[str, Pipeline]:
        """Return the name of a model, and its pipeline; see `web.Context`."""
        pipelines = self.registry.supporting(ability)
        if not pipelines:
            raise RequestError(404, "not_found", "no model here answers this")
        name = next(iter(pipelines)) if model is None else model
        if name not in pipelines:
            known = ", ".join(pipelines)
            raise invalid(
                f"no model {name[:80]!r} answers this; there is {known} (to serve one by another "
                "name: bertkit serve NAME=FOLDER)",
                "model",
            )
        return name, pipelines[name]

    async def answers(
        self,
        pipeline: Pipeline,
        items: Sequence[Any],
        *,
        field: str,
        ask: Ask | None = None,
        **options: Any,
    ) -> tuple[list[Any], list[bool]]:
        """Return a prediction per item, and whether each item was truncated.

        Raises:
            RequestError: If the items exceed a limit, or are too long and may not be truncated.
            Full: If the queue has no space.
        """
        truncate: bool | None = getattr(ask, "truncate", None)
        direction: str = getattr(ask, "truncation_direction", "right")
        sizes = self.check(items, field)
        self.batcher.room(client=self.client)  # before the work of tokenizing
        policies = pipeline.policies
        if truncate and "truncate" not in policies:
            why = "long texts are read in windows" if "window" in policies else "no text is cut"
            raise invalid(f"{why} here; leave truncate out", "truncate")
        if truncate is None:
            usual = policies[0] == "error" and "truncate" in policies
            truncate = self.limits.truncate and usual
        strict = policies[0] == "error" and not truncate
        long = "truncate" if truncate or strict else policies[0]

        prepare = partial(pipeline.prepare, long=long, **options)
        works = await self.read(items, sizes, prepare, lambda work: work.tokens)
        cut = [work.truncated for work in works]
        if strict and any(cut):
            place = cut.index(True)
            length = max(one.tokens for one in works[place].features)
            raise invalid(
                f"longer than the {length} tokens that the model reads; shorten it, or ask for "
                "truncate (bertkit serve --truncate does for all)",
                f"{field}.{place}" if len(cut) > 1 else field,
            )
        if any(cut) and direction.lower() != "right":
            message = "texts are truncated on the right only; shorten the text, or leave it out"
            raise invalid(message, "truncation_direction")
        tokens = sum(work.tokens for work in works)
        self.batcher.room(tokens, self.client)  # who has to come again is not charged
        self.hold(sum(work.answer_bytes for work in works))
        self.charge(tokens, len(works))
        return await self.batcher.answers(pipeline, works, client=self.client), cut

    async def read(
        self,
        items: Sequence[Any],
        sizes: Sequence[int],
        prepare: Callable[[Sequence[Any]], list[T]],
        tokens: Callable[[T], int],
    ) -> list[T]:
        """`prepare` of the items, part by part, in a thread if they are long.

        The memory is reserved first; the part for the results stays reserved for the request.

        Raises:
            RequestError: If the queue or the memory has no space for the tokens.
        """
        most, total = self.limits.queue_tokens, sum(sizes)
        taken = BYTES_PER_READ_TOKEN * min(
            total, max(TOKENS_AT_ONCE, *sizes)
        ) + BYTES_PER_TOKEN * min(total, most)
        gone = threading.Event()

        def parts() -> list[T]:
            results: list[T] = []
            read = begin = 0
            while begin < len(items) and not gone.is_set():
                end, size = begin + 1, sizes[begin]
                while end < len(items) and size + sizes[end] <= TOKENS_AT_ONCE:
                    size += sizes[end]
                    end += 1
                more = prepare(items[begin:end])
                read += sum(map(tokens, more))
                if read > most:
                    raise too_much(
                        f"more than {most:,} tokens, which are the most (bertkit serve "
                        "--queue-tokens); send fewer or shorter texts at once"
                    )
                results += more
                begin = end
            return results

        self.budget.take(taken)
        if total <= INLINE_TOKENS:
            try:
                results = parts()
            finally:
                self.budget.give(taken)
        else:
            reading = asyncio.get_running_loop().run_in_executor(READERS, parts)
            # a thread goes on when who asked is gone
            reading.add_done_callback(lambda _: self.budget.read(taken))
            try:
                results = await asyncio.shield(reading)
            finally:
                gone.set()
        self.hold(BYTES_PER_TOKEN * sum(map(tokens, results)))
        return results

    def hold(self, count: int) -> None:
        """Reserve memory until the request is answered. Raises: RequestError for too much."""
        self.budget.take(count)
        self.state["held"] += count

    def check(self, items: Sequence[Any], field: str) -> list[int]:
        """Return the largest number of tokens of each item.

        Raises:
            RequestError: If a text or the list is too long.
        """
        if len(items) > self.limits.items:
            raise too_much(f"{len(items)} items, and {self.limits.items} are the most", field)
        most, sizes = self.limits.text_characters, []
        for place, item in enumerate(items):
            texts = strings(item)
            if len(texts) > self.limits.queue_tokens:  # each has a token at least
                raise too_much(
                    f"{len(texts):,} texts, and {self.limits.queue_tokens:,} tokens are the most",
                    f"{field}.{place}",
                )
            long = max(map(len, texts), default=0)
            if long > most:
                raise too_much(
                    f"a text of {long:,} characters, and {most:,} are the most",
                    f"{field}.{place}",
                )
            sizes.append(pieces(item))
        return sizes

    def charge(self, tokens: int, items: int) -> None:
        """Charge tokens to the key. Raises: RequestError where it has too few left."""
        if tokens > self.limits.queue_tokens:
            raise too_much(f"{tokens:,} tokens, and {self.limits.queue_tokens:,} are the most")
        who: ApiKeyState = self.state["who"]
        wait = who.tokens.take(tokens)
        if wait:
            raise busy(wait, f"this key has had its tokens of a minute; again in {wait} s")
        self.state["tokens"] += tokens
        self.state["items"] += items

    def reply(self, answer: Any, truncated: Sequence[bool] = ()) -> Response:
        """Return a JSON response; the header x-truncated lists the items that were truncated."""
        places = ",".join(str(place) for place, short in enumerate(truncated) if short)
        headers = {"x-truncated": places} if places else {}
        body = msgspec.json.encode(answer)
        return Response(body, media_type="application/json", headers=headers)

    def stream(self, events: AsyncIterator[bytes]) -> Response:
        """Return a response of server-sent events."""
        return StreamingResponse(events, media_type="text/event-stream")


def strings(item: Any) -> list[str]:
    """Return the texts of an item, which may be a pair, or a text and choices."""
    match item:
        case str():
            return [item] if item else []
        case None | int() | float():
            return []
        case msgspec.Struct():
            return strings(msgspec.structs.astuple(item))
    return [text for part in item for text in strings(part)]
