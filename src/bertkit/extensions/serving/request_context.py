"""Context of a request: it finds the pipeline, checks the limits, and runs the pipeline."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from bertkit.errors import BertkitError, CheckpointError, SearchError
from bertkit.extensions.serving.api_keys import ApiKeyState
from bertkit.extensions.serving.batcher import Batcher, Full
from bertkit.extensions.serving.errors import BACKEND, DEFECT, busy, too_much
from bertkit.extensions.serving.fair_queue import Client
from bertkit.extensions.serving.limits import Limits
from bertkit.extensions.serving.memory_budget import (
    BYTES_PER_READ_TOKEN,
    BYTES_PER_TOKEN,
    Budget,
    max_tokens,
)
from bertkit.extensions.serving.models import ModelRegistry
from bertkit.extensions.serving.request_bodies import decode_form
from bertkit.pipelines import Pipeline
from bertkit.pipelines.base import ModelPipeline
from bertkit.text.tokenizer import Tokenizer
from bertkit.web import Ask, RequestError, invalid

READERS = ThreadPoolExecutor(1, "reading")
"""The only thread that tokenizes long texts. With more threads, the event loop and the models would
wait longer for the GIL, and throughput would decrease."""

INLINE_TOKENS = 1_000
"""Maximum number of tokens to tokenize directly on the event loop. More tokens would block it too
long."""

PART_TOKENS = 1 << 17
"""Maximum number of tokens that the thread tokenizes at a time, unless a single item has more."""

T = TypeVar("T")


def request_error(error: Exception) -> RequestError:
    """Convert an exception that was raised while a request was handled to a RequestError.

    Args:
        error: The exception.
    """
    if isinstance(error, RequestError):
        return error
    if isinstance(error, Full):
        return busy(error.seconds, str(error))
    # These errors are not caused by the request.
    if isinstance(error, CheckpointError | SearchError):
        return RequestError(503, str(error))
    if isinstance(error, BertkitError):
        return invalid(str(error))
    if isinstance(error, HTTPException):
        is_missing = error.status_code == 404
        message = "route not found; /openapi.json lists all routes" if is_missing else error.detail
        return RequestError(error.status_code, message, headers=error.headers or ())
    return BACKEND if isinstance(error, ArithmeticError) else DEFECT


class RequestContext:
    """The server's models, queue and limits, as seen by one request; see `web.Context`."""

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
        """Find the model and pipeline to use for the request; see `web.Context`.

        Args:
            ability: Name of the pipeline.
            model: Name of the model. Default: the first model that supports the pipeline.

        Raises:
            RequestError: If there is no such model, or it does not support the pipeline.
        """
        pipelines = self.registry.supporting(ability)
        if not pipelines:
            raise RequestError(404, "none of this server's models supports this route; see /info")
        name = next(iter(pipelines)) if model is None else model
        if name not in pipelines:
            names = ", ".join(pipelines)
            raise RequestError(
                404,
                f"this server has no model {name[:80]!r} for this route; use {names}, or rename a "
                "model with bertkit serve NAME=MODEL",
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
        """Return the prediction for each item, and whether each item was truncated.

        Args:
            pipeline: The pipeline.
            items: Items to pass to the pipeline.
            field: Name of the request field that contains the items, for errors.
            ask: The request, if it is of a type that can set `truncate`.
            options: Options to pass to the pipeline.

        Raises:
            RequestError: If the items exceed a limit, or if one is too long and may not be
                truncated.
            Full: If the queue has no space.
        """
        truncate: bool | None = getattr(ask, "truncate", None)
        reader = _at_side(pipeline, getattr(ask, "truncation_direction", None))
        sizes = self.check(items, field)
        # Check the queue before the cost of tokenization is spent.
        self.batcher.room(client=self.client)
        policies = pipeline.policies
        if truncate and "truncate" not in policies:
            reason = "uses overlapping windows" if "window" in policies else "never truncates"
            raise invalid(f"this pipeline {reason}; remove the field truncate", "truncate")
        if truncate is None:
            can_truncate = policies[0] == "error" and "truncate" in policies
            truncate = self.limits.truncate and can_truncate
        strict = policies[0] == "error" and not truncate
        long = "truncate" if truncate or strict else policies[0]

        if isinstance(pipeline, ModelPipeline):
            count = pipeline.sequences_per_item(**options)
            sizes = [size * count for size in sizes]
        prepare = partial(reader.prepare, long=long, **options)
        works = await self.read(items, sizes, prepare, lambda work: work.tokens)
        cut = [work.truncated for work in works]
        if strict and any(cut):
            index = cut.index(True)
            length = max(feature.tokens for feature in works[index].features)
            raise too_much(
                f"the text exceeds the maximum of {length} tokens; shorten the text, or set "
                "truncate (for all requests: bertkit serve --truncate)",
                f"{field}.{index}" if len(cut) > 1 else field,
            )
        tokens = sum(work.tokens for work in works)
        # Check the queue before the rate limit, because a rejected request must not be charged.
        self.batcher.room(tokens, self.client)
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
        """Compute `prepare(items)` part by part. If the items are long, compute it in a thread.

        The memory that this needs is reserved first. The memory of the results stays reserved until
        the response is complete.

        Args:
            items: The items.
            sizes: Maximum number of tokens in each item, as returned by `check`.
            prepare: Function that takes a list of items and returns a result for each.
            tokens: Function that returns the number of tokens in a result.

        Raises:
            RequestError: If the tokens exceed the size of the queue, or not enough memory is left.
        """
        limit, total = self.limits.queue_tokens, sum(sizes)
        reserved = BYTES_PER_READ_TOKEN * min(
            total, max(PART_TOKENS, *sizes)
        ) + BYTES_PER_TOKEN * min(total, limit)
        cancelled = threading.Event()

        def parts() -> list[T]:
            results: list[T] = []
            num_tokens = begin = 0
            while begin < len(items) and not cancelled.is_set():
                end, size = begin + 1, sizes[begin]
                while end < len(items) and size + sizes[end] <= PART_TOKENS:
                    size += sizes[end]
                    end += 1
                more = prepare(items[begin:end])
                num_tokens += sum(map(tokens, more))
                if num_tokens > limit:
                    raise too_much(
                        f"the request exceeds the maximum of {limit:,} tokens (bertkit serve "
                        "--queue-tokens); send fewer or shorter texts"
                    )
                results += more
                begin = end
            return results

        self.budget.take(reserved)
        if total <= INLINE_TOKENS:
            try:
                results = parts()
            finally:
                self.budget.give(reserved)
        else:
            reading = asyncio.get_running_loop().run_in_executor(READERS, parts)
            # If the client disconnects, the thread continues, so release the memory only when it
            # finishes.
            reading.add_done_callback(lambda _: self.budget.read(reserved))
            # If nobody retrieved its exception, asyncio would log the exception's text.
            reading.add_done_callback(lambda done: done.exception())
            try:
                results = await asyncio.shield(reading)
            finally:
                cancelled.set()
        self.hold(BYTES_PER_TOKEN * sum(map(tokens, results)))
        return results

    def hold(self, count: int) -> None:
        """Reserve memory until the response is complete.

        Args:
            count: Number of bytes.

        Raises:
            RequestError: If not enough memory is left.
        """
        self.budget.take(count)
        self.state["held"] += count

    def check(self, items: Sequence[Any], field: str) -> list[int]:
        """Check the lengths of items, and return the largest number of tokens each can have.

        Args:
            items: The items.
            field: Name of the request field that contains the items, for errors.

        Raises:
            RequestError: If a text or the list is too long.
        """
        if len(items) > self.limits.items:
            raise too_much(f"{len(items)} items exceed the maximum of {self.limits.items}", field)
        limit, sizes = self.limits.text_characters, []
        for index, item in enumerate(items):
            texts = strings(item)
            # Each text has at least one token.
            if len(texts) > self.limits.queue_tokens:
                raise too_much(
                    f"{len(texts):,} texts exceed the maximum of {self.limits.queue_tokens:,} "
                    "tokens",
                    f"{field}.{index}",
                )
            long = max(map(len, texts), default=0)
            if long > limit:
                raise too_much(
                    f"a text has {long:,} characters, but the maximum is {limit:,}",
                    f"{field}.{index}",
                )
            sizes.append(max_tokens(item))
        return sizes

    def charge(self, tokens: int, items: int) -> None:
        """Charge tokens to the request's API key.

        Args:
            tokens: Number of tokens.
            items: Number of items, for the log.

        Raises:
            RequestError: If the tokens exceed the size of the queue or the rate limit of the key.
        """
        if tokens > self.limits.queue_tokens:
            raise too_much(f"{tokens:,} tokens exceed the maximum of {self.limits.queue_tokens:,}")
        who: ApiKeyState = self.state["who"]
        wait = who.tokens.take(tokens)
        if wait:
            raise busy(wait, f"the key reached its limit of tokens per minute; retry in {wait} s")
        self.state["tokens"] += tokens
        self.state["items"] += items

    def reply(self, answer: Any, truncated: Sequence[bool] = ()) -> Response:
        """Create a JSON response, whose header x-truncated lists the indices of truncated items.

        Args:
            answer: Content of the response, which is encoded as JSON.
            truncated: Whether each item was truncated.
        """
        indices = ",".join(str(index) for index, is_cut in enumerate(truncated) if is_cut)
        headers = {"x-truncated": indices} if indices else {}
        body = msgspec.json.encode(answer)
        return Response(body, media_type="application/json", headers=headers)

    def stream(self, events: AsyncIterator[bytes]) -> Response:
        """Create a response that streams server-sent events.

        Args:
            events: The encoded events.
        """
        return StreamingResponse(events, media_type="text/event-stream")


def _at_side(pipeline: Any, direction: str | None) -> Any:
    """Return a copy of a pipeline that truncates long texts at the given end."""
    side = (direction or "").lower()
    # Subclasses of Tokenizer, such as ELMo's, cannot do this, because they split a text into words.
    if type(getattr(pipeline, "tokenizer", None)) is not Tokenizer:
        if side == "left":
            message = "this model can truncate texts only on the right; use right"
            raise invalid(message, "truncation_direction")
    elif side:
        pipeline = copy.copy(pipeline)
        pipeline.tokenizer = copy.copy(pipeline.tokenizer)
        pipeline.tokenizer.truncation_side = side
    return pipeline


def strings(item: Any) -> list[str]:
    """Return all texts in an item.

    Args:
        item: A text, a pair, or a text with choices.
    """
    match item:
        case str():
            return [item] if item else []
        case None | int() | float():
            return []
        case msgspec.Struct():
            return strings(msgspec.structs.astuple(item))
    return [text for part in item for text in strings(part)]
