"""Responses of each route match the library, in the formats that clients expect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.extensions.conftest import KINDS, LENGTH, Server
from tests.factories import tiny_folder, tiny_tokenizer

import bertkit
from bertkit.checkpoint.directory import save
from bertkit.extensions.generation.families.openai_gpt import OPENAI_GPT
from bertkit.extensions.search.pipeline import SearchPipeline
from bertkit.extensions.serving.limits import Limits
from bertkit.extensions.serving.models import ModelRegistry
from bertkit.families import BERT
from bertkit.nn.pooling import Pooling
from bertkit.tasks.classify import Classify
from bertkit.tasks.labeled_text import ClassifyOptions
from bertkit.text.causal_format import add_causal_tokens
from bertkit.text.prompts import Prompts

LONG = "a b c d e f g h i j k l m n o p q"
ONE_CHOICE = {"text": "a", "choices": ["b"]}


def to_builtins(answer: Any) -> Any:
    return msgspec.to_builtins(answer)


def is_close(actual: Any, expected: Any) -> bool:
    """Return whether values are equal, with a tolerance of 1e-5 for floats."""
    if isinstance(expected, dict):
        return actual.keys() == expected.keys() and all(
            is_close(actual[k], expected[k]) for k in expected
        )
    if isinstance(expected, list | tuple):
        return len(actual) == len(expected) and all(map(is_close, actual, expected))
    if isinstance(expected, float):
        return bool(actual == pytest.approx(expected, abs=1e-5))
    return bool(actual == expected)


def test_embed_and_similarity_match_pipeline(server: Server, folders: Path) -> None:
    client, texts = server(), ["a b", "c", "d e f g"]
    raw = bertkit.pipeline("embed", folders / "pretrained")(texts)
    unit = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    response = client.post("/embed", json={"inputs": texts})
    np.testing.assert_allclose(response.json(), unit, atol=1e-5)
    assert "x-truncated" not in response.headers
    unnormalized = client.post("/embed", json={"inputs": "c", "normalize": False})
    np.testing.assert_allclose(unnormalized.json(), raw[1:2], atol=1e-5)
    few = client.post("/embed", json={"inputs": "c", "dimensions": 4}).json()
    np.testing.assert_allclose(few[0], raw[1, :4] / np.linalg.norm(raw[1, :4]), atol=1e-5)
    body = {"inputs": {"source_sentence": "a b", "sentences": texts}}
    similarities = client.post("/similarity", json=body)
    np.testing.assert_allclose(similarities.json(), unit @ unit[0], atol=1e-5)


def test_embed_adds_prompt_to_texts(
    server: Server, folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The prompt is selected by name, with a default, and unknown names are rejected."""
    loaded = bertkit.load(folders / "pretrained")
    prompts = Prompts({"query": "q u ", "document": "d o "}, "document")
    model_dir = tmp_path / "prompted"
    save(model_dir, loaded.model, loaded.tokenizer, BERT, pooling=Pooling(prompts=prompts))
    client = server(at=ModelRegistry([str(model_dir), str(folders / "pretrained")], None))
    assert "prompt: 'd o '" in capsys.readouterr().err
    embed, texts = bertkit.pipeline("embed", model_dir), ["a b", "c"]
    rows = {}
    choices = {"query": {"prompt_name": "query"}, "document": {}, "": {"prompt_name": ""}}
    for name, options in choices.items():
        raw = embed(texts, prompt=name)
        rows[name] = unit = raw / np.linalg.norm(raw, axis=1, keepdims=True)
        response = client.post("/embed", json={"inputs": texts, **options}).json()
        np.testing.assert_allclose(response, unit, atol=1e-5)
        response = client.post("/v1/embeddings", json={"input": texts, **options}).json()
        np.testing.assert_allclose([d["embedding"] for d in response["data"]], unit, atol=1e-5)
        pair = {"source_sentence": texts[0], "sentences": texts[1:]}
        response = client.post("/similarity", json={"inputs": pair, **options}).json()
        np.testing.assert_allclose(response, [unit[0] @ unit[1]], atol=1e-5)
    assert abs(rows["query"] - rows["document"]).max() > 1e-2
    assert abs(rows[""] - rows["document"]).max() > 1e-2
    for route, body in (("/embed", {"inputs": "a"}), ("/v1/embeddings", {"input": "a"})):
        rejected = client.post(route, json={**body, "prompt_name": "qurey"})
        assert rejected.status_code == (400 if route.startswith("/v1/") else 422)
        assert "prompt 'qurey' not found; the model has query, document" in rejected.text
    about = {model["name"]: model["prompts"] for model in client.get("/info").json()["models"]}
    assert about == {"prompted": ["query", "document"], "pretrained": []}


