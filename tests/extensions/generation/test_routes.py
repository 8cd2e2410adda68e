"""HTTP routes of generative models: OpenAI's API, batching, and closed streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.extensions.conftest import Server
from tests.extensions.generation.tasks.test_seq2seq import write_model
from tests.extensions.generation.test_chat_format import vocabulary
from tests.factories import tiny_folder

import bertkit
from bertkit.checkpoint.directory import save
from bertkit.extensions.generation.chat_format import Message
from bertkit.extensions.generation.continuous_batching import LiveBatch, LiveText
from bertkit.extensions.generation.decoding import Decoding
from bertkit.extensions.generation.pipeline import Generate
from bertkit.extensions.generation.summarize import WriteSummaries
from bertkit.extensions.serving.batcher import Batcher
from bertkit.extensions.serving.limits import Limits
from bertkit.extensions.serving.metrics import Metrics
from bertkit.extensions.serving.models import ModelRegistry
from bertkit.families import FAMILIES
from bertkit.models.model import build
from bertkit.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "writer"
    shape: dict[str, Any] = {"hidden": 32, "layers": 2, "intermediate": 64, "length": 200}
    family = FAMILIES["llama"]
    return tiny_folder(folder, vocabulary("chatml"), "lm", family=family, spread=0.2, **shape)


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("served") / "translator"
    core = vocabulary("plain").core
    core.add_special_tokens(["<pad>", "<unk>", "<s>", "</s>"])
    tokenizer, family = Tokenizer(core, {"eos_token": "</s>"}), FAMILIES["bart"]
    hf_config = {"vocab_size": tokenizer.vocab_size, "d_model": 32, "max_position_embeddings": 64}
    for side in ("encoder", "decoder"):
        hf_config |= {f"{side}_layers": 2, f"{side}_attention_heads": 2, f"{side}_ffn_dim": 64}
    hf_config["pad_token_id"] = tokenizer.pad
    torch.manual_seed(0)
    model = build(family.read_config(hf_config), ("lm",), decoder=family.read_decoder(hf_config))
    save(out, model, tokenizer, family)
    return out


@pytest.fixture(scope="module")
def registry(folder: Path) -> ModelRegistry:
    return ModelRegistry([str(folder)], None)


@pytest.fixture(scope="module")
def writer(folder: Path) -> Generate:
    return Generate(bertkit.load(folder))


PROMPT = {"prompt": "once upon", "max_tokens": 12, "seed": 3}
TALK = {"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 9}


def generate_alone(
    writer: Generate, prompt: str, tokens: int, temperature: float, seed: int
) -> str:
    decoding = Decoding(max_tokens=tokens, temperature=temperature, seed=seed)
    return writer([prompt], decoding)[0][0].text


def test_completions_route_matches_pipeline(server: Server, writer: Generate) -> None:
    client = server()
    answer = client.post("/v1/completions", json=PROMPT)
    assert answer.status_code == 200
    body = answer.json()
    ((text,),) = writer(["once upon"], Decoding(max_tokens=12, temperature=1.0, seed=3))
    assert body["choices"][0]["text"] == text.text
    assert body["choices"][0]["finish_reason"] == ("length" if text.ended == "length" else "stop")
    assert body["usage"] == {
        "prompt_tokens": 9, "completion_tokens": text.tokens, "total_tokens": 9 + text.tokens
    }  # fmt: skip
    assert body["model"] == "writer"


def test_chat_route_matches_pipeline(server: Server, writer: Generate) -> None:
    body = server().post("/v1/chat/completions", json={**TALK, "temperature": 0}).json()
    ((text,),) = writer([[Message("user", "Who are you?")]], Decoding(max_tokens=9))
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": text.text}
    assert body["object"] == "chat.completion"


def events(raw: str) -> Iterator[dict[str, Any]]:
    *lines, last = [line for line in raw.split("\n\n") if line]
    assert last == "data: [DONE]"
    for line in lines:
        yield json.loads(line.removeprefix("data: "))


def test_stream_parts_concatenate_to_the_text(server: Server) -> None:
    client = server()
    whole = client.post("/v1/completions", json={**PROMPT, "n": 2}).json()
    choices = whole["choices"]
    body = {**PROMPT, "n": 2, "stream": True, "stream_options": {"include_usage": True}}
    with client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        *parts, usage = events(answer.read().decode())
    assert usage["usage"] == whole["usage"]
    # The prompt counts once, as in OpenAI's API.
    single = client.post("/v1/completions", json=PROMPT).json()["usage"]
    assert usage["usage"]["prompt_tokens"] == single["prompt_tokens"]
    assert usage["usage"]["completion_tokens"] > single["completion_tokens"]
    for index, choice in enumerate(choices):
        choice_parts = [p["choices"][0] for p in parts if p["choices"][0]["index"] == index]
        assert "".join(part["text"] for part in choice_parts) == choice["text"]
        assert choice_parts[-1]["finish_reason"] == choice["finish_reason"]
        assert len(choice_parts) > 3
    assert choices[0]["text"] != choices[1]["text"]


def test_stream_is_rejected_if_not_started_in_time(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def parts(_: LiveText) -> AsyncIterator[Any]:
        await asyncio.sleep(60)
        yield None

    monkeypatch.setattr(LiveText, "parts", parts)
    answer = server(Limits(timeout=0.2)).post("/v1/completions", json={**PROMPT, "stream": True})
    assert answer.status_code == 429
    assert answer.json()["error"]["message"].startswith("no response within 0.2 s")


def test_concurrent_requests_match_texts_of_single_requests(
    server: Server, writer: Generate
) -> None:
    client = server()
    requests = [
        (f"text {number} " * (1 + number % 3), 5 + 3 * number, 0.5 * (number % 3), number)
        for number in range(12)
    ]

    def complete(request: tuple[str, int, float, int]) -> str:
        prompt, tokens, temperature, seed = request
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": temperature, "seed": seed}
        text: str = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
        return text

    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(complete, requests))
    assert together == [generate_alone(writer, *request) for request in requests]


def test_closed_stream_leaves_the_batch_before_next_step(writer: Generate) -> None:
    async def run() -> None:
        live, texts = LiveBatch(writer, 4096), []
        rules, decoding = writer.rules([""]), Decoding(max_tokens=100)
        for prompt in ("a", "b"):
            (request,) = writer.requests([prompt])
            texts.append(LiveText(writer, request, decoding, rules, ()))
        live.waiting.extend(texts)
        assert live.step(live.take()) == 2
        texts[0].gone = True
        assert live.step(live.take()) == 1
        num_tokens = len(texts[0].row.ids)
        while live:
            live.step(live.take())
        assert len(texts[0].row.ids) == num_tokens
        assert texts[1].row.ended is not None

    asyncio.run(run())


def test_closed_stream_frees_the_queue(writer: Generate) -> None:
    batcher = Batcher(queue_tokens=10_000, batch_tokens=4096, metrics=Metrics())

    async def run() -> None:
        rules, decoding = writer.rules([""]), Decoding(max_tokens=180)
        (request,) = writer.requests(["a"])
        text = LiveText(writer, request, decoding, rules, ())
        batcher.write(writer, [text])
        async for _ in text.parts():
            break
        batcher.leave([text])
        for _ in range(200):
            if not batcher.writing:
                break
            await asyncio.sleep(0.01)
        assert not batcher.writing
        assert text.row.ended is None

    asyncio.run(run())
    assert batcher.waiting == 0
    batcher.close()


def test_failed_step_returns_500_and_next_request_succeeds(
    server: Server, registry: ModelRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = registry.supporting("write")["writer"]
    assert isinstance(pipeline, Generate)
    client = server()

    def fail(*_: Any) -> None:
        raise ArithmeticError

    with monkeypatch.context() as patch:
        patch.setattr(pipeline.stepper, "start", fail)
        assert client.post("/v1/completions", json=PROMPT).status_code == 500
    assert client.post("/v1/completions", json=PROMPT).status_code == 200


@pytest.mark.parametrize(
    ("route", "body", "message"),
    [
        ("completions", {"prompt": "x" * 300}, "leaves no space for new tokens"),
        ("completions", {"prompt": "a", "top_p": 0}, "0"),
        ("completions", {"prompt": "a", "stop": ""}, "length"),
        ("completions", {"prompt": "a", "n": 9}, "8"),
        ("completions", {"prompt": "a", "logit_bias": {"5": 1}}, "not supported"),
        ("chat/completions", {"messages": []}, "length"),
        ("chat/completions", {"messages": [{"role": "bot", "content": "a"}]}, "bot"),
        ("chat/completions", {"messages": [{"role": "user", "content": " "}]}, "is empty"),
    ],
)
def test_routes_reject_invalid_request(
    route: str, body: dict[str, Any], message: str, server: Server
) -> None:
    answer = server().post(f"/v1/{route}", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
    assert message in answer.json()["error"]["message"]


def test_completions_route_rejects_request_larger_than_queue(server: Server) -> None:
    client = server(limits=Limits(queue_tokens=50))
    answer = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 90})
    assert answer.status_code in (400, 429)


def test_info_health_and_openapi_describe_the_model(server: Server) -> None:
    client = server()
    assert client.get("/health/ready").status_code == 200
    (model,) = client.get("/info").json()["models"]
    assert model["answers"] == ["write", "next-token", "chat", "contexts", "explain"]
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/v1/completions", "/v1/chat/completions"} <= set(paths)
    assert "/embed" not in paths


def test_page_shows_text_and_token_probabilities(server: Server, writer: Generate) -> None:
    client = server()
    page = client.get("/ask?what=write&text=once+upon").text
    ((text,),) = writer(["once upon"], Decoding(max_tokens=100))
    assert "Probability of each token" in page
    assert page.count("<tr") > text.tokens
    response = client.get("/ask", params={"what": "chat", "text": "and?", "other": "hi\nhello"})
    assert response.status_code == 200
    assert "Probability of each token" in response.text
    invalid = client.get("/ask", params={"what": "chat", "text": "and?", "other": "hi"})
    assert "must end with the model" in invalid.text


def test_summarize_route_matches_pipeline(server: Server, tmp_path: Path) -> None:
    """Abstractive and extractive models share the route and the response format."""
    folder = write_model(tmp_path / "bart", "bart")
    client = server(at=ModelRegistry([str(folder)], None))
    texts = ["the cat sat on the mat and slept", "the cat " * 100]
    answers = client.post("/summarize", json={"inputs": texts}).json()
    expected = WriteSummaries(bertkit.load(folder))(texts)
    assert [answer["text"] for answer in answers] == [summary.text for summary in expected]
    assert [answer["truncated"] for answer in answers] == [False, True]
    assert "/summarize" in client.get("/openapi.json").json()["paths"]
    page = client.get("/ask", params={"what": "summarize", "text": texts[0]})
    assert page.status_code == 200
    assert client.post("/summarize", json={"inputs": " "}).status_code == 422


def test_translate_route_matches_pipeline(server: Server, translator: Path) -> None:
    client = server(at=ModelRegistry([str(translator)], None))
    texts = ["a b c", "d"]
    answers = client.post("/translate", json={"inputs": texts, "num_beams": 3}).json()
    pipeline = Generate(bertkit.load(translator))
    expected = pipeline(texts, Decoding(num_beams=3))
    assert [answer["text"] for answer in answers] == [best.text for best, *_ in expected]
    assert set(answers[0]) == {"text", "score", "tokens", "ended"}
    single = client.post("/translate", json={"inputs": "d", "num_beams": 3}).json()
    assert single["text"] == answers[1]["text"]
    assert client.post("/v1/completions", json=PROMPT).status_code == 404
    assert client.get("/ask?what=translate&text=a").status_code == 200
