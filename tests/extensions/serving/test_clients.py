"""Clients of OpenAI, TEI, Hugging Face, Cohere and Haystack work with their default settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.extensions.serving.test_processes import process

import bertkit

TEXTS = ["a b", "c"]
DOCUMENTS = ["b c", "d", "a a a"]
LONG = "a " * 20
"""Text that exceeds the maximum length of the models."""


@pytest.fixture(scope="module")
def address(folders: Path) -> Iterator[str]:
    names = [str(folders / name) for name in ("pretrained", "sentiment", "ranker")]
    with process(*names, BERTKIT_KEY="k") as (_, address):
        yield address


@pytest.fixture(scope="module")
def vectors(folders: Path) -> np.ndarray:
    raw = bertkit.pipeline("embed", folders / "pretrained")(TEXTS)
    return np.asarray(raw / np.linalg.norm(raw, axis=1, keepdims=True))


@pytest.fixture(scope="module")
def relevance(folders: Path) -> np.ndarray:
    scores = bertkit.pipeline("rerank", folders / "ranker")("a", DOCUMENTS)
    return np.asarray(1 / (1 + np.exp(-scores)))


def post(address: str, route: str, **body: Any) -> Any:
    """Return the decoded response to a request without a client."""
    response = httpx.post(f"{address}{route}", json=body, headers={"authorization": "Bearer k"})
    assert response.status_code == 200, response.text
    return response.json()


def test_openai_client_returns_embeddings(address: str, vectors: np.ndarray) -> None:
    openai = pytest.importorskip("openai", reason="pip install 'bertkit[dev]'")
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="k")
    ids = [[token["id"] for token in row] for row in post(address, "/tokenize", inputs=TEXTS)]
    for inputs in (TEXTS, ids):
        result = client.embeddings.create(input=inputs, model="pretrained")
        np.testing.assert_allclose([d.embedding for d in result.data], vectors, atol=1e-5)
        assert (result.usage.prompt_tokens, result.usage.total_tokens) == (7, 7)
    for inputs in (TEXTS[0], ids[0]):
        result = client.embeddings.create(
            input=inputs, model="pretrained", encoding_format="float", dimensions=4, user="me"
        )
        few = vectors[0, :4] / np.linalg.norm(vectors[0, :4])
        np.testing.assert_allclose(result.data[0].embedding, few, atol=1e-5)


def test_openai_client_raises_errors_of_openai(address: str) -> None:
    openai = pytest.importorskip("openai", reason="pip install 'bertkit[dev]'")

    def error(kind: Any, key: str = "k", model: str = "pretrained", **request: Any) -> Any:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key=key)
        with pytest.raises(kind) as raised:
            client.embeddings.create(model=model, **request)
        return raised.value.type, raised.value.param, raised.value.code

    invalid = "invalid_request_error"
    assert error(openai.AuthenticationError, "x", input="a") == (invalid, None, "invalid_api_key")
    missing = error(openai.NotFoundError, model="none", input="a")
    assert missing == (invalid, "model", "model_not_found")
    long = error(openai.BadRequestError, input=["a", LONG])
    assert long == (invalid, "input.1", "context_length_exceeded")
    assert error(openai.BadRequestError, input=[]) == (invalid, "input", None)
    # Ids of another vocabulary.
    for ids in ([4437, 1917], [[5], [9999]]):
        assert error(openai.BadRequestError, input=ids) == (invalid, "input", None)


def test_hugging_face_client_works_with_each_route(
    address: str, folders: Path, vectors: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import InferenceClient, constants

    # The server is on this machine, so the client needs no network.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)

    def client(route: str) -> InferenceClient:
        return InferenceClient(model=f"{address}{route}", token="k")

    for route in ("", "/", "/embed"):
        with client(route) as embed:
            result = embed.feature_extraction("a b")
            options = {"normalize": True, "truncate": True, "truncation_direction": "left"}
            many = embed.feature_extraction(TEXTS, **options)  # type: ignore[arg-type]
        np.testing.assert_allclose(result, vectors[:1], atol=1e-5)
        np.testing.assert_allclose(many, vectors, atol=1e-5)
    with client("/similarity") as similarity:
        near = similarity.sentence_similarity("a b", other_sentences=["a b", "c"])
    np.testing.assert_allclose(near, vectors @ vectors[0], atol=1e-5)
    with client("/predict") as predict:
        best = predict.text_classification("a b")
    expected = bertkit.pipeline("classify", folders / "sentiment")("a b")
    # The client returns the first element of the response, which TEI does not nest.
    assert (best.label, best.score) == (expected.label, pytest.approx(expected.score, abs=1e-5))


def test_haystack_embedder_uses_server_like_tei(
    address: str, vectors: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "haystack_integrations.components.embedders.huggingface_api"
    haystack = pytest.importorskip(name, reason="pip install 'bertkit[dev]'")
    from haystack.utils import Secret
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    embedder = haystack.HuggingFaceAPITextEmbedder(
        api_type="text_embeddings_inference",
        api_params={"url": address},
        token=Secret.from_token("k"),
    )
    # Its default is normalize=False.
    raw = np.array(embedder.run(text="a b")["embedding"])
    np.testing.assert_allclose(raw / np.linalg.norm(raw), vectors[0], atol=1e-5)


@pytest.mark.parametrize("version", ["Client", "ClientV2"])
def test_cohere_client_ranks_documents(address: str, relevance: np.ndarray, version: str) -> None:
    cohere = pytest.importorskip("cohere", reason="pip install 'bertkit[dev]'")
    with getattr(cohere, version)("k", base_url=address) as client:
        result = client.rerank(model="ranker", query="a", documents=DOCUMENTS)
        order = np.argsort(-relevance).tolist()
        assert [item.index for item in result.results] == order
        scores = [item.relevance_score for item in result.results]
        np.testing.assert_allclose(scores, relevance[order], atol=1e-5)
        assert result.id
        assert result.meta.tokens.input_tokens == 18
        # Cohere truncates long documents.
        options: dict[str, Any] = {"max_tokens_per_doc": 4096} if version == "ClientV2" else {}
        ranking = {"model": "ranker", "query": "a", "documents": [*DOCUMENTS, LONG], **options}
        every, top = client.rerank(**ranking), client.rerank(**ranking, top_n=1)
        assert {result.index for result in every.results} == {0, 1, 2, 3}
        assert [result.index for result in top.results] == [every.results[0].index]
        with pytest.raises(cohere.NotFoundError, match="model_not_found"):
            client.rerank(model="none", query="a", documents=DOCUMENTS)
        with pytest.raises(cohere.BadRequestError, match="documents"):
            client.rerank(model="ranker", query="a", documents=[])
        if version == "Client":
            result = client.rerank(
                query="a", documents=[{"text": "b c", "title": "t"}], return_documents=True
            )
            assert result.results[0].document.text == "b c"
            assert result.results[0].document.title == "t"


def test_jina_request_returns_documents_and_usage(address: str, relevance: np.ndarray) -> None:
    body = {"model": "ranker", "query": "a", "documents": DOCUMENTS, "top_n": 2}
    response = post(address, "/v1/rerank", **body)
    best = int(relevance.argmax())
    assert response["model"] == "ranker"
    assert response["usage"] == {"prompt_tokens": 18, "total_tokens": 18}
    assert len(response["results"]) == 2
    assert response["results"][0] == {
        "index": best,
        "relevance_score": pytest.approx(float(relevance[best]), abs=1e-5),
        "document": {"text": DOCUMENTS[best]},
    }
    bare = post(address, "/v1/rerank", **body, return_documents=False)
    assert all(item.keys() == {"index", "relevance_score"} for item in bare["results"])