def test_search_adds_query_prompt_of_store(server: Server, folders: Path, tmp_path: Path) -> None:
    pytest.importorskip("lancedb", reason="pip install 'bertkit[search]'")
    from bertkit.extensions.search.index import index
    from bertkit.extensions.search.searcher import Searcher

    (tmp_path / "a.txt").write_text("a b")
    scores = {}
    for name, prompt in (("bare", ""), ("prompted", "q u ")):
        store, model = str(tmp_path / name), folders / "pretrained"
        index([tmp_path / "a.txt"], model=model, store=store, query_prompt=prompt)
        client = server(at=ModelRegistry([str(model)], store))
        scores[name] = client.post("/search", json={"query": "c"}).json()[0]["score"]
        assert scores[name] == pytest.approx(Searcher(store)("c")[0].score, abs=1e-5)
    assert abs(scores["bare"] - scores["prompted"]) > 1e-3


def test_predict_matches_pipeline(server: Server, folders: Path) -> None:
    client, classify = server(), bertkit.pipeline("classify", folders / "sentiment")

    def expected(item: Any) -> list[dict[str, Any]]:
        scores = classify(item).scores
        return [
            {"label": label, "score": score, "truncated": False}
            for label, score in sorted(scores.items(), key=lambda pair: -pair[1])
        ]

    def predict(inputs: Any) -> Any:
        return client.post("/predict", json={"inputs": inputs}).json()

    assert is_close(predict("a b"), expected("a b"))
    assert is_close(predict(["a b"]), expected("a b"))
    assert is_close(predict(["a b", "c"]), expected(("a b", "c")))
    assert is_close(predict([["a b"], ["c"]]), [expected("a b"), expected("c")])
    assert is_close(predict([["a b", "c"]]), [expected(("a b", "c"))])


@pytest.mark.parametrize("pairs", [False, True])
def test_list_of_texts_is_pair_for_pair_models(
    pairs: bool, server: Server, folders: Path, tmp_path: Path
) -> None:
    loaded = bertkit.load(folders / "sentiment")
    settings = Classify(loaded.labels, ClassifyOptions(pairs=pairs)).settings()
    save_options = {"labels": loaded.labels, "settings": settings}
    save(tmp_path / "m", loaded.model, loaded.tokenizer, BERT, **save_options)
    client = server(at=ModelRegistry([str(tmp_path / "m")], None))

    def predict(inputs: Any) -> Any:
        return client.post("/predict", json={"inputs": inputs}).json()

    if pairs:
        pair = predict([["a b", "c"]])[0]
        assert is_close(predict(["a b", "c"]), pair)
        message = "for this model, a list of texts is a pair, but the list has 3"
        assert message in predict(["a", "b", "c"])["error"]
        assert "expected a pair, got a single text" in predict(["a b"])["error"]
    else:
        first, second = predict("a b"), predict("c")
        assert first != second
        assert is_close(predict(["a b", "c"]), [first, second])
        assert is_close(predict(["a b"]), [first])
        assert is_close(predict([["a b"], ["c"]]), [first, second])
        assert is_close(predict(["c"] * 3), [second] * 3)


def test_task_routes_match_pipelines(server: Server, folders: Path) -> None:
    client = server()
    tag = bertkit.pipeline("tag", folders / "entities")
    assert is_close(client.post("/ner", json={"inputs": "a b"}).json(), to_builtins(tag("a b")))
    many = client.post("/ner", json={"inputs": ["a b", LONG]}).json()
    assert is_close(many, to_builtins(tag(["a b", LONG])))
    read = bertkit.pipeline("answer", folders / "reader")
    question = {"question": "a?", "context": f"{LONG} {LONG}"}
    expected = to_builtins(read(("a?", f"{LONG} {LONG}")))
    assert is_close(client.post("/answer", json={"inputs": question}).json(), expected)
    assert is_close(client.post("/answer", json={"inputs": [question] * 2}).json(), [expected] * 2)
    choose = bertkit.pipeline("choose", folders / "ending")
    choice = {"text": "a b", "choices": ["c", "d e"]}
    expected = to_builtins(choose(("a b", ["c", "d e"])))
    body = {"inputs": choice, "model": "ending"}
    assert is_close(client.post("/choose", json=body).json(), expected)
    assert is_close(client.post("/choose", json={"inputs": [choice]}).json(), [expected])


