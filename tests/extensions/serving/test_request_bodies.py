"""Fields of the OpenAI and TEI specifications: neutral values are accepted, others are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.extensions.conftest import Server
from tests.extensions.generation.test_routes import TALK, folder

from bertkit.extensions.generation.openai_types import ChatAsk
from bertkit.extensions.serving.models import ModelRegistry
from bertkit.extensions.serving.request_bodies import decode
from bertkit.web import RequestError

__all__ = ["folder"]

COMMON: dict[str, list[Any]] = {
    "frequency_penalty": [None, 0, 0.0],
    "presence_penalty": [None, 0, 0.0],
    "logit_bias": [None, {}],
    "max_tokens": [None, 3],
    "n": [None, 1],
    "seed": [None, 0],
    "stop": [None, [], "zebra"],
    "stream": [None, False],
    "stream_options": [None, {}, {"include_usage": None}, {"include_obfuscation": False}],
    "temperature": [None, 0, 1],
    "top_p": [None, 1],
    "user": [None, "someone"],
}

NEUTRAL: list[tuple[str, dict[str, list[Any]]]] = [
    (
        "/v1/completions",
        {
            **COMMON,
            "best_of": [None, 1],
            "echo": [None, False],
            "logprobs": [None],
            "suffix": [None, ""],
        },
    ),
    (
        "/v1/chat/completions",
        {
            **COMMON,
            "audio": [None],
            "function_call": [None, "none"],
            "functions": [None, []],
            "logprobs": [None, False],
            "max_completion_tokens": [None, 3],
            "metadata": [None, {}, {"run": "7"}],
            "modalities": [None, ["text"]],
            "parallel_tool_calls": [None, True, False],
            "prediction": [None],
            "prompt_cache_key": [None, "a"],
            "reasoning_effort": [None, "none"],
            "response_format": [None, {"type": "text"}],
            "safety_identifier": [None, "a"],
            "service_tier": [None, "auto", "default"],
            "store": [None, False],
            "tool_choice": [None, "none", "auto"],
            "tools": [None, []],
            "top_logprobs": [None, 0],
            "verbosity": [None, "medium"],
            "web_search_options": [None],
        },
    ),
    (
        "/v1/embeddings",
        {"encoding_format": [None, "float"], "dimensions": [None], "user": [None, "someone"]},
    ),
    (
        "/embed",
        {
            "normalize": [None, True],
            "truncate": [None, False],
            "truncation_direction": [None, "right", "Right", "left", "Left"],
            "prompt_name": [None],
            "dimensions": [None],
            "parameters": [None, {}, {"normalize": True, "truncation_direction": "Left"}],
        },
    ),
    (
        "/predict",
        {
            "raw_scores": [None, False],
            "truncate": [None, False],
            "truncation_direction": [None, "Right", "Left"],
        },
    ),
    (
        "/rerank",
        {
            "raw_scores": [None, False],
            "return_text": [None, False],
            "truncate": [None, False],
            "truncation_direction": [None, "Right", "Left"],
        },
    ),
    (
        "/similarity",
        {"parameters": [None, {}, {"truncate": False, "truncation_direction": "Right"}]},
    ),
    ("/tokenize", {"add_special_tokens": [None, True], "prompt_name": [None]}),
]

REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "once", "max_tokens": 3},
    "/v1/chat/completions": {**TALK, "max_tokens": 3},
    "/v1/embeddings": {"input": "a b"},
    "/embed": {"inputs": "a b"},
    "/predict": {"inputs": "a b"},
    "/rerank": {"query": "a", "texts": ["a b", "c"]},
    "/similarity": {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
    "/tokenize": {"inputs": "a b"},
}


@pytest.fixture(scope="module")
def all_models(folders: Path, folder: Path) -> ModelRegistry:
    names = ("pretrained", "sentiment", "ranker")
    return ModelRegistry([*(str(folders / name) for name in names), str(folder)], None)


def answer_of(found: Any) -> Any:
    """An answer without what differs from request to request."""
    assert found.status_code == 200, found.text
    body = found.json()
    return {k: v for k, v in body.items() if k not in ("id", "created")} if "id" in body else body


@pytest.mark.parametrize(("path", "fields"), NEUTRAL)
def test_neutral_values_change_nothing(
    server: Server, all_models: ModelRegistry, path: str, fields: dict[str, list[Any]]
) -> None:
    client, request = server(at=all_models), REQUESTS[path]
    if "max_tokens" in request:
        request = {**request, "temperature": 0}
    expected = answer_of(client.post(path, json=request))
    for name, values in fields.items():
        for value in values:
            if value is None and name in ("max_tokens", "temperature"):
                continue  # the default is another value
            changed = answer_of(client.post(path, json={**request, name: value}))
            if name not in ("temperature", "stop"):
                assert changed == expected, (name, value)


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        ("/v1/completions", "frequency_penalty", 0.5),
        ("/v1/completions", "logprobs", 0),
        ("/v1/completions", "echo", True),
        ("/v1/completions", "best_of", 2),
        ("/v1/completions", "logit_bias", {"50256": -100}),
        ("/v1/completions", "presence_penalty", False),
        ("/v1/chat/completions", "logprobs", True),
        ("/v1/chat/completions", "response_format", {"type": "json_object"}),
        ("/v1/chat/completions", "tools", [{"type": "function"}]),
        ("/v1/chat/completions", "tool_choice", "required"),
        ("/v1/chat/completions", "store", True),
        ("/v1/chat/completions", "reasoning_effort", "high"),
        ("/predict", "raw_scores", True),
        ("/tokenize", "prompt_name", "query"),
    ],
)
def test_unsupported_values_are_rejected_with_the_field(
    server: Server, all_models: ModelRegistry, path: str, name: str, value: Any
) -> None:
    found = server(at=all_models).post(path, json={**REQUESTS[path], name: value})
    body = found.json()
    assert found.status_code == 422
    assert (body["error"]["param"] if path.startswith("/v1/") else body["field"]) == name


@pytest.mark.parametrize("path", REQUESTS)
def test_unknown_fields_are_rejected_even_if_null(
    server: Server, all_models: ModelRegistry, path: str
) -> None:
    found = server(at=all_models).post(path, json={**REQUESTS[path], "temprature": None})
    assert found.status_code == 422
    assert "temprature" in found.text


@pytest.mark.parametrize("path", ["/embed", "/predict", "/rerank"])
def test_truncation_on_the_left_is_rejected_if_a_text_is_too_long(
    server: Server, all_models: ModelRegistry, path: str
) -> None:
    client = server(at=all_models)
    long = {"query": "a", "texts": ["a " * 30]} if path == "/rerank" else {"inputs": "a " * 30}
    request = {**long, "truncate": True}
    assert client.post(path, json={**request, "truncation_direction": "Right"}).status_code == 200
    found = client.post(path, json={**request, "truncation_direction": "Left"})
    assert (found.status_code, found.json()["field"]) == (422, "truncation_direction")


@pytest.mark.parametrize(
    ("message", "same"),
    [
        ({"role": "developer", "content": "Be kind."}, {"role": "system", "content": "Be kind."}),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "user", "content": "a"},
        ),
        (
            {
                "role": "assistant",
                "content": "a",
                "refusal": None,
                "tool_calls": None,
                "name": None,
            },
            {"role": "assistant", "content": "a"},
        ),
    ],
)
def test_messages_of_clients_are_read(message: dict[str, Any], same: dict[str, Any]) -> None:
    last = {"role": "user", "content": "b"}
    asked, expected = (
        decode(ChatAsk, json.dumps({"messages": [one, last]}).encode()) for one in (message, same)
    )
    assert asked == expected


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"role": "user", "content": "a", "name": "Ann"}, "messages.0.name"),
        ({"role": "assistant", "content": "a", "tool_calls": [{}]}, "messages.0.tool_calls"),
        ({"role": "tool", "content": "a"}, "messages.0.role"),
        ({"role": "user", "content": "a", "extra": 1}, "messages.0.extra"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages.0.content"),
        ({"role": "user", "content": None}, "messages.0.content"),
    ],
)
def test_messages_that_cannot_be_read_are_rejected(message: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as refused:
        decode(ChatAsk, json.dumps({"messages": [message]}).encode())
    assert refused.value.field == field


def test_models_are_listed_for_openai_clients(server: Server, all_models: ModelRegistry) -> None:
    client = server(at=all_models)
    body = client.get("/v1/models").json()
    assert body["object"] == "list"
    assert [one["id"] for one in body["data"]] == list(all_models.models)
    assert client.get("/v1/models/writer").json() == body["data"][-1]
    assert client.get("/v1/models/none").json()["error"]["type"] == "not_found"
    assert client.get("/health").status_code == 200


def test_first_chunk_of_a_chat_has_the_role(server: Server, all_models: ModelRegistry) -> None:
    request = {**REQUESTS["/v1/chat/completions"], "stream": True, "n": 2}
    raw = server(at=all_models).post("/v1/chat/completions", json=request).text
    chunks = [json.loads(part.removeprefix("data: ")) for part in raw.split("\n\n")[:-2]]
    for index in (0, 1):
        own = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert all("role" not in one["delta"] for one in own[1:])
        assert own[-1]["finish_reason"] in ("stop", "length")


def test_official_clients_with_default_settings(server: Server, all_models: ModelRegistry) -> None:
    openai = pytest.importorskip("openai", reason="pip install 'bertkit[dev]'")
    http = server(at=all_models)
    client = openai.OpenAI(base_url="http://testserver/v1", api_key="k", http_client=http)
    assert "writer" in [model.id for model in client.models.list().data]
    assert client.models.retrieve("writer").owned_by == "bertkit"
    assert len(client.embeddings.create(model="pretrained", input="a b").data[0].embedding) == 16
    text = client.completions.create(model="writer", prompt="once", max_tokens=3)
    assert text.choices[0].finish_reason
    messages = [{"role": "developer", "content": "Hi."}, *TALK["messages"]]  # type: ignore[misc]
    first = client.chat.completions.create(model="writer", messages=messages, max_tokens=3)
    again = [*messages, first.choices[0].message, messages[-1]]  # the answer is sent back
    chunks = list(
        client.chat.completions.create(model="writer", messages=again, max_tokens=3, stream=True)
    )
    assert chunks[0].choices[0].delta.role == "assistant"


@pytest.mark.parametrize("kind", ["OpenAI", "ChatOpenAI"])
def test_langchain_with_default_settings(
    server: Server, all_models: ModelRegistry, kind: str
) -> None:
    langchain = pytest.importorskip("langchain_openai", reason="pip install 'bertkit[dev]'")
    model = getattr(langchain, kind)(
        base_url="http://testserver/v1",
        api_key="k",
        model="writer",
        max_tokens=3,
        http_client=server(at=all_models),
    )
    assert model.invoke("once upon") is not None
    assert list(model.stream("once upon"))
