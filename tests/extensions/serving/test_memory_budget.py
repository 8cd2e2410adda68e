"""Memory is counted before it is used, and all of it is given back."""

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


def of_bytes() -> Tokenizer:
    """A piece for each byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: place for place, letter in enumerate(alphabet)}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return core


def of_letters(normalizer: Any) -> Tokenizer:
    """A piece for each character, known or not."""
    core = Tokenizer(models.WordPiece(vocab={"[UNK]": 0}, unk_token="[UNK]"))
    core.normalizer = normalizer
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return core


CORES = [
    of_bytes(),
    of_letters(normalizers.NFKD()),
    of_letters(normalizers.NFKC()),
    of_letters(normalizers.BertNormalizer()),
]


@given(st.text(max_size=50))
@example("\ufdfa\uac01\U0001f600\u1e9e" * 3)
def test_no_text_has_more_pieces_than_are_counted(text: str) -> None:
    # BERT puts white space around Chinese characters, which no vocabulary has a piece for
    found = [sum(token != " " for token in core.encode(text).tokens) for core in CORES]
    assert max(found) <= max(max_tokens(text), 1)


def test_a_text_is_counted_with_each_of_its_choices() -> None:
    assert max_tokens(("abc", ["de", "f"])) == 2 * (3 + 2) + 3
    assert max_tokens(("abc", "de")) == 5
    assert max_tokens(("abc", None, ())) == 3
    assert max_tokens([Message("user", "abc")]) == 4 + 3


def test_more_than_there_is_and_more_than_is_left_are_refused() -> None:
    budget = Budget(100, Metrics())
    for count, status in ((101, 413), (60, None), (41, 429), (40, None)):
        if status is None:
            budget.take(count)
            continue
        with pytest.raises(RequestError) as refused:
            budget.take(count)
        assert refused.value.status == status
    budget.give(100)
    assert budget.used == 0


def test_malloc_is_asked_for_what_threads_read_with(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(memory, "give_back", lambda: asked.append(1))

    async def reads() -> None:
        budget = Budget(TRIM_BYTES, Metrics())
        for _ in range(4):
            budget.take(TRIM_BYTES // 2)
            budget.read(TRIM_BYTES // 2)

    asyncio.run(reads())
    assert len(asked) == 2


def test_what_a_request_becomes_is_counted_before(server: Server) -> None:
    """A text that is read with two choices fits, and not with forty."""
    client = server(Limits(memory_bytes=8 << 20))

    def ask(choices: int) -> Any:
        asked = {"text": "a" * 1_000, "choices": ["b"] * choices}
        return client.post("/choose", json={"inputs": asked, "truncate": True, "model": "ending"})

    assert ask(2).status_code == 200
    found = ask(40)
    assert (found.status_code, found.json()["error_type"]) == (413, "too_large")
    assert "the maximum (memory_bytes) is 8 MB" in found.json()["error"]
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
def test_nothing_stays_counted(path: str, body: Any, server: Server) -> None:
    client = server()
    headers = {"content-type": "application/json"}
    found = client.post(path, content=json.dumps(body), headers=headers)
    assert found.status_code in (200, 413, 422)
    assert "bertkit_memory_bytes 0.0" in client.get("/metrics").text


def test_long_lists_are_read_as_one_by_one(server: Server, folders: Path) -> None:
    """Texts that a thread reads in several parts keep their order, and their places in errors."""
    client = server(Limits(queue_tokens=10**6, batch_tokens=10**6))
    texts = ["a " * 5_000 + letter for letter in "abc"] + ["x y"] * 20 + ["b " * 40_000] * 2
    found = client.post("/tokenize", json={"inputs": texts}).json()
    assert [row[-2]["text"] for row in found] == [*"abc", *"y" * 20, *"bb"]
    assert [len(row) for row in found] == [5_003] * 3 + [4] * 20 + [40_002] * 2
    long = client.post("/embed", json={"inputs": ["a", *["b" * 99_000] * 2, "a " * 40_000]}).json()
    assert long["field"] == "inputs.3"


def test_as_many_texts_as_openai_takes_are_bounded_by_their_tokens(server: Server) -> None:
    client, few = server(), server(Limits(queue_tokens=8_192))
    texts = ["abcdefghijklm"[: 1 + place % 13] for place in range(2_048)]
    asked = {"input": [" ".join(text) for text in texts]}
    found = client.post("/v1/embeddings", json=asked).json()
    assert [row["index"] for row in found["data"]] == list(range(2_048))
    refused = client.post("/v1/embeddings", json={"input": [*asked["input"], "a"]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (413, "input")
    over = few.post("/v1/embeddings", json=asked)
    assert over.status_code == 413
    assert "exceeds the maximum of 8,192 tokens" in over.json()["error"]["message"]
    for one in (client, few):
        assert "bertkit_memory_bytes 0.0" in one.get("/metrics").text


def test_a_long_query_beside_many_texts_ends_in_time(server: Server) -> None:
    """The query is read with each text, and cut: its tokens bound no time, the timeout does."""
    client, begin = server(Limits(timeout=0.5)), time.monotonic()
    asked = {"query": "." * 99_999, "texts": ["a"] * 2_048, "truncate": True, "model": "ranker"}
    found = client.post("/rerank", json=asked)
    assert (found.status_code, "no response within" in found.json()["error"]) == (429, True)
    assert time.monotonic() < begin + 10
    while "bertkit_memory_bytes 0.0" not in client.get("/metrics").text:  # the thread has ended
        assert time.monotonic() < begin + 20
        time.sleep(0.05)
