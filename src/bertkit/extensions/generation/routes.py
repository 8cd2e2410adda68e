"""Server routes that generate text: completions and chat as in OpenAI's API, and translation."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from bertkit.checkpoint.directory import Loaded
from bertkit.errors import DataError, TokenizerError
from bertkit.extensions.generation import openai_types as types
from bertkit.extensions.generation.chat_format import ChatFormat, Message
from bertkit.extensions.generation.continuous_batching import LiveText
from bertkit.extensions.generation.decoding import Decoding
from bertkit.extensions.generation.pipeline import Generate, GeneratedText, Prompt, merge_decoding
from bertkit.pipelines.supported import SupportedPipelines
from bertkit.tasks import task_name_of
from bertkit.view.figures import Figure, Share, Table
from bertkit.web import Context, Panel, Route

DEFAULT_TOKENS = 256
"""Default maximum number of tokens to generate for a text."""

Choose = Callable[[int, str, str | None], Any]
"""Function that builds a choice of the response from its index, its text, and the reason why the
text ended (None if it continues)."""

PANEL_TOKENS = 100
"""Maximum number of tokens to generate for a text that a web page shows."""


async def completions(ask: types.CompletionAsk, context: Context) -> Any:
    """Continue prompts, as in OpenAI's API."""
    prompts = [ask.prompt] if isinstance(ask.prompt, str) else ask.prompt
    sizes = context.check(prompts, "prompt")
    name, texts = await _begin(ask, context, "write", prompts, sizes)

    def choice(index: int, text: str, reason: str | None) -> Any:
        return types.Choice(index=index, text=text, finish_reason=reason)

    head = {"id": f"cmpl-{context.id}", "object": "text_completion", "model": name}
    if ask.stream:
        return await _stream(ask, context, texts, head, choice, [])
    return await _whole(ask, context, texts, head, choice)


async def chat_completions(ask: types.ChatAsk, context: Context) -> Any:
    """Generate the next message of a conversation, as in OpenAI's API."""
    sizes = context.check([message.content for message in ask.messages], "messages")
    name, texts = await _begin(ask, context, "chat", [ask.messages], [sum(sizes)])

    def whole(index: int, text: str, reason: str | None) -> Any:
        message = Message("assistant", text)
        return types.ChatChoice(index=index, message=message, finish_reason=reason)

    def part(index: int, text: str, reason: str | None) -> Any:
        return {"index": index, "delta": {"content": text}, "finish_reason": reason}

    role = {"role": "assistant", "content": ""}
    roles = [{"index": index, "delta": role, "finish_reason": None} for index in range(len(texts))]

    head = {"id": f"chatcmpl-{context.id}", "object": "chat.completion", "model": name}
    if ask.stream:
        chunk = {**head, "object": "chat.completion.chunk"}
        return await _stream(ask, context, texts, chunk, part, roles)
    return await _whole(ask, context, texts, head, whole)


async def translate(ask: types.TranslateAsk, context: Context) -> Any:
    """Translate texts, or run another task that an encoder-decoder model was trained on."""
    is_single = isinstance(ask.inputs, str)
    texts = [ask.inputs] if isinstance(ask.inputs, str) else ask.inputs
    _, pipeline = context.pipeline("translate", ask.model)
    answers, _ = await context.answers(pipeline, texts, field="inputs", num_beams=ask.num_beams)
    bare = [msgspec.structs.replace(answer, each=[]) for answer in answers]
    return context.reply(bare[0] if is_single else bare)


async def _begin(
    ask: types.GenerationAsk,
    context: Context,
    ability: str,
    prompts: Sequence[Prompt],
    sizes: Sequence[int],
) -> tuple[str, list[LiveText]]:
    """Queue `n` texts per prompt for generation.

    Returns:
        The name of the model, and the texts that are being generated.

    Raises:
        RequestError: If the request exceeds a limit.
        DataError: If a prompt leaves no space for new tokens.
    """
    name, pipeline = context.pipeline(ability, ask.model)
    assert isinstance(pipeline, Generate)
    context.batcher.room(client=context.client)
    stop = [ask.stop] if isinstance(ask.stop, str) else ask.stop
    rules = pipeline.rules(prompts, stop)
    decoding = _decoding(ask, pipeline)
    read = await context.read(prompts, sizes, pipeline.requests, lambda request: request.tokens)
    requests = [replace(request, number=number) for request in read for number in range(ask.n)]
    texts = [
        LiveText(pipeline, request, decoding, rules, stop, context.client) for request in requests
    ]
    cost = sum(text.cost for text in texts)
    context.batcher.room(cost, context.client)
    context.charge(cost, len(texts))
    context.batcher.write(pipeline, texts)
    return name, texts


def _decoding(ask: types.GenerationAsk, pipeline: Generate) -> Decoding:
    """Return the decoding settings of the model directory, with the changes of the request.

    Raises:
        ConfigError: If settings cannot be combined.
    """
    base = pipeline.loaded.generation.decoding
    base = msgspec.structs.replace(
        base, num_beams=1, num_return_sequences=1, temperature=base.temperature or 1.0
    )
    options = {
        "max_tokens": ask.max_completion_tokens or ask.max_tokens,
        **{name: getattr(ask, name) for name in ("temperature", "top_p", "top_k", "min_p", "seed")},
    }
    changes = {name: value for name, value in options.items() if value is not None}
    return merge_decoding(base, {"max_tokens": base.max_tokens or DEFAULT_TOKENS, **changes})


