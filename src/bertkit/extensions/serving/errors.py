"""Error responses, in the formats of text-embeddings-inference (TEI) and OpenAI."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from bertkit.web import RequestError


class ErrorResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error response, in the format of TEI."""

    error: str
    error_type: str
    field: str | None = None


class OpenAIError(msgspec.Struct, frozen=True):
    """Error in the format of OpenAI."""

    message: str
    type: str
    param: str | None


class OpenAIErrorResponse(msgspec.Struct, frozen=True):
    """An error response, in the format of OpenAI."""

    error: OpenAIError


def error_type(path: str) -> type[ErrorResponse | OpenAIErrorResponse]:
    """Return the type of the error responses of a route.

    Args:
        path: Path of the route.
    """
    return OpenAIErrorResponse if path.startswith("/v1/") else ErrorResponse


def error_body(error: RequestError, path: str) -> bytes:
    """Encode an error as JSON, in the format of its route.

    Args:
        error: The error.
        path: Path of the route.
    """
    body: ErrorResponse | OpenAIErrorResponse = ErrorResponse(
        error.message, error.kind, error.field
    )
    if error_type(path) is OpenAIErrorResponse:
        body = OpenAIErrorResponse(OpenAIError(error.message, error.kind, error.field))
    return msgspec.json.encode(body)


def error_response(error: RequestError, path: str) -> Response:
    """Return the response to a failed request.

    Args:
        error: The error.
        path: Path of the request.
    """
    body = error_body(error, path)
    return Response(body, error.status, error.headers, media_type="application/json")


def too_much(message: str, field: str | None = None) -> RequestError:
    """Return the error of a request that exceeds a limit.

    Args:
        message: The message.
        field: Field of the request.
    """
    return RequestError(413, "too_large", message, field)


def busy(seconds: int, message: str) -> RequestError:
    """Return the error of a request that may succeed later.

    Args:
        seconds: Seconds after which to retry.
        message: The message.
    """
    return RequestError(429, "overloaded", message, headers={"retry-after": str(seconds)})


DEFECT = RequestError(500, "defect", "internal server error; see the log by the request id")
