"""Generation of a server's OpenAPI document from the types of its routes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bertkit import __version__
from bertkit.config import explained
from bertkit.extensions.serving.admission import LIVENESS_ROUTE
from bertkit.extensions.serving.errors import (
    OPENAI_STATUSES,
    ErrorResponse,
    OpenAIErrorResponse,
    error_type,
)
from bertkit.web import Route

ERRORS = {
    400: "A list in the request is empty.",
    401: "The API key is missing or unknown.",
    403: "The API key has no access to this route, or a page on another site sent the request.",
    404: "No model of the server supports this route.",
    408: "The client sent the request body or read the response too slowly.",
    413: "The request body, a text or a list is too long.",
    422: "The request is invalid. The response names the invalid field.",
    424: "The model failed, or its result is zero, NaN or inf. See the server's log.",
    429: "The server is overloaded, or the key reached a rate limit. Wait for Retry-After seconds.",
    500: "Internal server error. See the server's log.",
    503: "The server is loading, stopping, or unhealthy.",
}

LIVE = {"application/json": {"example": {"status": "live"}}}
LIVE_OPERATION = {
    "summary": "Live",
    "description": "Check that the process responds. No API key is required.",
    "security": [],
    "responses": {"200": {"description": "The process responds.", "content": LIVE}},
}


def openapi(routes: Sequence[Route]) -> dict[str, Any]:
    """Create the OpenAPI document for the given routes and the liveness route.

    Args:
        routes: The routes.
    """
    asks = [route.ask for route in routes if route.ask is not None]
    types: list[Any] = [
        ErrorResponse,
        OpenAIErrorResponse,
        *asks,
        *(route.answer for route in routes),
    ]
    references, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    schemas = dict(zip(types, references, strict=True))
    for ask in asks:
        schema = components[schemas[ask]["$ref"].rpartition("/")[2]]
        schema["examples"] = [ask.EXAMPLE]
        for name, text in explained(ask).items():
            schema["properties"][name]["description"] = text
    paths = {route.path: {route.method.lower(): _operation(route, schemas)} for route in routes}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "bertkit",
            "version": __version__,
            "description": "HTTP API of a bertkit server. An error response contains a message and "
            "the name of the invalid field, if there is one.",
        },
        "paths": {**paths, LIVENESS_ROUTE: {"get": LIVE_OPERATION}},
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        # The empty entry means that no key is needed, which is true for servers without API keys.
        "security": [{"key": []}, {}],
    }


def _operation(route: Route, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    """Create the entry of a route from the schemas of its types."""
    answer = schemas[route.answer]
    if route.many:
        answer = {"anyOf": [answer, {"type": "array", "items": answer}]}
    error = _content(schemas[error_type(route.path)])
    statuses = OPENAI_STATUSES if error_type(route.path) is OpenAIErrorResponse else {}
    errors: dict[str, str] = {}
    for number, text in ERRORS.items():
        status = str(statuses.get(number, number))
        errors[status] = f"{errors.get(status, '')} {text}".strip()
    operation: dict[str, Any] = {
        "summary": route.handler.__name__.replace("_", " ").title(),
        "description": route.handler.__doc__,
        "operationId": re.sub(r"\W+", "_", route.path).strip("_"),
        "responses": {
            "200": {"description": "The result.", **_content(answer, route.media_type)},
            **{status: {"description": text, **error} for status, text in errors.items()},
        },
    }
    if route.ask is not None:
        body = _content(schemas[route.ask])
        operation["requestBody"] = {"required": True, **body}
    if "{name}" in route.path:
        operation["parameters"] = [
            {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
        ]
    return operation


def _content(schema: Any, media_type: str = "application/json") -> dict[str, Any]:
    return {"content": {media_type: {"schema": schema}}}
