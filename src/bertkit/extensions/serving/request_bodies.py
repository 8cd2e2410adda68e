"""Requests from their bodies: fields of the OpenAI and TEI specifications that change nothing are
removed, and errors name their field.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec

from bertkit.errors import did_you_mean
from bertkit.extensions.serving import schema
from bertkit.tasks.task import JsonObject
from bertkit.web import ANY, Ask, Neutral, RequestError, invalid

MAX_MESSAGE_CHARACTERS = 200
"""Characters of a message that may repeat what was sent."""

SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""Half of a pair; msgspec's message for one without the other is about something else."""

TOKEN_IDS = re.compile(r"Expected `str`, got `(int|array)` - at `\$\.input\[")
"""What msgspec says of them; OpenAI's server takes [1, 2] and [[1, 2], [3]] in place of texts."""

A = TypeVar("A", bound=Ask)
S = TypeVar("S", bound=msgspec.Struct)


def decode(kind: type[A], body: bytes) -> A:
    """Decode a request. Raises: RequestError with the field of the first error."""
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


def decode_form(kind: type[S], values: Mapping[str, str]) -> S:
    """Convert the values of a form; empty values and unknown names are omitted.

    Raises:
        RequestError: If a value is invalid; the message contains the name of its field.
    """
    names = [one.name for one in msgspec.structs.fields(kind)]
    given = {name: values[name] for name in names if values.get(name, "").strip()}
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        refused = refused_by(str(error), kind)
        raise invalid(f"{refused.field}: {refused.message}", refused.field) from None


def _without_neutral(kind: type[Ask], data: dict[str, Any]) -> dict[str, Any]:
    """Return a body without the fields that change nothing, and with `parameters` at the top."""
    parameters = data.get("parameters")
    if isinstance(parameters, dict):
        data = {**parameters, **{name: data[name] for name in data if name != "parameters"}}
    data = select(data, kind.NEUTRAL, _optional(kind))
    kind.convert(data, select)
    return data


@cache
def _optional(kind: type[Ask]) -> frozenset[str]:
    """Return the fields of a request that have a default.

    Cached, because msgspec evaluates annotations in each call.
    """
    return frozenset(f.encode_name for f in msgspec.structs.fields(kind) if not f.required)


def select(
    data: dict[str, Any], neutral: Neutral, optional: Collection[str] = (), where: str = ""
) -> dict[str, Any]:
    """Return the fields of an object that have an effect.

    Raises:
        RequestError: If an unsupported field has a value that would change the response.
    """
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


def refused_by(error: str, kind: type[msgspec.Struct]) -> RequestError:
    """Return the error of a request or form of this type from an error message of msgspec."""
    text, _, path = error.partition(" - at `$")
    path = re.sub(r"\[(\d+)\]", r".\1", path.rstrip("`"))
    if unknown := re.match(r"Object contains unknown field `(.*)`", text, re.DOTALL):
        name = unknown[1][:80]
        known = _fields(JsonObject) if path else kind.__struct_encode_fields__
        hint = did_you_mean(name, known)
        if path and not hint.endswith("?"):
            hint = "/openapi.json lists them"
        return invalid(f"no such field; {hint}", name)
    if missing := re.match(r"Object missing required field `(.*)`", text):
        text, path = "This field is required", f"{path}.{missing[1]}"
    return invalid(f"{text[0].lower()}{text[1:MAX_MESSAGE_CHARACTERS]}", path.strip(".") or None)


def _fields(kind: type[JsonObject]) -> set[str]:
    """The fields of a request type and its subclasses."""
    inner = (name for sub in kind.__subclasses__() for name in _fields(sub))
    return {*kind.__struct_fields__, *inner}