def test_routes_of_pretrained_heads_match_pipelines(server: Server, folders: Path) -> None:
    client = server()
    fill = bertkit.pipeline("fill-mask", folders / "pretrained")
    texts = ["a [MASK] c [MASK]", "[MASK] b"]
    response = client.post("/fill-mask", json={"inputs": texts, "top": 3}).json()
    assert is_close(response, to_builtins(fill.run(fill.prepare(texts, top=3))))
    single = client.post("/fill-mask", json={"inputs": texts[1]}).json()
    assert is_close(single, to_builtins(fill.run(fill.prepare(texts[1:]))[0]))
    follows = bertkit.pipeline("next-sentence", folders / "pretrained")
    expected = to_builtins(follows(["a b", "c"], ["d", "e"]))
    pairs = [["a b", "d"], ["c", "e"]]
    assert is_close(client.post("/next-sentence", json={"inputs": pairs}).json(), expected)
    assert is_close(client.post("/next-sentence", json={"inputs": pairs[0]}).json(), expected[0])


def test_rerank_matches_pipeline(server: Server, folders: Path) -> None:
    client, texts = server(), ["b c", "d", "a a a"]
    raw = bertkit.pipeline("rerank", folders / "ranker")("a", texts)
    order = np.argsort(-raw, kind="stable").tolist()
    body = {"query": "a", "texts": texts, "model": "ranker"}
    response = client.post("/rerank", json={**body, "raw_scores": True, "return_text": True}).json()
    expected = [{"index": i, "score": float(raw[i]), "text": texts[i]} for i in order]
    assert is_close(response, expected)
    shown = client.post("/rerank", json=body).json()
    assert is_close(shown, [{"index": i, "score": float(1 / (1 + np.exp(-raw[i])))} for i in order])


def test_tokenize_returns_tokens_with_offsets(server: Server) -> None:
    response = server().post("/tokenize", json={"inputs": ["a bz", "c"]}).json()
    texts = [[token["text"] for token in row] for row in response]
    assert texts == [["[CLS]", "a", "bz", "[SEP]"], ["[CLS]", "c", "[SEP]"]]
    cls, first, *_ = response[0]
    assert first == {"id": 5, "text": "a", "special": False, "start": 0, "stop": 1}
    assert cls == {"id": 2, "text": "[CLS]", "special": True, "start": None, "stop": None}
    bare = server().post("/tokenize", json={"inputs": "c", "add_special_tokens": False}).json()
    assert [[t["text"] for t in row] for row in bare] == [["c"]]


def test_tokenize_and_decode_are_inverse(server: Server, folders: Path, tmp_path: Path) -> None:
    loaded = bertkit.load(folders / "pretrained")
    pooling = Pooling(prompts=Prompts({"query": "q u "}, "query"))
    save(tmp_path / "prompted", loaded.model, loaded.tokenizer, BERT, pooling=pooling)
    client = server(at=ModelRegistry([str(tmp_path / "prompted")], None))

    def ids(**fields: Any) -> list[list[int]]:
        rows = client.post("/tokenize", json={"inputs": ["a b", "[MASK] c"], **fields}).json()
        return [[token["id"] for token in row] for row in rows]

    def decode(**fields: Any) -> Any:
        return client.post("/decode", json=fields).json()

    assert decode(ids=ids()) == ["a b", "c"]
    assert decode(ids=ids()[0]) == ["a b"]
    assert decode(ids=ids(prompt_name="query")) == ["q u a b", "q u c"]
    full = ["[CLS] a b [SEP]", "[CLS] [MASK] c [SEP]"]
    assert decode(ids=ids(), skip_special_tokens=False) == full


def test_embed_all_returns_state_of_each_token(server: Server, folders: Path) -> None:
    client, texts = server(), ["a b", "c"]
    expected = bertkit.pipeline("token-embeddings", folders / "pretrained")(texts)
    states = client.post("/embed_all", json={"inputs": texts}).json()
    assert [len(rows) for rows in states] == [4, 3]
    for rows, tokens in zip(states, expected, strict=True):
        np.testing.assert_allclose(rows, tokens.embeddings, atol=1e-5)
    rows_of_tokens = client.post("/tokenize", json={"inputs": texts}).json()
    ids = [[token["id"] for token in row] for row in rows_of_tokens]
    assert client.post("/embed_all", json={"inputs": ids}).json() == states
    # The embedding is the mean of the states.
    raw = client.post("/embed", json={"inputs": ids, "normalize": False}).json()
    np.testing.assert_allclose([np.mean(rows, axis=0) for rows in states], raw, atol=1e-5)
    long = client.post("/embed_all", json={"inputs": ["a", LONG], "truncate": True})
    assert long.headers["x-truncated"] == "1"


