"""Error responses, in the formats of text-embeddings-inference (TEI) and OpenAI."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from bertkit.web import RequestError

ERROR_TYPES = {400: "Empty", 424: "Backend", 429: "Overloaded", 500: "Backend", 503: "Unhealthy"}
"""TEI's names of errors by status. The name of other errors is Validation."""

OPENAI_STATUSES = {413: 400, 422: 400, 424: 500}
"""Statuses that differ in OpenAI's API."""

OPENAI_TYPES = {429: "requests", 500: "server_error", 503: "server_error"}
"""OpenAI's types of errors by status. The type of other errors is invalid_request_error."""

OPENAI_CODES = {
    401: "invalid_api_key",
    404: "model_not_found",
    413: "context_length_exceeded",
    429: "rate_limit_exceeded",
}


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
    code: str | None


class OpenAIErrorResponse(msgspec.Struct, frozen=True):
    """An error response, in the format of OpenAI."""

    error: OpenAIError


def error_type(path: str) -> type[ErrorResponse | OpenAIErrorResponse]:
    """Return the type of the error responses of a route.

    Args:
        path: Path of the route.
    """
    return OpenAIErrorResponse if path.startswith(("/v1/", "/v2/")) else ErrorResponse


def encode_error(error: RequestError, path: str) -> tuple[int, bytes]:
    """Return the status of an error, and its body as JSON, in the format of its route.

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
    # Only a missing model has a field; a missing route has none.
    is_route = error.status == 404 and error.field is None
    code = None if is_route else OPENAI_CODES.get(error.status)
    body = OpenAIError(error.message, kind, error.field, code)
    return status, msgspec.json.encode(OpenAIErrorResponse(body))


def error_response(error: RequestError, path: str) -> Response:
    """Return the response to a failed request.

    Args:
        error: The error.
        path: Path of the request.
    """
    status, body = encode_error(error, path)
    return Response(body, status, error.headers, media_type="application/json")


def too_much(message: str, field: str | None = None) -> RequestError:
    """Return the error of a request that exceeds a limit.

    Args:
        message: The message.
        field: Field of the request.
    """
    return RequestError(413, message, field)


def busy(seconds: int, message: str) -> RequestError:
    """Return the error of a request that may succeed later.

    Args:
        seconds: Seconds after which to retry.
        message: The message.
    """
    return RequestError(429, message, headers={"retry-after": str(seconds)})


DEFECT = RequestError(500, "internal server error; see the log by the request id")
BACKEND = RequestError(424, "the computation of the model failed; see the log by the request id")
