"""Error responses, in the formats of text-embeddings-inference (TEI) and OpenAI."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from bertkit.web import RequestError

ERROR_TYPES = {400: "Empty", 424: "Backend", 429: "Overloaded", 500: "Backend", 503: "Unhealthy"}
"""TEI's name for errors with each status. All other errors are called Validation."""

OPENAI_STATUSES = {413: 400, 422: 400, 424: 500}
"""Statuses that are replaced on OpenAI's routes, because OpenAI's API uses others."""

OPENAI_TYPES = {429: "requests", 500: "server_error", 503: "server_error"}
"""OpenAI's type for errors with each status. All other errors have the type
invalid_request_error."""

OPENAI_CODES = {
    401: "invalid_api_key",
    404: "model_not_found",
    413: "context_length_exceeded",
    429: "rate_limit_exceeded",
}


class ErrorResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error response in TEI's format."""

    error: str
    error_type: str
    field: str | None = None


class OpenAIError(msgspec.Struct, frozen=True):
    """An error in OpenAI's format."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIErrorResponse(msgspec.Struct, frozen=True):
    """An error response in OpenAI's format."""

    error: OpenAIError


def error_type(path: str) -> type[ErrorResponse | OpenAIErrorResponse]:
    """Return the class of a route's error responses.

    Args:
        path: Path of the route.
    """
    return OpenAIErrorResponse if path.startswith(("/v1/", "/v2/")) else ErrorResponse


def encode_error(error: RequestError, path: str) -> tuple[int, bytes]:
    """Return the status and JSON body of an error response, in the format that the route uses.

    Args:
        error: The error.
        path: Path of the route.
    """
    if error_type(path) is ErrorResponse:
        kind = ERROR_TYPES.get(error.status, "Validation")
        response = ErrorResponse(error.message, kind, error.field)
        return error.status, msgspec.json.encode(response)
    status = OPENAI_STATUSES.get(error.status, error.status)
    kind = OPENAI_TYPES.get(status, "invalid_request_error")
    # An error about a missing model names a field; an error about a missing route does not.
    is_route = error.status == 404 and error.field is None
    code = None if is_route else OPENAI_CODES.get(error.status)
    body = OpenAIError(error.message, kind, error.field, code)
    return status, msgspec.json.encode(OpenAIErrorResponse(body))


def error_response(error: RequestError, path: str) -> Response:
    """Create the response to a failed request.

    Args:
        error: The error.
        path: Path of the request.
    """
    status, body = encode_error(error, path)
    return Response(body, status, error.headers, media_type="application/json")


def too_much(message: str, field: str | None = None) -> RequestError:
    """Create the error for a request that exceeds a limit.

    Args:
        message: The error message.
        field: Field of the request that exceeds the limit.
    """
    return RequestError(413, message, field)


def busy(seconds: int, message: str) -> RequestError:
    """Create the error for a request that may succeed later.

    Args:
        seconds: Time in seconds after which the client should retry.
        message: The error message.
    """
    return RequestError(429, message, headers={"retry-after": str(seconds)})


DEFECT = RequestError(500, "internal server error; search the server's log for the request id")
BACKEND = RequestError(424, "the model failed; search the server's log for the request id")