@pytest.mark.parametrize("multi_label", [False, True])
def test_raw_scores_are_logits(
    server: Server, folders: Path, tmp_path: Path, multi_label: bool
) -> None:
    loaded = bertkit.load(folders / "sentiment")
    options = ClassifyOptions(multi_label=multi_label, temperature=None if multi_label else 2.0)
    settings = Classify(loaded.labels, options).settings()
    save_options = {"labels": loaded.labels, "settings": settings}
    save(tmp_path / "m", loaded.model, loaded.tokenizer, BERT, **save_options)
    client = server(at=ModelRegistry([str(tmp_path / "m")], None))

    def scores(**fields: Any) -> np.ndarray:
        row = client.post("/predict", json={"inputs": "a b", **fields}).json()
        return np.array([label["score"] for label in sorted(row, key=lambda one: one["label"])])

    raw, probabilities = scores(raw_scores=True), scores()
    odds = np.exp(raw / (1.0 if multi_label else 2.0))
    expected = odds / (1 + odds) if multi_label else odds / odds.sum()
    np.testing.assert_allclose(probabilities, expected, atol=1e-6)
    assert abs(raw - probabilities).max() > 0.1
    assert client.get("/info").json()["models"][0]["answers"][0] == "predict"
    assert "raw-scores" not in client.get("/info").text


def test_info_has_fields_of_tei(server: Server, folders: Path) -> None:
    labels = {"0": "bad", "1": "good", "2": "mixed"}
    ids = {label: int(index) for index, label in labels.items()}
    types = {
        "pretrained": {"embedding": {"pooling": "mean"}},
        "sentiment": {"classifier": {"id2label": labels, "label2id": ids}},
        "ranker": {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}},
    }
    for name, kind in types.items():
        info = server(at=ModelRegistry([str(folders / name)], None)).get("/info").json()
        assert (info["model_id"], info["model_type"]) == (name, kind)
        assert (info["max_input_length"], info["max_client_batch_size"]) == (LENGTH, 2_048)
    info = server(at=ModelRegistry([str(folders / "entities")], None)).get("/info").json()
    assert info.get("model_type") is None  # TEI has no taggers
    assert server(at=ModelRegistry([], None)).get("/info").json()["model_id"] is None


def test_huge_token_ids_are_rejected(server: Server) -> None:
    for ids in ([2**33], [2**63], [10**20]):
        response = server().post("/decode", json={"ids": ids})
        assert response.status_code == 422, response.text


def test_json_at_root_is_sent_to_first_route(server: Server, folders: Path) -> None:
    for name, path in (("pretrained", "/embed"), ("sentiment", "/predict")):
        client = server(at=ModelRegistry([str(folders / name)], None))
        response = client.post("/", json={"inputs": "a b"})
        assert response.status_code == 200
        assert is_close(response.json(), client.post(path, json={"inputs": "a b"}).json())
        page = client.get("/", headers={"content-type": "application/json"})
        assert page.headers["content-type"].startswith("text/html")
    form = client.post("/", data={"text": "a b"})
    assert form.headers["content-type"].startswith("text/html")


def test_long_texts_are_rejected_or_truncated(server: Server) -> None:
    client = server()
    body = {"inputs": ["a", LONG]}
    rejected = client.post("/embed", json=body)
    assert rejected.status_code == 413
    assert rejected.json() == {
        "error": f"the text exceeds the maximum of {LENGTH} tokens; shorten the text, or set "
        "truncate (for all requests: bertkit serve --truncate)",
        "error_type": "Validation",
        "field": "inputs.1",
    }
    truncated = client.post("/embed", json={**body, "truncate": True})
    assert truncated.status_code == 200
    assert truncated.headers["x-truncated"] == "1"
    predicted = client.post("/predict", json={"inputs": [["a"], [LONG]], "truncate": True}).json()
    assert [[label["truncated"] for label in row] for row in predicted] == [[False] * 3, [True] * 3]
    openai = client.post("/v1/embeddings", json={"input": LONG, "truncate": True}).json()
    assert openai["data"][0]["truncated"] is True
    windows = client.post("/ner", json={"inputs": LONG, "truncate": True})
    assert (windows.status_code, windows.json()["field"]) == (422, "truncate")


