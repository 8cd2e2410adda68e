"""Every route answers what the library answers, in the forms that its clients expect."""

from __future__ import annotations

import base64
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
from bertkit.tasks.classify import Classify, ClassifyOptions
from bertkit.text.causal_format import add_causal_tokens
from bertkit.text.prompts import Prompts

LONG = "a b c d e f g h i j k l m n o p q"


def plain(answer: Any) -> Any:
    return msgspec.to_builtins(answer)


def near(found: Any, wanted: Any) -> bool:
    """Equal, numbers to 1e-5."""
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(near(found[k], wanted[k]) for k in wanted)
    if isinstance(wanted, list | tuple):
        return len(found) == len(wanted) and all(map(near, found, wanted))
    return bool(found == (pytest.approx(wanted, abs=1e-5) if isinstance(wanted, float) else wanted))


def test_vectors(server: Server, folders: Path) -> None:
    client, texts = server(), ["a b", "c", "d e f g"]
    raw = bertkit.pipeline("embed", folders / "pretrained")(texts)
    unit = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    found = client.post("/embed", json={"inputs": texts})
    np.testing.assert_allclose(found.json(), unit, atol=1e-5)
    assert "x-truncated" not in found.headers
    one = client.post("/embed", json={"inputs": "c", "normalize": False})
    np.testing.assert_allclose(one.json(), raw[1:2], atol=1e-5)
    few = client.post("/embed", json={"inputs": "c", "dimensions": 4}).json()
    np.testing.assert_allclose(few[0], raw[1, :4] / np.linalg.norm(raw[1, :4]), atol=1e-5)
    near_ = client.post(
        "/similarity", json={"inputs": {"source_sentence": "a b", "sentences": texts}}
    )
    np.testing.assert_allclose(near_.json(), unit @ unit[0], atol=1e-5)


