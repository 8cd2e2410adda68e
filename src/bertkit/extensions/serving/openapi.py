"""The OpenAPI document of a server, from the types of its routes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bertkit import __version__
from bertkit.config import explained
from bertkit.extensions.serving.admission import LIVENESS_ROUTE
from bertkit.extensions.serving.errors import OpenAIRefusal, Refusal, refusal_type
from bertkit.web import Route

REFUSALS = {
    "401": "No key, or an unknown one.",
    "403": "A key that is not for this route, or a page of another site.",
    "404": "No model here answers this.",
    "408": "The body took too long to arrive.",
    "413": "A body, a text or a list that is too long.",
    "422": "What cannot be answered; the field is named.",
    "429": "Too much to do; Retry-After says when to come again.",
    "500": "A defect, or a vector that is none; the log names its place.",
    "503": "Loading, stopping, or not well.",
}

LIVE = {"application/json": {"example": {"status": "live"}}}
LIVE_OPERATION = {
    "summary": "Live",
    "description": "Whether the process answers; open to everyone.",
    "security": [],
    "responses": {"200": {"description": "It does.", "content": LIVE}},
}


def openapi(routes: Sequence[Route]) -> dict[str, Any]:
    """The document that describes these routes, and that of a sign of life."""
    asks = [route.ask for route in routes if route.ask is not None]
    types: list[Any] = [Refusal, OpenAIRefusal, *asks, *(route.answer for route in routes)]
    references, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    schemas = dict(zip(types, references, strict=True))
    for ask in asks:
        described = components[schemas[ask]["$ref"].rpartition("/")[2]]
        described["examples"] = [ask.EXAMPLE]
        for name, text in explained(ask).items():
            described["properties"][name]["description"] = text
    paths = {route.path: {route.method.lower(): _operation(route, schemas)} for route in routes}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "bertkit",
            "version": __version__,
            "description": "Models behind HTTP. An error is one sentence, with the field it is "
            "about.",
        },
        "paths": {**paths, LIVENESS_ROUTE: {"get": LIVE_OPERATION}},
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],  # where there are keys
    }


def _operation(route: Route, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    """A route's entry; `schemas` are those of its types."""
    answer = schemas[route.answer]
    if route.many:
        answer = {"anyOf": [answer, {"type": "array", "items": answer}]}
    refused = _content(schemas[refusal_type(route.path)])
    name = route.handler.__name__
    operation: dict[str, Any] = {
        "summary": name.replace("_", " ").title(),
        "description": route.handler.__doc__,
        "operationId": name,
        "responses": {
            "200": {"description": "The answer.", **_content(answer, route.media_type)},
            **{status: {"description": text, **refused} for status, text in REFUSALS.items()},
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
