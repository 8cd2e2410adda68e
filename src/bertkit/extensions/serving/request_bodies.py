"""Requests from their bodies: fields of the OpenAI and TEI specifications that change nothing are
removed, and errors name their field."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec

from bertkit.errors import did_you_mean
from bertkit.extensions.serving import schema
from bertkit.extensions.serving.errors import Refused, invalid

MAX_MESSAGE_CHARACTERS = 200
"""Characters of a message that may repeat what was sent."""

SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""Half of a pair; msgspec's message for one without the other is about something else."""

TOKEN_IDS = re.compile(r"Expected `str`, got `(int|array)` - at `\$\.input\[")
"""What msgspec says of them; OpenAI's server takes [1, 2] and [[1, 2], [3]] in place of texts."""

ANY = object()
"""Stands for every value of a field that never changes an answer."""

Neutral = Mapping[str, tuple[Any, ...]]
"""Unsupported fields, each with the values that change nothing; null always changes nothing."""

GENERATION: Neutral = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
}

COMPLETION: Neutral = {
    **GENERATION,
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (),
    "suffix": ("",),
}

CHAT: Neutral = {
    **GENERATION,
    "audio": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logprobs": (False,),
    "metadata": (ANY,),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (ANY,),
    "prediction": (),
    "prompt_cache_key": (ANY,),
    "prompt_cache_options": (ANY,),
    "prompt_cache_retention": (ANY,),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "safety_identifier": (ANY,),
    "service_tier": (ANY,),
    "store": (False,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
    "web_search_options": (),
}

MESSAGES: Neutral = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "name": (),
    "refusal": (),
    "tool_calls": ([],),
}
"""Fields of a message, which clients copy from an answer."""

NEUTRAL: Mapping[type[schema.Ask], Neutral] = {
    schema.CompletionAsk: COMPLETION,
    schema.ChatAsk: CHAT,
    schema.PredictAsk: {"raw_scores": (False,)},
    schema.TokenizeAsk: {"prompt_name": ()},
}
"""By type of request. Sources: the OpenAI API reference, and openapi.json of
text-embeddings-inference 1.8."""

A = TypeVar("A", bound=schema.Ask)


def decode(kind: type[A], body: bytes) -> A:
    """Decode a request. Raises: Refused with the field of the first error."""
    try:
        data = msgspec.json.decode(body)
        if isinstance(data, dict):
            data = _without_neutral(kind, data)
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        refused = refused_by(str(error), kind)
        if kind is schema.OpenAIAsk and TOKEN_IDS.match(str(error)):
            refused = invalid(
                "token ids are of another model's vocabulary, and would give wrong vectors; send "
                "texts (LangChain: OpenAIEmbeddings(check_embedding_ctx_length=False))",
                refused.field,
            )
        raise refused from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        half = SURROGATE.search(body) and "perhaps half of a surrogate pair, which is no character"
        raise invalid(f"no JSON: {half or error}") from None


def _without_neutral(kind: type[schema.Ask], data: dict[str, Any]) -> dict[str, Any]:
    """Remove fields that change nothing, and move `parameters` to the top."""
    parameters = data.get("parameters")
    if isinstance(parameters, dict):
        data = {**parameters, **{name: data[name] for name in data if name != "parameters"}}
    data = _select(data, NEUTRAL.get(kind, {}), _optional(kind))
    if kind is schema.ChatAsk and isinstance(data.get("messages"), list):
        data["messages"] = [
            _message(message, f"messages.{index}.") if isinstance(message, dict) else message
            for index, message in enumerate(data["messages"])
        ]
    return data


@cache
def _optional(kind: type[schema.Ask]) -> frozenset[str]:
    """Return the fields of a request that have a default.

    Cached, because msgspec evaluates annotations in each call.
    """
    return frozenset(f.encode_name for f in msgspec.structs.fields(kind) if not f.required)


def _select(
    data: dict[str, Any], neutral: Neutral, optional: frozenset[str], where: str = ""
) -> dict[str, Any]:
    """The fields that mean something. Raises: Refused for an unsupported field with a value."""
    fields = {}
    for name, value in data.items():
        if value is None and (name in optional or name in neutral):
            continue
        if name not in neutral:
            fields[name] = value
        elif not any(one is ANY or _equal(value, one) for one in neutral[name]):
            raise invalid("this field is not supported here; leave it out", f"{where}{name}")
    return fields


def _equal(value: Any, neutral: Any) -> bool:
    """Whether two JSON values are equal; false is not 0."""
    return isinstance(value, bool) == isinstance(neutral, bool) and bool(value == neutral)


def _message(message: dict[str, Any], where: str) -> dict[str, Any]:
    """A message of a chat: the role developer is the newer name of system, and parts that are
    texts are joined."""
    message = _select(message, MESSAGES, frozenset(), where)
    for name in message:
        if name not in ("role", "content"):
            raise invalid("this field is not supported here; leave it out", f"{where}{name[:80]}")
    if message.get("role") == "developer":
        message["role"] = "system"
    parts = message.get("content")
    if isinstance(parts, list) and all(map(_is_text, parts)):
        message["content"] = "".join(part["text"] for part in parts)
    return message


def _is_text(part: Any) -> bool:
    """Whether a part of a content is a text."""
    return (
        isinstance(part, dict)
        and part.keys() == {"type", "text"}
        and part["type"] == "text"
        and isinstance(part["text"], str)
    )


def refused_by(error: str, kind: type[schema.Body]) -> Refused:
    """msgspec's message about a request of this kind as ours."""
    text, _, path = error.partition(" - at `$")
    path = re.sub(r"\[(\d+)\]", r".\1", path.rstrip("`"))
    if unknown := re.match(r"Object contains unknown field `(.*)`", text, re.DOTALL):
        name = unknown[1][:80]
        known = _fields(schema.Body) if path else kind.__struct_encode_fields__
        hint = did_you_mean(name, known)
        if path and not hint.endswith("?"):
            hint = "/openapi.json lists them"
        return invalid(f"no such field; {hint}", name)
    if missing := re.match(r"Object missing required field `(.*)`", text):
        text, path = "This field is required", f"{path}.{missing[1]}"
    return invalid(f"{text[0].lower()}{text[1:MAX_MESSAGE_CHARACTERS]}", path.strip(".") or None)


def _fields(kind: type[schema.Body]) -> set[str]:
    """The fields of a request type and its subclasses."""
    inner = (name for sub in kind.__subclasses__() for name in _fields(sub))
    return {*kind.__struct_fields__, *inner}
