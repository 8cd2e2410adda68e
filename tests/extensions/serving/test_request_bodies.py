"""Fields of the OpenAI and TEI specifications: neutral and unsupported values."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import pytest
from tests.extensions.conftest import Server
from tests.extensions.generation.test_routes import TALK, folder
from tests.factories import tiny_folder, tiny_tokenizer

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

CUT: dict[str, list[Any]] = {
    "truncate": [None, False],
    "truncation_direction": [None, "Right", "Left"],
}
NEUTRAL: dict[str, dict[str, list[Any]]] = {
    "/v1/completions": {
        **COMMON,
        "best_of": [None, 1],
        "echo": [None, False],
        "logprobs": [None],
        "suffix": [None, ""],
    },
    "/v1/chat/completions": {
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
    "/v1/embeddings": {
        "encoding_format": [None, "float"],
        "dimensions": [None],
        "user": [None, "a"],
    },
    "/embed": {
        "normalize": [None, True],
        "truncate": [None, False],
        "truncation_direction": [None, "right", "Right", "left", "Left"],
        "prompt_name": [None],
        "dimensions": [None],
        "parameters": [None, {}, {"normalize": True, "truncation_direction": "Left"}],
    },
    "/predict": {"raw_scores": [None, False], **CUT},
    "/v2/rerank": {
        "max_chunks_per_doc": [None, 1],
        "max_tokens_per_doc": [None, 4096],
        "priority": [None, 3],
        "rank_fields": [None, ["text"]],
        "relevant_spans": [None],
        "return_documents": [None, True],
        "top_n": [None, 2],
        "truncate": [None, True],
    },
    "/rerank": {"raw_scores": [None, False], "return_text": [None, False], **CUT},
    "/similarity": {"parameters": [None, {}, {"truncate": False, "truncation_direction": "Right"}]},
    "/embed_all": {"prompt_name": [None, ""], "truncate": [None, False]},
    "/tokenize": {"add_special_tokens": [None, True], "prompt_name": [None]},
    "/decode": {"skip_special_tokens": [None, True]},
}

REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "once", "max_tokens": 3},
    "/v1/chat/completions": {**TALK, "max_tokens": 3},
    "/v1/embeddings": {"input": "a b"},
    "/embed": {"inputs": "a b"},
    "/predict": {"inputs": "a b"},
    "/rerank": {"query": "a", "texts": ["a b", "c"]},
    "/v2/rerank": {"query": "a", "documents": ["a b", "c"]},
    "/embed_all": {"inputs": "a b"},
    "/decode": {"ids": [5, 6]},
    "/similarity": {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
    "/tokenize": {"inputs": "a b"},
}


@pytest.fixture(scope="module")
def all_models(folders: Path, folder: Path) -> ModelRegistry:
    names = ("pretrained", "sentiment", "ranker")
    return ModelRegistry([*(str(folders / name) for name in names), str(folder)], None)


def stable_fields(response: Any) -> Any:
    """Return a response body without the fields that differ in each response."""
    assert response.status_code == 200, response.text
    body = response.json()
    return {k: v for k, v in body.items() if k not in ("id", "created")} if "id" in body else body


@pytest.mark.parametrize("path", NEUTRAL)
def test_neutral_values_keep_the_response(
    server: Server, all_models: ModelRegistry, path: str
) -> None:
    client, request = server(at=all_models), REQUESTS[path]
    if "max_tokens" in request:
        request = {**request, "temperature": 0}
    expected = stable_fields(client.post(path, json=request))
    for name, values in NEUTRAL[path].items():
        for value in values:
            if value is None and name in ("max_tokens", "temperature"):
                # The default value of the field differs from the expected request.
                continue
            changed = stable_fields(client.post(path, json={**request, name: value}))
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
        ("/tokenize", "prompt_name", "query"),
        ("/embed_all", "normalize", True),
        ("/v2/rerank", "max_tokens_per_doc", 8),
        ("/v2/rerank", "max_chunks_per_doc", 10),
        ("/v2/rerank", "rank_fields", ["title", "text"]),
    ],
)
def test_unsupported_values_are_rejected_with_field(
    server: Server, all_models: ModelRegistry, path: str, name: str, value: Any
) -> None:
    response = server(at=all_models).post(path, json={**REQUESTS[path], name: value})
    body, is_openai = response.json(), path.startswith(("/v1/", "/v2/"))
    assert response.status_code == (400 if is_openai else 422)
    assert (body["error"]["param"] if is_openai else body["field"]) == name


@pytest.mark.parametrize("path", REQUESTS)
def test_unknown_fields_are_rejected_even_if_null(
    server: Server, all_models: ModelRegistry, path: str
) -> None:
    response = server(at=all_models).post(path, json={**REQUESTS[path], "temprature": None})
    assert response.status_code == (400 if path.startswith(("/v1/", "/v2/")) else 422)
    assert "temprature" in response.text


@pytest.mark.parametrize("path", ["/embed", "/predict", "/rerank"])
def test_texts_are_truncated_at_the_given_end(server: Server, tmp_path: Path, path: str) -> None:
    head, labels, task = {
        "/embed": ("mlm", (), None),
        "/predict": ("classify", ("bad", "good", "mixed"), "classify"),
        "/rerank": ("choose", (), "respond"),
    }[path]
    tokenizer = tiny_tokenizer([*string.ascii_lowercase])
    save_options = {"labels": labels, "task": task, "length": 16, "spread": 0.5}
    model = tiny_folder(tmp_path / "model", tokenizer, head, **save_options)
    client = server(at=ModelRegistry([str(model)], None))

    def answer(text: str, **fields: Any) -> Any:
        body = {"query": "a", "texts": [text]} if path == "/rerank" else {"inputs": text}
        response = client.post(path, json={**body, **fields})
        assert response.status_code == 200, response.text
        return response.headers.get("x-truncated"), _numbers(response.json())

    letters = list("bcdefghijklmnopqrstuvwxyz")
    # Of 16 tokens, special tokens and the query need 2 or 4.
    kept = 12 if path == "/rerank" else 14
    for direction, part in (("Right", letters[:kept]), ("Left", letters[-kept:])):
        cut, numbers = answer(" ".join(letters), truncate=True, truncation_direction=direction)
        assert cut == "0"
        assert numbers == pytest.approx(answer(" ".join(part))[1], abs=1e-5)
    right = answer(" ".join(letters), truncate=True)[1]
    assert numbers != pytest.approx(right, abs=1e-3)


def _numbers(answer: Any) -> list[float]:
    """Return the embedding, or the scores sorted by label."""
    if isinstance(answer[0], list):
        return list(answer[0])
    return [row["score"] for row in sorted(answer, key=lambda row: str(row.get("label")))]


USER, ASSISTANT = ({"role": role, "content": "a"} for role in ("user", "assistant"))


@pytest.mark.parametrize(
    ("message", "equivalent"),
    [
        ({"role": "developer", "content": "a"}, {"role": "system", "content": "a"}),
        ({"role": "user", "content": [{"type": "text", "text": "a"}]}, USER),
        ({**ASSISTANT, "refusal": None, "tool_calls": None, "name": None}, ASSISTANT),
    ],
)
def test_equivalent_messages_are_decoded_equally(
    message: dict[str, Any], equivalent: dict[str, Any]
) -> None:
    last = {"role": "user", "content": "b"}
    decoded, expected = (
        decode(ChatAsk, json.dumps({"messages": [first, last]}).encode())
        for first in (message, equivalent)
    )
    assert decoded == expected


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({**USER, "name": "Ann"}, "messages.0.name"),
        ({**ASSISTANT, "tool_calls": [{}]}, "messages.0.tool_calls"),
        ({**USER, "role": "tool"}, "messages.0.role"),
        ({**USER, "extra": 1}, "messages.0.extra"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages.0.content"),
        ({"role": "user", "content": None}, "messages.0.content"),
    ],
)
def test_unsupported_messages_are_rejected(message: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as raised:
        decode(ChatAsk, json.dumps({"messages": [message]}).encode())
    assert raised.value.field == field


def test_models_are_listed_for_openai_clients(server: Server, all_models: ModelRegistry) -> None:
    client = server(at=all_models)
    body = client.get("/v1/models").json()
    assert body["object"] == "list"
    assert [model["id"] for model in body["data"]] == list(all_models.models)
    assert client.get("/v1/models/writer").json() == body["data"][-1]
    assert client.get("/v1/models/none").json()["error"]["code"] == "model_not_found"
    assert client.get("/health").status_code == 200


def test_first_chunk_of_chat_contains_role(server: Server, all_models: ModelRegistry) -> None:
    request = {**REQUESTS["/v1/chat/completions"], "stream": True, "n": 2}
    raw = server(at=all_models).post("/v1/chat/completions", json=request).text
    chunks = [json.loads(part.removeprefix("data: ")) for part in raw.split("\n\n")[:-2]]
    for index in (0, 1):
        chunks_of_choice = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert chunks_of_choice[0]["delta"] == {"role": "assistant", "content": ""}
        assert all("role" not in chunk["delta"] for chunk in chunks_of_choice[1:])
        assert chunks_of_choice[-1]["finish_reason"] in ("stop", "length")


def test_openai_client_works_with_default_settings(
    server: Server, all_models: ModelRegistry
) -> None:
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
    # The second request contains the message of the first response.
    again = [*messages, first.choices[0].message, messages[-1]]
    request = {"model": "writer", "messages": again, "max_tokens": 3, "temperature": 0}
    chunks = list(client.chat.completions.create(**request, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    written = client.chat.completions.create(**request).choices[0].message.content
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == written != ""
    with pytest.raises(openai.NotFoundError, match="no model 'other'"):
        client.chat.completions.create(**{**request, "model": "other"})


@pytest.mark.parametrize("kind", ["OpenAI", "ChatOpenAI"])
def test_langchain_works_with_default_settings(
    server: Server, all_models: ModelRegistry, kind: str
) -> None:
    langchain = pytest.importorskip("langchain_openai", reason="pip install 'bertkit[dev]'")
    options = {"base_url": "http://testserver/v1", "api_key": "k", "model": "writer"}
    http = server(at=all_models)
    model = getattr(langchain, kind)(**options, max_tokens=3, http_client=http)
    assert model.invoke("once upon") is not None
    assert list(model.stream("once upon"))
