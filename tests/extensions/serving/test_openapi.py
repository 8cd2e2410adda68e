"""The OpenAPI document is complete, and its examples are valid requests."""

from __future__ import annotations

from typing import Any

from tests.extensions.conftest import Server

from bertkit.extensions.serving.openapi import openapi
from bertkit.web import ROUTES


def test_openapi_describes_fields_with_docstrings() -> None:
    schemas = openapi(list(ROUTES.values()))["components"]["schemas"]
    described = schemas["PredictAsk"]["properties"]["inputs"]["description"]
    assert described.startswith("A text or a list of texts")
    # The field is defined in a base class.
    assert "description" in schemas["PredictAsk"]["properties"]["truncate"]


def schema(body: dict[str, Any]) -> Any:
    """Return the schema of the JSON of a request or response."""
    return body["content"]["application/json"]["schema"]


def test_openapi_describes_every_route(server: Server, store: str | None) -> None:
    document = server().get("/openapi.json").json()
    paths = document["paths"]
    expected = """
        /embed /v1/embeddings /similarity /predict /rerank /ner /answer /choose /fill-mask
        /next-sentence /explain /contexts /tokenize /decode /embed_all /v1/rerank /v2/rerank
        /models/{name}/reload
    """
    posted = {path for path, methods in paths.items() if "post" in methods}
    assert posted == {*expected.split(), *(["/search"] if store else [])}
    assert document["security"] == [{"key": []}, {}]
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    assert "text/plain" in paths["/metrics"]["get"]["responses"]["200"]["content"]
    schemas = document["components"]["schemas"]
    identifiers = [operation.get("operationId") for m in paths.values() for operation in m.values()]
    assert len(identifiers) == len(set(identifiers))
    error = schema(paths["/v1/embeddings"]["post"]["responses"]["400"])
    assert error["$ref"].endswith("/OpenAIErrorResponse")
    for path, methods in paths.items():
        for operation in methods.values():
            assert operation["description"], path
            assert operation["responses"]["200"]["content"], path
            if path == "/health/live":
                assert operation["security"] == []
                continue
            is_openai = path.startswith(("/v1/", "/v2/"))
            invalid = {"400"} if is_openai else {"400", "413", "422", "424"}
            statuses = {"200", "401", "403", "404", "408", "429", "500", "503", *invalid}
            assert operation["responses"].keys() == statuses, path
        if "{" in path or "post" not in methods:
            continue
        name = schema(methods["post"]["requestBody"])["$ref"].rpartition("/")[2]
        assert schemas[name]["examples"], path
        assert schema(methods["post"]["responses"]["200"]), path
    for schema_path in set(_references(document)):
        assert schema_path.removeprefix("#/components/schemas/") in schemas


def _references(part: Any) -> list[str]:
    if isinstance(part, dict):
        here = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
        return here + [r for value in part.values() for r in _references(value)]
    return [r for value in part for r in _references(value)] if isinstance(part, list) else []


def test_openapi_examples_are_valid_requests(server: Server) -> None:
    client = server()
    document = client.get("/openapi.json").json()
    for path, methods in document["paths"].items():
        if "post" not in methods or "{" in path:
            continue
        name = schema(methods["post"]["requestBody"])["$ref"].rpartition("/")[2]
        (example,) = document["components"]["schemas"][name]["examples"]
        example = {k: v for k, v in example.items() if k != "model"}
        reply = client.post(path, json={**example, **TRUNCATE.get(path, {"truncate": True})})
        assert reply.status_code == 200, (path, reply.text)


TRUNCATE: dict[str, dict[str, Any]] = {"/ner": {}, "/answer": {}, "/tokenize": {}}
TRUNCATE["/decode"] = {"ids": [2, 5, 3]}
"""Fields of the routes without truncation, and ids of the tiny vocabulary."""
