"""Decoding of request bodies, with errors that name the invalid field.

Fields that OpenAI or TEI specify, but that do not change the response, are removed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec

from bertkit.errors import did_you_mean
from bertkit.tasks.task import JsonObject
from bertkit.web import ANY, Ask, Neutral, RequestError, invalid

MAX_MESSAGE_CHARACTERS = 200
"""Maximum number of characters in an error message that may quote the request."""

SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""Pattern of an escaped surrogate. If one is not part of a pair, msgspec's error message is
misleading."""

A = TypeVar("A", bound=Ask)
S = TypeVar("S", bound=msgspec.Struct)


def decode(kind: type[A], body: bytes) -> A:
    """Decode a request.

    Args:
        kind: Type of the request.
        body: The request body.

    Raises:
        RequestError: If the body is invalid. The error names the first invalid field.
    """
    try:
        data = msgspec.json.decode(body)
        if isinstance(data, dict):
            data = _without_neutral(kind, data)
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise convert_error(str(error), kind) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = SURROGATE.search(body) and "perhaps a lone surrogate, which is not a character"
        raise invalid(f"invalid JSON ({reason or error})") from None


def decode_form(kind: type[S], values: Mapping[str, str]) -> S:
    """Convert form values to a settings or request object. Empty and unknown fields are ignored.

    The value of a list field contains the elements of the list, separated by commas.

    Args:
        kind: Type of the object to create.
        values: Values by field name.

    Raises:
        RequestError: If a value is invalid. The message names its field.
    """
    fields = [f for f in msgspec.structs.fields(kind) if values.get(f.name, "").strip()]
    present: dict[str, Any] = {field.name: values[field.name] for field in fields}
    for name in (field.name for field in fields if isinstance(field.default, tuple)):
        present[name] = [element.strip() for element in values[name].split(",")]
    try:
        return msgspec.convert(present, kind, strict=False)
    except msgspec.ValidationError as error:
        failure = convert_error(str(error), kind)
        raise invalid(f"{failure.field}: {failure.message}", failure.field) from None


def _without_neutral(kind: type[Ask], data: dict[str, Any]) -> dict[str, Any]:
    """Remove fields that have no effect, and move the fields in `parameters` to the top level."""
    parameters = data.get("parameters")
    if isinstance(parameters, dict):
        data = {**parameters, **{name: data[name] for name in data if name != "parameters"}}
    data = select(data, kind.NEUTRAL, _optional(kind))
    kind.convert(data, select)
    return data


@cache
def _optional(kind: type[Ask]) -> frozenset[str]:
    """Return the names of the request fields that have a default value.

    The result is cached, because msgspec evaluates the annotations in each call.
    """
    return frozenset(f.encode_name for f in msgspec.structs.fields(kind) if not f.required)


def select(
    data: dict[str, Any], neutral: Neutral, optional: Collection[str] = (), where: str = ""
) -> dict[str, Any]:
    """Return an object without those fields that have no effect.

    Args:
        data: The object.
        neutral: Unsupported fields, each with the values that have no effect.
        optional: Fields whose value may be null.
        where: Prefix for field names in error messages.

    Raises:
        RequestError: If an unsupported field has a value that has an effect.
    """
    fields = {}
    for name, value in data.items():
        if value is None and (name in optional or name in neutral):
            continue
        if name not in neutral:
            fields[name] = value
        elif not any(other is ANY or _equal(value, other) for other in neutral[name]):
            raise invalid("this field is not supported; remove the field", f"{where}{name}")
    return fields


def _equal(value: Any, neutral: Any) -> bool:
    """Return whether two JSON values are equal, where false differs from 0."""
    return isinstance(value, bool) == isinstance(neutral, bool) and bool(value == neutral)


def convert_error(error: str, kind: type[msgspec.Struct]) -> RequestError:
    """Convert an error message of msgspec to a RequestError.

    Args:
        error: The message.
        kind: Type of the request or form that was decoded.
    """
    text, _, path = error.partition(" - at `$")
    # msgspec writes [...] instead of the key of an object whose keys are not known in advance.
    path = re.sub(r"\[(\d+)\]", r".\1", path.rstrip("`").replace("[...]", ""))
    if unknown := re.match(r"Object contains unknown field `(.*)`", text, re.DOTALL):
        name = unknown[1][:80]
        known = _all_fields(JsonObject) if path else kind.__struct_encode_fields__
        hint = did_you_mean(name, known)
        if path and not hint.endswith("?"):
            hint = "/openapi.json lists all fields"
        return invalid(f"unknown field; {hint}", name)
    if missing := re.match(r"Object missing required field `(.*)`", text):
        text, path = "This field is required", f"{path}.{missing[1]}"
    status = 400 if text == "Expected `array` of length >= 1" else 422
    message = f"{text[0].lower()}{text[1:MAX_MESSAGE_CHARACTERS]}"
    return RequestError(status, message, path.strip(".") or None)


def _all_fields(kind: type[JsonObject]) -> set[str]:
    """Return the fields of a request type and its subclasses."""
    inner = (name for sub in kind.__subclasses__() for name in _all_fields(sub))
    return {*kind.__struct_fields__, *inner}