def _reason(ended: str) -> str:
    return "length" if ended == "length" else "stop"


def _usage(texts: Sequence[LiveText], number: int, generated: int) -> types.CompletionUsage:
    """Return the token counts of a response with `number` texts per prompt."""
    prompt = sum(text.tokens for text in texts) // number
    return types.CompletionUsage(prompt, generated, prompt + generated)


async def _whole(
    ask: types.GenerationAsk,
    context: Context,
    texts: Sequence[LiveText],
    head: dict[str, Any],
    choice: Choose,
) -> Any:
    choices, generated = [], 0
    try:
        for index, text in enumerate(texts):
            parts = [part async for part in text.parts()]
            last = parts[-1]
            assert last.ended is not None
            content = "".join(part.text for part in parts)
            choices.append(choice(index, content, _reason(last.ended)))
            generated += last.tokens
    finally:
        context.batcher.leave(texts)
    head = {**head, "created": int(time.time())}
    answer = types.Completion(**head, choices=choices, usage=_usage(texts, ask.n, generated))
    return context.reply(answer)


async def _stream(
    ask: types.GenerationAsk,
    context: Context,
    texts: Sequence[LiveText],
    head: dict[str, Any],
    choice: Choose,
    first_choices: Sequence[Any],
) -> Any:
    """Stream the first choices, then the texts one after another, as server-sent events.

    The response starts after the first part of a text is generated. If an error occurs before that,
    the response is an error response instead of a stream.
    """
    head = {**head, "created": int(time.time())}

    def event(content: Any) -> bytes:
        return b"data: " + msgspec.json.encode({**head, **content}) + b"\n\n"

    async def events() -> AsyncGenerator[bytes]:
        generated = 0
        try:
            for index, text in enumerate(texts):
                async for part in text.parts():
                    if part.text:
                        yield event({"choices": [choice(index, part.text, None)]})
                    if part.ended is not None:
                        yield event({"choices": [choice(index, "", _reason(part.ended))]})
                        generated += part.tokens
            if ask.stream_options is not None and ask.stream_options.include_usage:
                yield event({"choices": [], "usage": _usage(texts, ask.n, generated)})
            yield b"data: [DONE]\n\n"
        finally:
            context.batcher.leave(texts)

    rest = events()
    first = await anext(rest)

    async def body() -> AsyncIterator[bytes]:
        async with contextlib.aclosing(rest):
            for first_choice in first_choices:
                yield event({"choices": [first_choice]})
            yield first
            async for following in rest:
                yield following

    return context.stream(body())


# ---- Panels


def text_figure(answered: Sequence[GeneratedText], text: str, other: str) -> Figure:
    """Return a figure that shows a generated text and the probability of each token."""
    (generated,) = answered
    note = " (truncated)" if generated.ended == "length" else ""
    rows = [(repr(token.text)[1:-1], Share(token.probability)) for token in generated.each]
    table = Table("Probability of each token", rows, ("token", "probability"))
    return Figure("Text", f"{generated.text}{note}", [table])


def conversation(text: str, before: str) -> list[Message]:
    """Build a conversation from the user's last message and the messages before it.

    Args:
        text: The user's last message.
        before: Previous messages, one per line: by the user, the model, the user, and so on.

    Raises:
        DataError: If the last of the previous messages is not from the model.
    """
    lines = [line.strip() for line in before.splitlines() if line.strip()]
    if len(lines) % 2:
        raise DataError("previous messages: must end with the model's; remove the last message")
    messages = [Message("assistant" if i % 2 else "user", line) for i, line in enumerate(lines)]
    return [*messages, Message("user", text)]


def chat_pipeline(model: SupportedPipelines) -> Generate | None:
    """Return the pipeline of a chat model, or None if the model does not support conversations."""
    writer = model.pipelines.get("write")
    if not isinstance(writer, Generate):
        return None
    task = task_name_of(writer.loaded.settings, writer.loaded.model.heads)
    return writer if task in ("chat", "dpo") or _has_template(writer.loaded) else None


def _has_template(loaded: Loaded) -> bool:
    """Return whether the tokenizer has a supported chat template."""
    try:
        return ChatFormat(loaded.tokenizer).kind != "plain"
    except TokenizerError:
        return False


COMPLETIONS = Route(
    "/v1/completions",
    completions,
    types.Completion[types.Choice],
    types.CompletionAsk,
    "write",
    panel=Panel(
        "Text generation",
        "Start of a text",
        text_figure,
        Generate.run,
        options={"max_tokens": PANEL_TOKENS},
        example=("the beginning of a story", "Once upon a time"),
    ),
)

CHAT_COMPLETIONS = Route(
    "/v1/chat/completions",
    chat_completions,
    types.Completion[types.ChatChoice],
    types.ChatAsk,
    "chat",
    pipelines={"chat": chat_pipeline},
    panel=Panel(
        "Chat",
        "Your message",
        text_figure,
        Generate.run,
        other="Previous messages, one per line: you, the model, you, …",
        items=lambda text, other: [conversation(text, other)],
        options={"max_tokens": PANEL_TOKENS},
        example=("a question", "What is the capital of France?"),
    ),
)

TRANSLATION = Panel(
    "Translation or summary",
    "Text",
    text_figure,
    Generate.run,
    example=("a short sentence", "A man reads a book."),
)

TRANSLATE = Route(
    "/translate",
    translate,
    GeneratedText,
    types.TranslateAsk,
    "translate",
    many=True,
    panel=TRANSLATION,
)