def test_server_option_truncates_by_default(server: Server) -> None:
    client = server(Limits(truncate=True))
    truncated = client.post("/embed", json={"inputs": ["a", LONG]})
    assert (truncated.status_code, truncated.headers["x-truncated"]) == (200, "1")
    body = {"query": "a", "texts": [LONG], "model": "ranker"}
    assert client.post("/rerank", json=body).json()[0]["truncated"] is True
    openai = client.post("/v1/embeddings", json={"input": LONG}).json()
    assert openai["data"][0]["truncated"] is True
    untruncated = client.post("/embed", json={"inputs": LONG, "truncate": False})
    assert untruncated.status_code == 413
    assert "exceeds the maximum" in untruncated.json()["error"]
    # The tagger splits long texts into windows, and never truncates.
    windows = client.post("/ner", json={"inputs": LONG})
    assert is_close(windows.json(), server().post("/ner", json={"inputs": LONG}).json())


@pytest.mark.parametrize(
    ("route", "body", "field", "message"),
    [
        ("/embed", {}, "inputs", "this field is required"),
        ("/embed", {"inputs": ""}, "inputs", "`str` of length >= 1"),
        ("/embed", {"inputs": []}, "inputs", "`array` of length >= 1"),
        ("/embed", {"inputs": ["a", 1]}, "inputs", "expected only texts, or only lists"),
        ("/embed", {"inputs": [[1, "a"]]}, "inputs.0.1", "expected `int`, got `str`"),
        ("/decode", {"ids": [9999]}, None, "id 9999 is not in the vocabulary"),
        ("/embed", {"inputs": "a", "normalise": True}, "normalise", "did you mean 'normalize'?"),
        ("/embed", {"inputs": "a", "model": "sentiment"}, "model", "no model 'sentiment' for this"),
        ("/embed", {"inputs": "a", "dimensions": 17}, "dimensions", "must not exceed 16"),
        ("/embed", {"inputs": "a", "truncate": "yes"}, "truncate", "expected `bool | null`, got"),
        ("/fill-mask", {"inputs": "a b"}, None, "the text has no mask"),
        ("/next-sentence", {"inputs": ["a"]}, "inputs", "expected a pair [a, b], or a list"),
        ("/choose", {"inputs": ONE_CHOICE}, "inputs.choices", "`array` of length >= 2"),
        ("/tokenize", {"inputs": "a", "model": "x"}, "model", "no model 'x' for this route"),
        ("/predict", {"inputs": ["a", ["b"]]}, "inputs", "expected only texts, or only lists"),
        ("/predict", {"inputs": ["a", "b", "c"]}, "inputs", "a list of texts is a pair, but the"),
    ],
)
def test_invalid_requests_return_field_of_error(
    route: str, body: Any, field: str | None, message: str, server: Server
) -> None:
    response = server().post(route, json=body)
    status = {"`array` of length >= 1": 400}.get(message, 422)
    assert response.status_code == (404 if field == "model" else status)
    assert message in response.json()["error"]
    assert response.json().get("field") == field


def test_requests_above_limits_return_413(server: Server) -> None:
    client = server(Limits(text_characters=20, items=2, queue_tokens=64, body_bytes=500))
    for body, message in (
        ({"inputs": "a" * 21}, "a text has 21 characters, but the maximum is 20"),
        ({"inputs": ["a"] * 3}, "3 items exceed the maximum of 2"),
        ({"inputs": ["a" * 600]}, "the request body is longer than 500 bytes"),
    ):
        for route in ("/embed", "/tokenize"):
            response = client.post(route, json=body)
            assert response.status_code == 413
            assert message in response.json()["error"]


def test_search_cost_depends_on_number_of_hits(store: str | None) -> None:
    if store is None:
        pytest.skip("LanceDB is not installed: pip install 'bertkit[search]'")
    pipeline = SearchPipeline(store, "fp32", "cpu")
    (few,), (many,) = (pipeline.prepare(["c d"], long="error", top=top) for top in (10, 1000))
    # A search for many hits fills a batch, instead of sharing it with hundreds of requests.
    assert many.tokens > few.tokens + 3000
    assert many.answer_bytes > 100 * few.answer_bytes // 2
    query = "c d " * 1000
    (truncated,) = pipeline.prepare([query], long="truncate", hybrid=True)
    read, _ = truncated.item
    assert query.startswith(read)
    assert len(read) < 2 * LENGTH


