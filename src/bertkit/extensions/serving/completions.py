"""The routes of models that write, as OpenAI's clients ask them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from starlette.responses import Response, StreamingResponse

from bertkit.extensions.generation.chat_format import Message
from bertkit.extensions.generation.pipeline import Generate, Prompt, merge_decoding
from bertkit.extensions.serving import schema
from bertkit.extensions.serving.continuous_batching import LiveText
from bertkit.extensions.serving.request_context import RequestContext, reply
from bertkit.models.decoding import Decoding

USUAL_TOKENS = 256
"""A text is cut after so many, where the request does not say."""


async def completions(ask: schema.CompletionAsk, context: RequestContext) -> Response:
    """What a model writes behind a prompt, as OpenAI's clients ask for it."""
    prompts = [ask.prompt] if isinstance(ask.prompt, str) else ask.prompt
    sizes = context.check(prompts, "prompt")
    name, texts = await _begin(ask, context, "write", prompts, sizes)

    def choice(index: int, text: str, reason: str | None) -> Any:
        return schema.Choice(index=index, text=text, finish_reason=reason)

    head = {"id": f"cmpl-{context.state['id']}", "object": "text_completion", "model": name}
    if ask.stream:
        return await _stream(ask, context, texts, head, choice, [])
    return await _whole(context, texts, head, choice, schema.Completion)


async def chat_completions(ask: schema.ChatAsk, context: RequestContext) -> Response:
    """A model's next turn in a conversation, as OpenAI's clients ask for it."""
    sizes = context.check([message.content for message in ask.messages], "messages")
    name, texts = await _begin(ask, context, "chat", [ask.messages], [sum(sizes)])

    def whole(index: int, text: str, reason: str | None) -> Any:
        message = Message("assistant", text)
        return schema.ChatChoice(index=index, message=message, finish_reason=reason)

    def part(index: int, text: str, reason: str | None) -> Any:
        return {"index": index, "delta": {"content": text}, "finish_reason": reason}

    role = {"role": "assistant", "content": ""}
    roles = [{"index": index, "delta": role, "finish_reason": None} for index in range(len(texts))]

    head = {"id": f"chatcmpl-{context.state['id']}", "object": "chat.completion", "model": name}
    if ask.stream:
        chunk = {**head, "object": "chat.completion.chunk"}
        return await _stream(ask, context, texts, chunk, part, roles)
    return await _whole(context, texts, head, whole, schema.ChatCompletion)


async def translate(ask: schema.TranslateAsk, context: RequestContext) -> Response:
    """Texts in another language, or what else a model with an encoder makes of them."""
    one = isinstance(ask.inputs, str)
    texts = [ask.inputs] if isinstance(ask.inputs, str) else ask.inputs
    _, pipeline = context.pipeline("translate", ask.model)
    answers, _ = await context.answers(pipeline, texts, field="inputs", beams=ask.beams)
    bare = [msgspec.structs.replace(answer, each=[]) for answer in answers]
    return reply(bare[0] if one else bare)


async def _begin(
    ask: schema.WriteAsk,
    context: RequestContext,
    ability: str,
    prompts: Sequence[Prompt],
    sizes: Sequence[int],
) -> tuple[str, list[LiveText]]:
    """The model's name, and the texts that it has begun to write: `n` for each prompt.

    Raises: Refused for what is too much, DataError for a prompt that fills the model.
    """
    name, pipeline = context.pipeline(ability, ask.model)
    assert isinstance(pipeline, Generate)
    context.batcher.room(client=context.client)
    stop = [ask.stop] if isinstance(ask.stop, str) else ask.stop
    rules = pipeline.rules(prompts, stop)
    decoding = _decoding(ask, pipeline)
    read = await context.read(prompts, sizes, pipeline.requests, lambda one: one.tokens)
    requests = [replace(request, number=number) for request in read for number in range(ask.n)]
    texts = [
        LiveText(pipeline, request, decoding, rules, stop, context.client) for request in requests
    ]
    cost = sum(text.cost for text in texts)
    context.batcher.room(cost, context.client)
    context.charge(cost, len(texts))
    context.batcher.write(pipeline, texts)
    return name, texts


def _decoding(ask: schema.WriteAsk, pipeline: Generate) -> Decoding:
    """Return the settings of the model directory, changed by those of the request.

    Raises: ConfigError for settings that cannot be combined.
    """
    base = pipeline.loaded.generation.decoding
    base = msgspec.structs.replace(base, beams=1, best=1, temperature=base.temperature or 1.0)
    given = {
        "max_tokens": ask.max_completion_tokens or ask.max_tokens,
        **{name: getattr(ask, name) for name in ("temperature", "top_p", "top_k", "min_p", "seed")},
    }
    changes = {name: value for name, value in given.items() if value is not None}
    return merge_decoding(base, {"max_tokens": base.max_tokens or USUAL_TOKENS, **changes})


def _reason(ended: str) -> str:
    return "length" if ended == "length" else "stop"


def _usage(texts: Sequence[LiveText], written: int) -> schema.WrittenUsage:
    read = sum(text.tokens for text in texts)
    return schema.WrittenUsage(read, written, read + written)


async def _whole(
    context: RequestContext,
    texts: Sequence[LiveText],
    head: dict[str, Any],
    choice: Callable[[int, str, str | None], Any],
    answer: Callable[..., Any],
) -> Response:
    choices, written = [], 0
    try:
        for index, text in enumerate(texts):
            pieces = [piece async for piece in text.pieces()]
            last = pieces[-1]
            assert last.ended is not None
            whole = "".join(piece.text for piece in pieces)
            choices.append(choice(index, whole, _reason(last.ended)))
            written += last.tokens
    finally:
        context.batcher.leave(texts)
    usage = _usage(texts, written)
    return reply(answer(**head, created=int(time.time()), choices=choices, usage=usage))


async def _stream(
    ask: schema.WriteAsk,
    context: RequestContext,
    texts: Sequence[LiveText],
    head: dict[str, Any],
    choice: Callable[[int, str, str | None], Any],
    first_choices: Sequence[Any],
) -> Response:
    """The texts, one after the other, as events of a server, after the first choices.

    The response starts when the model has generated something; until then it can be a refusal.
    """
    head = {**head, "created": int(time.time())}

    def event(content: Any) -> bytes:
        return b"data: " + msgspec.json.encode({**head, **content}) + b"\n\n"

    async def events() -> AsyncGenerator[bytes]:
        written = 0
        try:
            for index, text in enumerate(texts):
                async for piece in text.pieces():
                    if piece.text:
                        yield event({"choices": [choice(index, piece.text, None)]})
                    if piece.ended is not None:
                        yield event({"choices": [choice(index, "", _reason(piece.ended))]})
                        written += piece.tokens
            if ask.stream_options is not None and ask.stream_options.include_usage:
                yield event({"choices": [], "usage": _usage(texts, written)})
            yield b"data: [DONE]\n\n"
        finally:
            context.batcher.leave(texts)

    rest = events()
    first = await anext(rest)

    async def body() -> AsyncIterator[bytes]:
        async with contextlib.aclosing(rest):
            for one in first_choices:
                yield event({"choices": [one]})
            yield first
            async for one in rest:
                yield one

    return StreamingResponse(body(), media_type="text/event-stream")
