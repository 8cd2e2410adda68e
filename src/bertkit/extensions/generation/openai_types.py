"""Request and response types of the routes that generate text, named as in OpenAI's API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import msgspec
from msgspec import Meta

from bertkit.config import Count
from bertkit.extensions.generation.chat_format import Message
from bertkit.tasks.task import JsonObject
from bertkit.web import ANY, Ask, Neutral, Text, Texts, invalid

GENERATION: Neutral = {"frequency_penalty": (0,), "presence_penalty": (0,), "logit_bias": ({},)}

COMPLETION: Neutral = {
    **GENERATION,
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (),
    "suffix": ("",),
}

CHAT: Neutral = {
    **GENERATION,
    **dict.fromkeys(("audio", "moderation", "prediction", "web_search_options"), ()),
    **dict.fromkeys(("metadata", "parallel_tool_calls", "safety_identifier"), (ANY,)),
    **dict.fromkeys(("prompt_cache_key", "prompt_cache_options", "service_tier"), (ANY,)),
    "prompt_cache_retention": (ANY,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logprobs": (False,),
    "modalities": (["text"],),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "store": (False,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
}

MESSAGES: Neutral = {
    **dict.fromkeys(("audio", "function_call", "name", "refusal"), ()),
    **dict.fromkeys(("annotations", "tool_calls"), ([],)),
}
"""Fields that clients copy from a response into the messages of a request."""

Select = Callable[..., dict[str, Any]]


class StreamOptions(JsonObject, frozen=True, kw_only=True):
    """Options of a streamed response."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    """Ignored."""


class GenerationAsk(Ask, frozen=True, kw_only=True):
    """Options that control how text is generated."""

    max_tokens: Count | None = None
    """Maximum number of tokens to generate. Default: the model's max_new_tokens, or 256."""
    max_completion_tokens: Count | None = None
    """Newer name of `max_tokens`, which takes precedence."""
    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] | None = None
    """Sampling temperature. 0 selects the most probable token. Default: the temperature in the
    model directory, or 1."""
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    top_k: Count | None = None
    min_p: Annotated[float, Meta(ge=0.0, lt=1.0)] | None = None
    seed: Annotated[int, Meta(ge=0)] | None = None
    """Random seed. Equal requests with equal seeds return the same text. Default: 0."""
    stop: Text | Annotated[list[Text], Meta(max_length=4)] = msgspec.field(default_factory=list)
    """Strings that end a text. The text does not contain them."""
    n: Annotated[int, Meta(ge=1, le=8)] = 1
    """Number of texts to generate for each prompt."""
    stream: bool = False
    """Whether to send the text in parts, as server-sent events."""
    stream_options: StreamOptions | None = None
    user: str | None = None
    """Ignored."""


class CompletionAsk(GenerationAsk, frozen=True, kw_only=True):
    """Request to continue prompts, in the format of OpenAI's API."""

    EXAMPLE: ClassVar = {"prompt": "Once upon a time", "max_tokens": 20}
    NEUTRAL: ClassVar[Neutral] = COMPLETION

    prompt: Texts


class ChatAsk(GenerationAsk, frozen=True, kw_only=True):
    """Request for the next message of a conversation, in the format of OpenAI's API."""

    EXAMPLE: ClassVar = {"messages": [{"role": "user", "content": "Who wrote Faust?"}]}
    NEUTRAL: ClassVar[Neutral] = CHAT

    messages: Annotated[list[Message], Meta(min_length=1)]

    @classmethod
    def convert(cls, body: dict[str, Any], select: Select) -> None:
        """Convert each message of a request to the two fields `role` and `content`."""
        messages = body.get("messages")
        for index, message in enumerate(messages if isinstance(messages, list) else []):
            if isinstance(message, dict):
                body["messages"][index] = _message(message, f"messages.{index}.", select)


def _message(message: dict[str, Any], where: str, select: Select) -> dict[str, Any]:
    """Convert a message to the fields `role` and `content`.

    The role developer becomes system, and the text parts of the content are joined.
    """
    message = select(message, MESSAGES, where=where)
    for name in message.keys() - {"role", "content"}:
        raise invalid("messages do not support this field; remove it", f"{where}{name[:80]}")
    if message.get("role") == "developer":
        message["role"] = "system"
    parts = message.get("content")
    if isinstance(parts, list) and all(map(_is_text, parts)):
        message["content"] = "".join(part["text"] for part in parts)
    return message


def _is_text(part: Any) -> bool:
    """Return whether a part of a message's content is a text part."""
    return (
        isinstance(part, dict)
        and part.keys() == {"type", "text"}
        and part["type"] == "text"
        and isinstance(part["text"], str)
    )


class TranslateAsk(Ask, frozen=True, kw_only=True):
    """Request to translate texts, or to run another task of an encoder-decoder model."""

    EXAMPLE: ClassVar = {"inputs": "Guten Morgen."}

    inputs: Texts
    num_beams: Annotated[int, Meta(ge=1, le=16)] | None = None
    """Number of beams. Default: the number in the settings of the model directory."""


# ---- Responses

C = TypeVar("C")


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """A generated text, and the reason why it ended: `stop`, or `length` if it was truncated."""

    index: int
    text: str
    finish_reason: str | None


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A generated message, and the reason why it ended: `stop`, or `length` if it was truncated."""

    index: int
    message: Message
    finish_reason: str | None


class CompletionUsage(msgspec.Struct, frozen=True):
    """Numbers of tokens in the prompts and in the generated texts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion(msgspec.Struct, Generic[C], frozen=True, kw_only=True):
    """Response with generated texts or messages, in the format of OpenAI's API."""

    id: str
    object: str
    created: int
    model: str
    choices: list[C]
    usage: CompletionUsage