def test_a_prompt_stands_before_texts(
    server: Server, folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its name, the default one where none is asked for; a name that is none is refused."""
    loaded = bertkit.load(folders / "pretrained")
    prompts = Prompts({"query": "q u ", "document": "d o "}, "document")
    place = tmp_path / "prompted"
    save(place, loaded.model, loaded.tokenizer, BERT, pooling=Pooling(prompts=prompts))
    client = server(at=ModelRegistry([str(place), str(folders / "pretrained")], None))
    assert "prompt: 'd o '" in capsys.readouterr().err
    embed, texts = bertkit.pipeline("embed", place), ["a b", "c"]
    rows = {}
    for name, asked in (
        ("query", {"prompt_name": "query"}),
        ("document", {}),
        ("", {"prompt_name": ""}),
    ):
        raw = embed(texts, prompt=name)
        rows[name] = unit = raw / np.linalg.norm(raw, axis=1, keepdims=True)
        found = client.post("/embed", json={"inputs": texts, **asked}).json()
        np.testing.assert_allclose(found, unit, atol=1e-5)
        found = client.post("/v1/embeddings", json={"input": texts, **asked}).json()
        np.testing.assert_allclose([d["embedding"] for d in found["data"]], unit, atol=1e-5)
        pair = {"source_sentence": texts[0], "sentences": texts[1:]}
        found = client.post("/similarity", json={"inputs": pair, **asked}).json()
        np.testing.assert_allclose(found, [unit[0] @ unit[1]], atol=1e-5)
    assert abs(rows["query"] - rows["document"]).max() > 1e-2
    assert abs(rows[""] - rows["document"]).max() > 1e-2
    for route, body in (("/embed", {"inputs": "a"}), ("/v1/embeddings", {"input": "a"})):
        refused = client.post(route, json={**body, "prompt_name": "qurey"})
        assert refused.status_code == 422
        assert "prompt 'qurey' not found; the model has query, document" in refused.text
    about = {model["name"]: model["prompts"] for model in client.get("/info").json()["models"]}
    assert about == {"prompted": ["query", "document"], "pretrained": []}


def test_a_store_is_asked_behind_its_prompt(server: Server, folders: Path, tmp_path: Path) -> None:
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


def test_vectors_as_openai_has_them(server: Server, folders: Path) -> None:
    client = server()
    raw = bertkit.pipeline("embed", folders / "pretrained")(["a b", "c"])
    unit = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    asked = {"input": ["a b", "c"], "model": "pretrained", "user": "me"}
    found = client.post("/v1/embeddings", json=asked).json()
    assert [d["index"] for d in found["data"]] == [0, 1]
    np.testing.assert_allclose([d["embedding"] for d in found["data"]], unit, atol=1e-5)
    assert found["model"] == "pretrained"
    assert found["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    coded = client.post("/v1/embeddings", json={**asked, "encoding_format": "base64"}).json()
    rows = [np.frombuffer(base64.b64decode(d["embedding"]), "<f4") for d in coded["data"]]
    np.testing.assert_allclose(rows, unit, atol=1e-5)


def test_labels(server: Server, folders: Path) -> None:
    client, classify = server(), bertkit.pipeline("classify", folders / "sentiment")

    def wanted(item: Any) -> list[dict[str, Any]]:
        scores = classify(item).scores
        return [
            {"label": label, "score": score, "truncated": False}
            for label, score in sorted(scores.items(), key=lambda pair: -pair[1])
        ]

    def found(inputs: Any) -> Any:
        return client.post("/predict", json={"inputs": inputs}).json()

    assert near(found("a b"), wanted("a b"))
    assert near(found(["a b"]), wanted("a b"))
    assert near(found(["a b", "c"]), wanted(("a b", "c")))
    assert near(found([["a b"], ["c"]]), [wanted("a b"), wanted("c")])
    assert near(found([["a b", "c"]]), [wanted(("a b", "c"))])


@pytest.mark.parametrize("pairs", [False, True])
def test_a_list_of_texts_is_a_pair_for_a_model_of_pairs_alone(
    pairs: bool, server: Server, folders: Path, tmp_path: Path
) -> None:
    loaded = bertkit.load(folders / "sentiment")
    settings = Classify(loaded.labels, ClassifyOptions(pairs=pairs)).settings()
    more = {"labels": loaded.labels, "settings": settings}
    save(tmp_path / "m", loaded.model, loaded.tokenizer, BERT, **more)
    client = server(at=ModelRegistry([str(tmp_path / "m")], None))

    def found(inputs: Any) -> Any:
        return client.post("/predict", json={"inputs": inputs}).json()

    if pairs:
        pair = found([["a b", "c"]])[0]
        assert near(found(["a b", "c"]), pair)
        assert "so a list of texts must be a pair, got 3" in found(["a", "b", "c"])["error"]
        assert "expected a pair, got a single text" in found(["a b"])["error"]
    else:
        one, other = found("a b"), found("c")
        assert one != other
        assert near(found(["a b", "c"]), [one, other])
        assert near(found(["a b"]), [one])
        assert near(found([["a b"], ["c"]]), [one, other])
        assert near(found(["c"] * 3), [other] * 3)


def test_tasks_answer_as_their_pipelines(server: Server, folders: Path) -> None:
    client = server()
    tag = bertkit.pipeline("tag", folders / "entities")
    assert near(client.post("/ner", json={"inputs": "a b"}).json(), plain(tag("a b")))
    many = client.post("/ner", json={"inputs": ["a b", LONG]}).json()
    assert near(many, plain(tag(["a b", LONG])))
    read = bertkit.pipeline("answer", folders / "reader")
    question = {"question": "a?", "context": f"{LONG} {LONG}"}
    wanted = plain(read(("a?", f"{LONG} {LONG}")))
    assert near(client.post("/answer", json={"inputs": question}).json(), wanted)
    assert near(client.post("/answer", json={"inputs": [question] * 2}).json(), [wanted] * 2)
    choose = bertkit.pipeline("choose", folders / "ending")
    choice = {"text": "a b", "choices": ["c", "d e"]}
    wanted = plain(choose(("a b", ["c", "d e"])))
    asked = {"inputs": choice, "model": "ending"}
    assert near(client.post("/choose", json=asked).json(), wanted)
    assert near(client.post("/choose", json={"inputs": [choice]}).json(), [wanted])


def test_pretrained_heads_answer_as_their_pipelines(server: Server, folders: Path) -> None:
    client = server()
    fill = bertkit.pipeline("fill-mask", folders / "pretrained")
    texts = ["a [MASK] c [MASK]", "[MASK] b"]
    found = client.post("/fill-mask", json={"inputs": texts, "top": 3}).json()
    assert near(found, plain(fill(texts, top=3)))
    one = client.post("/fill-mask", json={"inputs": texts[1]}).json()
    assert near(one, plain(fill(texts[1:])[0]))
    follows = bertkit.pipeline("next-sentence", folders / "pretrained")
    wanted = plain(follows(["a b", "c"], ["d", "e"]))
    pairs = [["a b", "d"], ["c", "e"]]
    assert near(client.post("/next-sentence", json={"inputs": pairs}).json(), wanted)
    assert near(client.post("/next-sentence", json={"inputs": pairs[0]}).json(), wanted[0])


def test_reranking(server: Server, folders: Path) -> None:
    client, texts = server(), ["b c", "d", "a a a"]
    raw = bertkit.pipeline("rerank", folders / "ranker")("a", texts)
    order = np.argsort(-raw, kind="stable").tolist()
    asked = {"query": "a", "texts": texts, "model": "ranker"}
    found = client.post("/rerank", json={**asked, "raw_scores": True, "return_text": True}).json()
    wanted = [{"index": i, "score": float(raw[i]), "text": texts[i]} for i in order]
    assert near(found, wanted)
    shown = client.post("/rerank", json=asked).json()
    assert near(shown, [{"index": i, "score": float(1 / (1 + np.exp(-raw[i])))} for i in order])


def test_tokens(server: Server) -> None:
    found = server().post("/tokenize", json={"inputs": ["a bz", "c"]}).json()
    assert [[t["text"] for t in row] for row in found] == [
        ["[CLS]", "a", "[UNK]", "[SEP]"],
        ["[CLS]", "c", "[SEP]"],
    ]
    assert found[0][1] == {"id": 5, "text": "a", "special": False, "start": 0, "stop": 1}
    assert found[0][0] == {"id": 2, "text": "[CLS]", "special": True, "start": None, "stop": None}
    bare = server().post("/tokenize", json={"inputs": "c", "add_special_tokens": False}).json()
    assert [[t["text"] for t in row] for row in bare] == [["c"]]


def test_what_is_too_long_is_refused_or_cut_and_said(server: Server) -> None:
    client = server()
    asked = {"inputs": ["a", LONG]}
    refused = client.post("/embed", json=asked)
    assert refused.status_code == 422
    assert refused.json() == {
        "error": f"the text exceeds the maximum of {LENGTH} tokens; shorten it, or set truncate "
        "(for all requests: bertkit serve --truncate)",
        "error_type": "validation",
        "field": "inputs.1",
    }
    cut = client.post("/embed", json={**asked, "truncate": True})
    assert cut.status_code == 200
    assert cut.headers["x-truncated"] == "1"
    said = client.post("/predict", json={"inputs": [["a"], [LONG]], "truncate": True}).json()
    assert [[label["truncated"] for label in row] for row in said] == [[False] * 3, [True] * 3]
    openai = client.post("/v1/embeddings", json={"input": LONG, "truncate": True}).json()
    assert openai["data"][0]["truncated"] is True
    windows = client.post("/ner", json={"inputs": LONG, "truncate": True})
    assert (windows.status_code, windows.json()["field"]) == (422, "truncate")


def test_a_server_that_truncates_does_so_where_nobody_says(server: Server) -> None:
    client = server(Limits(truncate=True))
    cut = client.post("/embed", json={"inputs": ["a", LONG]})
    assert (cut.status_code, cut.headers["x-truncated"]) == (200, "1")
    asked = {"query": "a", "texts": [LONG], "model": "ranker"}
    assert client.post("/rerank", json=asked).json()[0]["truncated"] is True
    openai = client.post("/v1/embeddings", json={"input": LONG}).json()
    assert openai["data"][0]["truncated"] is True
    kept = client.post("/embed", json={"inputs": LONG, "truncate": False})
    assert (kept.status_code, "exceeds the maximum" in kept.json()["error"]) == (422, True)
    windows = client.post("/ner", json={"inputs": LONG})  # read whole, as always
    assert near(windows.json(), server().post("/ner", json={"inputs": LONG}).json())


@pytest.mark.parametrize(
    ("route", "body", "field", "said"),
    [
        ("/embed", {}, "inputs", "this field is required"),
        ("/embed", {"inputs": ""}, "inputs", "`str` of length >= 1"),
        ("/embed", {"inputs": []}, "inputs", "`array` of length >= 1"),
        ("/embed", {"inputs": ["a", 1]}, "inputs.1", "expected `str`, got `int`"),
        ("/embed", {"inputs": "a", "normalise": True}, "normalise", "did you mean 'normalize'?"),
        ("/embed", {"inputs": "a", "model": "sentiment"}, "model", "no model 'sentiment' supports"),
        ("/embed", {"inputs": "a", "dimensions": 17}, "dimensions", "must not exceed 16"),
        (
            "/embed",
            {"inputs": "a", "truncate": "yes"},
            "truncate",
            "expected `bool | null`, got `str`",
        ),
        ("/fill-mask", {"inputs": "a b"}, None, "the text has no mask"),
        (
            "/next-sentence",
            {"inputs": ["a"]},
            "inputs",
            "expected a pair [a, b], or a list of pairs",
        ),
        (
            "/choose",
            {"inputs": {"text": "a", "choices": ["b"]}},
            "inputs.choices",
            "`array` of length >= 2",
        ),
        ("/tokenize", {"inputs": "a", "model": "x"}, "model", "no model 'x' supports"),
        ("/predict", {"inputs": ["a", ["b"]]}, "inputs", "expected only texts, or only lists"),
        ("/predict", {"inputs": ["a", "b", "c"]}, "inputs", "a list of texts must be a pair, got"),
    ],
)
def test_bad_questions_name_their_field(
    route: str, body: Any, field: str | None, said: str, server: Server
) -> None:
    found = server().post(route, json=body)
    assert found.status_code == 422
    assert said in found.json()["error"]
    assert found.json().get("field") == field


def test_too_much_is_413(server: Server) -> None:
    client = server(Limits(text_characters=20, items=2, queue_tokens=64, body_bytes=500))
    for body, said in (
        ({"inputs": "a" * 21}, "a text of 21 characters exceeds the maximum of 20"),
        ({"inputs": ["a"] * 3}, "3 items exceed the maximum of 2"),
        ({"inputs": ["a" * 600]}, "the body is longer than 500 bytes"),
    ):
        for route in ("/embed", "/tokenize"):
            found = client.post(route, json=body)
            assert found.status_code == 413
            assert said in found.json()["error"]


def test_a_search_costs_what_it_is_to_find(store: str | None) -> None:
    if store is None:
        pytest.skip("LanceDB is not installed: pip install 'bertkit[search]'")
    pipeline = SearchPipeline(store, "fp32", "cpu")
    (few,), (many,) = (pipeline.prepare(["c d"], long="error", top=top) for top in (10, 1000))
    assert many.tokens > few.tokens + 3000  # a batch by itself, and not one of hundreds in it
    assert many.answer_bytes > 100 * few.answer_bytes // 2
    query = "c d " * 1000
    (cut,) = pipeline.prepare([query], long="truncate", hybrid=True)
    read, _ = cut.item
    assert query.startswith(read)
    assert len(read) < 2 * LENGTH


def test_search(server: Server, store: str | None) -> None:
    if store is None:
        pytest.skip("LanceDB is not installed: pip install 'bertkit[search]'")
    client = server()
    found = client.post("/search", json={"query": "c d", "top": 2}).json()
    assert found[0]["id"] == "1"
    assert len(found) == 2
    assert found[0]["score"] == pytest.approx(1.0, abs=1e-5)
    least = {"query": "c d", "top": 2, "min_score": found[1]["score"] + 1e-4}
    assert [hit["id"] for hit in client.post("/search", json=least).json()] == ["1"]
    where = {"query": "c d", "where": ["year<1"]}
    assert [hit["id"] for hit in client.post("/search", json=where).json()] == ["0"]
    bad = client.post("/search", json={"query": "c", "where": ["yer<1"]})
    assert bad.status_code == 422
    assert "did you mean 'year'" in bad.json()["error"]
    for value in ("nan", "1e999", "-inf"):
        none = client.post("/search", json={"query": "c", "where": [f"year>{value}"]})
        assert none.status_code == 422
        assert f"year must be a number, got '{value}'" in none.json()["error"]
    many = client.post("/search", json={"query": "c", "where": ["id!=b"] * 33})
    assert (many.status_code, many.json()["field"]) == (422, "where")
    assert client.post("/search", json={"query": LONG}).json()["field"] == "query"


def test_a_word_is_compared_in_few_texts_that_are_short(server: Server) -> None:
    client = server()
    many = client.post("/contexts", json={"word": "c", "inputs": ["c"] * 33})
    assert (many.status_code, many.json()["field"]) == (422, "inputs")
    long = client.post("/contexts", json={"word": "c", "inputs": ["c", "c " * 1001]})
    assert (long.status_code, long.json()["field"]) == (422, "inputs.1")


def test_what_costs_more_than_its_tokens_is_charged_so(server: Server) -> None:
    client = server(Limits(queue_tokens=200))
    asked = {"inputs": "[MASK] a", "model": "pretrained"}  # 4 tokens, a mask
    assert client.post("/fill-mask", json={**asked, "top": 100}).status_code == 200
    masks = {**asked, "inputs": "[MASK] " * 12}
    assert client.post("/fill-mask", json={**masks, "top": 10}).status_code == 200
    assert client.post("/fill-mask", json={**masks, "top": 100}).status_code == 200
    several = {**masks, "inputs": ["[MASK] " * 12] * 2, "top": 100}
    assert client.post("/fill-mask", json=several).status_code == 413
    text = {"inputs": "a b c d e a b c d e a b c", "model": "pretrained"}  # masked once for each
    assert client.post("/explain", json=text).status_code == 413


def test_routes_are_those_of_the_folders(server: Server, folders: Path) -> None:
    client = server(at=ModelRegistry([str(folders / "sentiment")], None))
    assert client.post("/predict", json={"inputs": "a"}).status_code == 200
    missing = client.post("/fill-mask", json={"inputs": "[MASK]"})
    assert (missing.status_code, missing.json()["error_type"]) == (404, "not_found")
    about = client.get("/info").json()["models"]
    assert about[0]["answers"] == ["predict", "contexts", "explain"]
    assert about[0]["labels"] == list(KINDS["sentiment"][1])


def test_a_causal_model_labels_as_others_do(server: Server, tmp_path: Path) -> None:
    tokenizer, labels = add_causal_tokens(tiny_tokenizer("abc")), ("bad", "good")
    more = {"labels": labels, "family": OPENAI_GPT, "task": "classify", "spread": 0.3}
    more |= {"intermediate": 64}
    folder = tiny_folder(tmp_path / "gpt", tokenizer, "classify", **more)
    client = server(at=ModelRegistry([str(folder)], None))
    answers = bertkit.pipeline("classify", folder)(["a b", "c"])
    for text, answer in zip(["a b", "c"], answers, strict=True):
        row = client.post("/predict", json={"inputs": text}).json()
        given = {one["label"]: one["score"] for one in row}
        assert given == pytest.approx(answer.scores, abs=1e-5)
    assert answers[0].scores != pytest.approx(answers[1].scores, abs=1e-5)
