"""The OpenAPI document is complete, and its examples are answered."""

from __future__ import annotations

from typing import Any

from tests.extensions.conftest import Server

from bertkit.extensions.serving.openapi import openapi
from bertkit.web import ROUTES


def test_each_field_that_has_a_docstring_is_described() -> None:
    schemas = openapi(list(ROUTES.values()))["components"]["schemas"]
    described = schemas["PredictAsk"]["properties"]["inputs"]["description"]
    assert described.startswith("A text or a list of texts")
    assert "description" in schemas["PredictAsk"]["properties"]["truncate"]  # of a base class


def test_openapi_describes_every_route(server: Server, store: str | None) -> None:
    document = server().get("/openapi.json").json()
    paths = document["paths"]
    assert {p for p, ways in paths.items() if "post" in ways} == {
        "/embed",
        "/v1/embeddings",
        "/similarity",
        "/predict",
        "/rerank",
        "/ner",
        "/answer",
        "/choose",
        "/fill-mask",
        "/next-sentence",
        "/explain",
        "/contexts",
        "/tokenize",
        "/models/{name}/reload",
        *(["/search"] if store else []),
    }
    assert document["security"] == [{"key": []}, {}]
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    assert "text/plain" in paths["/metrics"]["get"]["responses"]["200"]["content"]
    schemas = document["components"]["schemas"]
    refused = paths["/v1/embeddings"]["post"]["responses"]["422"]["content"]["application/json"]
    assert refused["schema"]["$ref"].endswith("/OpenAIErrorResponse")
    for path, ways in paths.items():
        for way in ways.values():
            assert way["description"], path
            assert way["responses"]["200"]["content"], path
            if path == "/health/live":
                assert way["security"] == []
                continue
            assert {"401", "404", "413", "422", "429", "500", "503"} <= way["responses"].keys(), (
                path
            )
        if "{" in path or "post" not in ways:
            continue
        asked = ways["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        assert schemas[asked.rpartition("/")[2]]["examples"], path
        answer = ways["post"]["responses"]["200"]["content"]["application/json"]["schema"]
        assert answer, path
    for reference in set(_references(document)):
        assert reference.removeprefix("#/components/schemas/") in schemas


def _references(part: Any) -> list[str]:
    if isinstance(part, dict):
        here = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
        return here + [r for value in part.values() for r in _references(value)]
    return [r for value in part for r in _references(value)] if isinstance(part, list) else []


def test_its_examples_are_answered(server: Server) -> None:
    client = server()
    document = client.get("/openapi.json").json()
    for path, ways in document["paths"].items():
        if "post" not in ways or "{" in path:
            continue
        asked = ways["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        (example,) = document["components"]["schemas"][asked.rpartition("/")[2]]["examples"]
        example = {k: v for k, v in example.items() if k != "model"}
        reply = client.post(path, json={**example, **TRUNCATE.get(path, {"truncate": True})})
        assert reply.status_code == 200, (path, reply.text)


TRUNCATE: dict[str, dict[str, Any]] = {"/ner": {}, "/answer": {}, "/tokenize": {}}
"""Routes that cut nothing."""
