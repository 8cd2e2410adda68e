"""Routes generated from the types of a pipeline."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from bertkit.config import Settings
from bertkit.errors import ConfigError
from bertkit.extensions.serving.generated import pipeline_route
from bertkit.extensions.serving.openapi import openapi
from bertkit.tasks.task import NoOptions
from bertkit.web import ROUTES


class Three(msgspec.Struct):
    a: str
    b: str
    c: str


class Reserved(Settings, frozen=True):
    text: str = ""


def pipeline(**parts: Any) -> Any:
    """Return a pipeline that counts words."""
    default = {"item": str, "prediction": int, "options": NoOptions, "example": "a b"}
    return SimpleNamespace(**{**default, **parts})


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"item": Three, "example": ("a", "b", "c")}, "count: items must be str, pairs, or"),
        ({"item": list[str], "example": ["a"]}, "count: items must be str, pairs, or"),
        ({"options": Reserved}, "count: the option name 'text' is reserved; rename the option"),
    ],
)
def test_unsupported_types_are_rejected(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pipeline_route("count", pipeline(**parts))


def test_openapi_distinguishes_requests_with_equal_names() -> None:
    routes = [*ROUTES.values(), pipeline_route("completion", pipeline())]
    document = openapi(routes)
    bodies = [
        document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        for path in ("/completion", "/v1/completions")
    ]
    assert bodies[0] != bodies[1]