def test_search_returns_filtered_hits(server: Server, store: str | None) -> None:
    if store is None:
        pytest.skip("LanceDB is not installed: pip install 'bertkit[search]'")
    client = server()
    response = client.post("/search", json={"query": "c d", "top": 2}).json()
    assert response[0]["id"] == "1"
    assert len(response) == 2
    assert response[0]["score"] == pytest.approx(1.0, abs=1e-5)
    min_score_request = {"query": "c d", "top": 2, "min_score": response[1]["score"] + 1e-4}
    assert [hit["id"] for hit in client.post("/search", json=min_score_request).json()] == ["1"]
    filtered = {"query": "c d", "where": ["year<1"]}
    assert [hit["id"] for hit in client.post("/search", json=filtered).json()] == ["0"]
    rejected_search = client.post("/search", json={"query": "c", "where": ["yer<1"]})
    assert rejected_search.status_code == 422
    assert "did you mean 'year'" in rejected_search.json()["error"]
    for value in ("nan", "1e999", "-inf"):
        response = client.post("/search", json={"query": "c", "where": [f"year>{value}"]})
        assert response.status_code == 422
        assert f"year must be a number, got '{value}'" in response.json()["error"]
    many = client.post("/search", json={"query": "c", "where": ["id!=b"] * 33})
    assert (many.status_code, many.json()["field"]) == (422, "where")
    assert client.post("/search", json={"query": LONG}).json()["field"] == "query"


def test_contexts_limits_number_and_length_of_texts(server: Server) -> None:
    client = server()
    many = client.post("/contexts", json={"word": "c", "inputs": ["c"] * 33})
    assert (many.status_code, many.json()["field"]) == (422, "inputs")
    long = client.post("/contexts", json={"word": "c", "inputs": ["c", "c " * 1001]})
    assert (long.status_code, long.json()["field"]) == (422, "inputs.1")


def test_expensive_requests_cost_more_than_their_tokens(server: Server) -> None:
    client = server(Limits(queue_tokens=200))
    # The text has 4 tokens, of which one is a mask.
    body = {"inputs": "[MASK] a", "model": "pretrained"}
    assert client.post("/fill-mask", json={**body, "top": 100}).status_code == 200
    masks = {**body, "inputs": "[MASK] " * 12}
    assert client.post("/fill-mask", json={**masks, "top": 10}).status_code == 200
    assert client.post("/fill-mask", json={**masks, "top": 100}).status_code == 200
    several = {**masks, "inputs": ["[MASK] " * 12] * 2, "top": 100}
    assert client.post("/fill-mask", json=several).status_code == 413
    # The model masks each word of the text once.
    text = {"inputs": "a b c d e a b c d e a b c", "model": "pretrained"}
    assert client.post("/explain", json=text).status_code == 413


def test_routes_depend_on_served_models(server: Server, folders: Path) -> None:
    client = server(at=ModelRegistry([str(folders / "sentiment")], None))
    assert client.post("/predict", json={"inputs": "a"}).status_code == 200
    missing = client.post("/fill-mask", json={"inputs": "[MASK]"})
    assert missing.status_code == 404
    about = client.get("/info").json()["models"]
    assert about[0]["answers"] == ["predict", "contexts", "explain"]
    assert about[0]["labels"] == list(KINDS["sentiment"][1])


def test_causal_classifier_matches_pipeline(server: Server, tmp_path: Path) -> None:
    tokenizer, labels = add_causal_tokens(tiny_tokenizer("abc")), ("bad", "good")
    save_options = {"labels": labels, "family": OPENAI_GPT, "task": "classify", "spread": 0.3}
    save_options |= {"intermediate": 64}
    folder = tiny_folder(tmp_path / "gpt", tokenizer, "classify", **save_options)
    client = server(at=ModelRegistry([str(folder)], None))
    answers = bertkit.pipeline("classify", folder)(["a b", "c"])
    for text, answer in zip(["a b", "c"], answers, strict=True):
        row = client.post("/predict", json={"inputs": text}).json()
        scores = {label["label"]: label["score"] for label in row}
        assert scores == pytest.approx(answer.scores, abs=1e-5)
    assert answers[0].scores != pytest.approx(answers[1].scores, abs=1e-5)
