"""The OpenAI and Hugging Face clients work without changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.extensions.serving.test_processes import process

import bertkit


@pytest.fixture(scope="module")
def address(folders: Path) -> Iterator[str]:
    names = [str(folders / name) for name in ("pretrained", "sentiment", "ranker")]
    with process(*names, BERTKIT_KEY="k") as (_, address):
        yield address


@pytest.fixture(scope="module")
def vectors(folders: Path) -> np.ndarray:
    raw = bertkit.pipeline("embed", folders / "pretrained")(["a b", "c"])
    return np.asarray(raw / np.linalg.norm(raw, axis=1, keepdims=True))


def test_openai_client_returns_embeddings(address: str, vectors: np.ndarray) -> None:
    openai = pytest.importorskip("openai", reason="pip install 'bertkit[dev]'")
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="k")
    result = client.embeddings.create(input=["a b", "c"], model="pretrained")
    np.testing.assert_allclose([d.embedding for d in result.data], vectors, atol=1e-5)
    assert result.usage.total_tokens == 7
    with pytest.raises(openai.AuthenticationError, match="missing or unknown API key"):
        openai.OpenAI(base_url=f"{address}/v1", api_key="x").embeddings.create(
            input="a", model="pretrained"
        )
    with pytest.raises(openai.UnprocessableEntityError, match="exceeds the maximum of 16 tokens"):
        client.embeddings.create(input="a " * 20, model="pretrained")


def test_hugging_face_client_returns_embeddings_and_similarities(
    address: str, vectors: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import InferenceClient, constants

    # The server is on this machine, so the client needs no network.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)

    def client(route: str) -> InferenceClient:
        return InferenceClient(model=f"{address}{route}", token="k")

    with client("/embed") as embed:
        result = embed.feature_extraction("a b")
    np.testing.assert_allclose(result, vectors[:1], atol=1e-5)
    with client("/similarity") as similarity:
        near = similarity.sentence_similarity("a b", other_sentences=["a b", "c"])
    np.testing.assert_allclose(near, vectors @ vectors[0], atol=1e-5)
