"""The memory budget counts memory before its use, and releases all of it."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.extensions.conftest import Server
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from bertkit import memory
from bertkit.extensions.generation.chat_format import Message
from bertkit.extensions.serving.limits import Limits
from bertkit.extensions.serving.memory_budget import TRIM_BYTES, Budget, max_tokens
from bertkit.extensions.serving.metrics import Metrics
from bertkit.web import RequestError


def byte_tokenizer() -> Tokenizer:
    """Return a tokenizer with one token per byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: index for index, letter in enumerate(alphabet)}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return core


def character_tokenizer(normalizer: Any) -> Tokenizer:
    """Return a tokenizer with one token per character."""
    core = Tokenizer(models.WordPiece(vocab={"[UNK]": 0}, unk_token="[UNK]"))
    core.normalizer = normalizer
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return core


CORES = [
    byte_tokenizer(),
    character_tokenizer(normalizers.NFKD()),
    character_tokenizer(normalizers.NFKC()),
    character_tokenizer(normalizers.BertNormalizer()),
]


@given(st.text(max_size=50))
@example("\ufdfa\uac01\U0001f600\u1e9e" * 3)
def test_max_tokens_bounds_tokens_of_any_tokenizer(text: str) -> None:
    # BERT adds spaces around Chinese characters, and no vocabulary has a token for a space.
    counts = [sum(token != " " for token in core.encode(text).tokens) for core in CORES]
    assert max(counts) <= max(max_tokens(text), 1)


def test_max_tokens_counts_text_once_per_choice() -> None:
    assert max_tokens(("abc", ["de", "f"])) == 2 * (3 + 2) + 3
    assert max_tokens(("abc", "de")) == 5
    assert max_tokens(("abc", None, ())) == 3
    assert max_tokens([Message("user", "abc")]) == 4 + 3


def test_budget_rejects_requests_above_free_memory() -> None:
    budget = Budget(100, Metrics())
    for count, status in ((101, 413), (60, None), (41, 429), (40, None)):
        if status is None:
            budget.take(count)
            continue
        with pytest.raises(RequestError) as raised:
            budget.take(count)
        assert raised.value.status == status
    budget.give(100)
    assert budget.used == 0


def test_budget_trims_memory_after_large_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    trims: list[int] = []
    monkeypatch.setattr(memory, "give_back", lambda: trims.append(1))

    async def read_texts() -> None:
        budget = Budget(TRIM_BYTES, Metrics())
        for _ in range(4):
            budget.take(TRIM_BYTES // 2)
            budget.read(TRIM_BYTES // 2)

    asyncio.run(read_texts())
    assert len(trims) == 2


def test_request_above_memory_limit_returns_413(server: Server) -> None:
    """A text with two choices fits, and a text with forty choices does not."""
    client = server(Limits(memory_bytes=8 << 20))

    def ask(choices: int) -> Any:
        item = {"text": "a" * 1_000, "choices": ["b"] * choices}
        return client.post("/choose", json={"inputs": item, "truncate": True, "model": "ending"})

    assert ask(2).status_code == 200
    response = ask(40)
    assert (response.status_code, response.json()["error_type"]) == (413, "Validation")
    assert "the maximum (memory_bytes) is 8 MB" in response.json()["error"]
    assert ask(2).status_code == 200
    assert "bertkit_memory_bytes 0.0" in client.get("/metrics").text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/embed", {"inputs": ["a" * 9_000] * 3, "truncate": True}),
        ("/embed", {"inputs": ["a b " * 9_000]}),
        ("/tokenize", {"inputs": ["a b " * 20_000] * 4}),
        ("/ner", {"inputs": "a"}),
        ("/embed", {"inputs": "\ud800"}),
        ("/explain", {"inputs": "a b c", "model": "pretrained"}),
        ("/contexts", {"word": "a", "inputs": ["a b", "c a"]}),
    ],
)
def test_memory_count_is_zero_after_each_request(path: str, body: Any, server: Server) -> None:
    client = server()
    headers = {"content-type": "application/json"}
    response = client.post(path, content=json.dumps(body), headers=headers)
    assert response.status_code in (200, 413, 422)
    assert "bertkit_memory_bytes 0.0" in client.get("/metrics").text


def test_texts_tokenized_in_parts_keep_order(server: Server, folders: Path) -> None:
    """Errors contain the index of a text, even if a thread tokenizes the texts in parts."""
    client = server(Limits(queue_tokens=10**6, batch_tokens=10**6))
    texts = ["a " * 5_000 + letter for letter in "abc"] + ["x y"] * 20 + ["b " * 40_000] * 2
    rows = client.post("/tokenize", json={"inputs": texts}).json()
    assert [row[-2]["text"] for row in rows] == [*"abc", *"y" * 20, *"bb"]
    assert [len(row) for row in rows] == [5_003] * 3 + [4] * 20 + [40_002] * 2
    long = client.post("/embed", json={"inputs": ["a", *["b" * 99_000] * 2, "a " * 40_000]}).json()
    assert long["field"] == "inputs.3"


def test_embeddings_accept_2048_texts_within_token_limit(server: Server) -> None:
    client, few = server(), server(Limits(queue_tokens=8_192))
    texts = ["abcdefghijklm"[: 1 + index % 13] for index in range(2_048)]
    body = {"input": [" ".join(text) for text in texts]}
    response = client.post("/v1/embeddings", json=body).json()
    assert [row["index"] for row in response["data"]] == list(range(2_048))
    error = client.post("/v1/embeddings", json={"input": [*body["input"], "a"]})
    assert (error.status_code, error.json()["error"]["param"]) == (400, "input")
    over = few.post("/v1/embeddings", json=body)
    assert over.json()["error"]["code"] == "context_length_exceeded"
    assert "exceeds the maximum of 8,192 tokens" in over.json()["error"]["message"]
    for checked_client in (client, few):
        assert "bertkit_memory_bytes 0.0" in checked_client.get("/metrics").text


def test_rerank_with_long_query_ends_after_timeout(server: Server) -> None:
    """The limit of tokens does not bound the time, because the query is tokenized per text."""
    client, start = server(Limits(timeout=0.5)), time.monotonic()
    body = {"query": "." * 99_999, "texts": ["a"] * 2_048, "truncate": True, "model": "ranker"}
    response = client.post("/rerank", json=body)
    assert (response.status_code, "no response within" in response.json()["error"]) == (429, True)
    assert time.monotonic() < start + 10
    # The memory is released when the thread has ended.
    while "bertkit_memory_bytes 0.0" not in client.get("/metrics").text:
        assert time.monotonic() < start + 20
        time.sleep(0.05)
