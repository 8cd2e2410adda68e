"""Error responses, in the forms of text-embeddings-inference and of OpenAI."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from bertkit.web import RequestError


class Refusal(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why there is no answer."""

    error: str
    error_type: str
    field: str | None = None


class OpenAIError(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None


class OpenAIRefusal(msgspec.Struct, frozen=True):
    """Why there is no answer, in the form that OpenAI's clients read."""

    error: OpenAIError


def refusal_type(path: str) -> type[Refusal | OpenAIRefusal]:
    """Return the type of the error responses of a route."""
    return OpenAIRefusal if path.startswith("/v1/") else Refusal


def error_body(error: RequestError, path: str) -> bytes:
    """Encode an error as JSON, in the form of the clients of its route."""
    refusal: Refusal | OpenAIRefusal = Refusal(error.message, error.kind, error.field)
    if refusal_type(path) is OpenAIRefusal:
        refusal = OpenAIRefusal(OpenAIError(error.message, error.kind, error.field))
    return msgspec.json.encode(refusal)


def error_response(error: RequestError, path: str) -> Response:
    """Return the response to a request to this path."""
    body = error_body(error, path)
    return Response(body, error.status, error.headers, media_type="application/json")


def too_much(message: str, field: str | None = None) -> RequestError:
    """Return the error of a request that exceeds a limit."""
    return RequestError(413, "too_large", message, field)


def busy(seconds: int, message: str) -> RequestError:
    """Return the error of a request that may succeed after this time."""
    return RequestError(429, "overloaded", message, headers={"retry-after": str(seconds)})


DEFECT = RequestError(500, "defect", "the server failed at this; its log has the request's id")
