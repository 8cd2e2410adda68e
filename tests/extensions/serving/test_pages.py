"""The web pages show the results of the library, and escape all texts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from tests.extensions.conftest import Server, alert, page_data
from tests.factories import tiny_elmo, tiny_folder

from bertkit.extensions.classic.compare_contexts import contexts
from bertkit.extensions.classic.word_vectors import Vectors
from bertkit.extensions.generation.families.gpt2 import GPT2
from bertkit.extensions.search.index import index
from bertkit.extensions.serving.limits import Limits
from bertkit.extensions.serving.models import ModelRegistry
from bertkit.text.vocabulary_training import train
from bertkit.view.arrays import Array, decoded
from bertkit.view.explain import explain


def test_start_page_contains_form(server: Server) -> None:
    response = server().get("/")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/html")
    assert re.findall("<option>(.*?)</option>", response.text)[0] == "pretrained"
    assert "http" not in re.sub("http-equiv", "", response.text)


def test_explain_page_data_matches_explain(server: Server, folders: Path) -> None:
    params = {"text": "a b c", "pair": "d", "model": "pretrained"}
    response = server().get("/", params=params)
    page = page_data(response.text)
    expected = explain(folders / "pretrained", "a b c", "d")
    assert [token["piece"] for token in page["tokens"]] == [t.piece for t in expected.tokens]
    assert page["masked"]
    for array, expected_array in zip(page["attention"], expected.attention, strict=True):
        array["shape"] = tuple(array["shape"])
        np.testing.assert_allclose(decoded(Array(**array)), decoded(expected_array), atol=1e-3)
    assert "selected>pretrained</option>" in response.text
    assert '<textarea id="ask-text" name="text" rows="2" required>a b c</textarea>' in response.text
    assert server().post("/explain", json={"inputs": ["a b c", "d"]}).json()["text"] == "a b c"


def test_explain_page_shows_models_without_mlm_head(server: Server) -> None:
    response = server().get("/", params={"text": "a b", "model": "sentiment"})
    assert response.status_code == 200
    assert '"masked":null' in response.text


@pytest.mark.parametrize(
    ("params", "status", "message"),
    [
        ({"text": "a", "model": "<b>"}, 404, "this server has no model &#39;&lt;b&gt;&#39;"),
        ({"text": "a" * 101}, 413, "a text has 101 characters, but the maximum is 100"),
        ({"text": "a", "pair": "a" * 101}, 413, "a text has 101 characters"),
    ],
)
def test_page_shows_errors_above_the_form(
    params: dict[str, str], status: int, message: str, server: Server
) -> None:
    response = server(Limits(text_characters=100)).get("/", params=params)
    assert response.status_code == status
    assert f'<p role="alert">{message}' in response.text


def test_page_escapes_texts(server: Server) -> None:
    hostile = (
        'a </script><script>alert(1)</script> \u2028 "><img src=x onerror=alert(1)> <!-- form -->'
    )
    for model in ("pretrained", "none"):
        response = server().get("/", params={"text": hostile, "model": model})
        assert "<script>alert" not in response.text
        assert "<img" not in response.text
        assert response.text.count("<form") == 1


def test_explain_page_reports_truncation(server: Server) -> None:
    response = server().get("/", params={"text": "a " * 40, "model": "pretrained"})
    assert response.status_code == 200
    assert '"truncated":true' in response.text


def rows(html: str) -> list[list[str]]:
    """Return the cells of all tables, without their tags."""
    table_rows = re.findall(r"<tr><th scope=\"row\">(.*?)</tr>", html, re.S)
    return [
        [re.sub("<[^>]+>", "", cell).strip() for cell in re.split("<td[^>]*>", r)]
        for r in table_rows
    ]


def numbers(html: str) -> dict[str, float]:
    return {first: float(last) for first, *_, last in rows(html)}


def test_ask_page_shows_predictions_of_api(server: Server, folders: Path) -> None:
    client = server()

    def ask(panel: str, **values: str) -> str:
        page = client.get("/ask", params={"what": panel, **values})
        assert page.status_code == 200, page.text
        return page.text

    labels = client.post("/predict", json={"inputs": "a b"}).json()
    expected = {row["label"]: row["score"] for row in labels}
    assert numbers(ask("predict", text="a b")) == pytest.approx(expected, abs=6e-4)

    request_body = {"text": "a", "choices": ["b", "c"]}
    scores = client.post("/choose", json={"inputs": request_body}).json()["scores"]
    html = ask("choose", text="a", other="b\n\n c ")
    assert numbers(html) == pytest.approx(dict(zip("bc", scores, strict=True)), abs=6e-4)

    next_probability = client.post("/next-sentence", json={"inputs": ["a b", "c"]}).json()["next"]
    shown = dict(rows(ask("next-sentence", text="a b", other="c")))
    assert float(shown["next"]) == pytest.approx(next_probability, abs=6e-4)

    request_body = {"source_sentence": "a b", "sentences": ["c d", "e"]}
    cosines = client.post("/similarity", json={"inputs": request_body}).json()
    shown = numbers(ask("embed", text="a b", other="c d\ne"))
    assert shown == pytest.approx({"c d": cosines[0], "e": cosines[1]}, abs=6e-4)

    ranks = client.post("/rerank", json={"query": "a", "texts": ["b", "c d"]}).json()
    shown = rows(ask("rerank", text="a", other="b\nc d"))
    assert [row[0] for row in shown] == [("b", "c d")[rank["index"]] for rank in ranks]

    entities = client.post("/ner", json={"inputs": "a b <i> c"}).json()["entities"]
    html = ask("ner", text="a b <i> c")
    assert html.count("<mark>") == len(entities)
    assert "<i>" not in html

    request_body = {"question": "a", "context": "b c d"}
    answer = client.post("/answer", json={"inputs": request_body}).json()
    html = ask("answer", text="a", other="b c d")
    assert f"<mark>{answer['answer']}</mark>" in html

    masks = client.post("/fill-mask", json={"inputs": "a [MASK] [MASK]"}).json()
    html = ask("fill-mask", text="a [MASK] [MASK]")
    tokens = [candidate["token"] for mask in masks for candidate in mask["candidates"]]
    assert [row[0] for row in rows(html)] == tokens


def test_ask_page_compares_models_side_by_side(server: Server, folders: Path, bert: Path) -> None:
    client = server(at=ModelRegistry([str(folders / "pretrained"), str(bert)], None))
    params = {"what": "fill-mask", "text": "a [MASK]"}
    response = client.get("/ask", params=params).text
    assert re.findall('<th scope="col"[^>]*>(.*?)</th>', response)[::2] == ["pretrained", bert.name]
    single_model = client.get("/ask", params=params | {"model": bert.name}).text
    assert re.findall('<th scope="col"[^>]*>(.*?)</th>', single_model)[::2] == [bert.name]


def test_ask_page_shows_search_results(server: Server, folders: Path, tmp_path: Path) -> None:
    documents = tmp_path / "d.jsonl"
    texts = ["a b", "c d <u>", "e f"]
    documents.write_text(
        "".join(json.dumps({"id": f"d{i}", "text": t}) + "\n" for i, t in enumerate(texts)),
        encoding="utf-8",
    )
    model, store = folders / "pretrained", str(tmp_path / "store")
    index([documents], model=str(model), store=store)
    client = server(at=ModelRegistry([str(model)], store))
    response = client.get("/ask", params={"what": "search", "text": "c d <u>"}).text
    assert rows(response)[0][0] == "d1"
    assert "c d &lt;u&gt;" in response


@pytest.mark.parametrize(
    ("path", "params", "message"),
    [
        ("/ask", {"what": "embed", "text": "a"}, "the second field is empty"),
        ("/ask", {"what": "fill-mask", "text": "a"}, "no mask; replace a word by [MASK]"),
        ("/ask", {"what": "predict", "text": "a", "model": "<b>"}, "no model &#39;&lt;b&gt;"),
        ("/ask", {"what": "predict", "text": "a " * 40}, "exceeds the maximum of 16 tokens"),
        ("/word", {"word": "a", "texts": "a b"}, "texts: enter 2 to 32 lines with the word"),
        ("/word", {"word": "zz", "texts": "a b\nc"}, "does not contain &#39;zz&#39;"),
        ("/", {"text": "a", "off": "1"}, "such as 2.11, got &#39;1&#39;"),
        ("/", {"text": "a", "off": "9" * 5000 + ".1"}, "form LAYER.HEAD"),
        ("/", {"text": "a", "off": "1.9"}, "heads must be LAYER.HEAD from 1.1 to 1.2, got 1.9"),
        ("/", {"text": "a", "off": "1.1, 1.2"}, "heads: layer 1 must keep at least one head"),
    ],
)
def test_pages_report_invalid_fields(
    path: str, params: dict[str, str], message: str, server: Server
) -> None:
    response = server().get(path, params=params)
    assert 400 < response.status_code < 429
    assert message in alert(response.text)


def test_explain_page_shows_effect_of_pruned_head(server: Server, folders: Path) -> None:
    params = {"text": "a b c", "model": "pretrained", "off": "1.2"}
    client = server()
    page = page_data(client.get("/", params=params).text)
    assert page["off"] == ["1.2"]
    explanation = explain(folders / "pretrained", "a b c")
    assert explanation.off_change is None
    embedding, last_layer = page["off_change"]
    assert embedding == pytest.approx([1.0] * 5, abs=1e-5)
    # The heads of a tiny model have little effect.
    assert min(last_layer) < min(embedding) - 5e-7
    answer = client.post("/explain", json={"inputs": "a b c", "off": ["1.2"]}).json()
    assert answer["off_change"] == page["off_change"]


def test_explain_page_masks_several_words_together(server: Server, folders: Path) -> None:
    params = {"text": "a b c", "model": "pretrained", "hide": "0 2"}
    client = server()
    hidden = page_data(client.get("/", params=params).text)["hidden"]
    expected = explain(folders / "pretrained", "a b c", hide=[0, 2]).hidden
    assert expected is not None
    assert hidden["words"] == [0, 2]
    tokens = [[[row["token"] for row in token] for token in word] for word in hidden["candidates"]]
    assert tokens == [[[row.token for row in token] for token in w] for w in expected.candidates]
    request_body = {"inputs": "a b c", "hide": [0, 2], "model": "pretrained"}
    assert client.post("/explain", json=request_body).json()["hidden"] == hidden
    for wrong, sentence in (("0 3", "got 3"), ("x", "must be the index of a word")):
        response = client.get("/", params={**params, "hide": wrong})
        assert response.status_code == 422
        assert sentence in response.text
    rejected = client.get("/", params={**params, "model": "sentiment"})
    assert "no trained MLM head" in rejected.text


def test_pages_link_to_valid_examples(server: Server) -> None:
    client = server()
    for page in ("/", "/word"):
        links = re.findall(r'<li><a href="(/[^"]*)"', client.get(page).text)
        assert len(links) >= 3
        for link in links:
            answer = client.get(link.replace("&amp;", "&"))
            # A tiny vocabulary does not contain all words of the examples.
            assert answer.status_code in (200, 422)


def test_ask_and_growing_pages_have_examples(server: Server) -> None:
    client = server()
    questions = re.findall(r'href="/ask\?what=([\w-]+)"', client.get("/ask").text)
    assert {"fill-mask", "embed", "ner"} <= set(questions)
    pages = [*(f"/ask?what={name}" for name in questions), "/growing"]
    for page in pages:
        (link,) = re.findall(r'<li><a href="(/[^"]*)"', client.get(page).text)
        answer = client.get(link.replace("&amp;", "&"))
        # A tiny model has few words and positions.
        assert answer.status_code in (200, 422)


def test_word_page_shows_cosines_of_contexts(server: Server) -> None:
    client = server()
    params = {"word": "c", "texts": "a c\n\nc b d\n", "model": "pretrained"}
    response = client.get("/word", params=params)
    request_body = {"word": "c", "inputs": ["a c", "c b d"], "model": "pretrained"}
    bertkit_values = client.post("/contexts", json=request_body).json()
    (row,) = rows(response.text)
    assert row == ["1 and 2", *(f"{layer[0][1]:.2f}" for layer in bertkit_values["cosines"])]
    assert response.text.count("<mark>c</mark>") == 2
    # The page has one chart for the embedding and one chart for the layer.
    assert response.text.count('class="chart"') == 2


@pytest.fixture
def kinds(tmp_path: Path, english: list[str], bert: Path) -> list[Path]:
    """Word vectors, an ELMo, a GPT and a BERT, all with random weights."""
    Vectors(["class", "loop"], np.float32([[1, 2], [3, 0]])).save(tmp_path / "vectors.txt.gz")
    gpt_tokenizer = train(english[:5], kind="bpe", size=400, use="write")
    gpt = tiny_folder(tmp_path / "gpt", gpt_tokenizer, "lm", family=GPT2, layers=2, length=48)
    return [tmp_path / "vectors.txt.gz", tiny_elmo(tmp_path / "elmo"), gpt, bert]


def test_word_page_shows_values_of_contexts_command(
    server: Server, kinds: list[Path], tmp_path: Path
) -> None:
    texts = ["The class has a name.", "The class is taught.", "She was in the class."]
    (tmp_path / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    names = list(map(str, kinds))
    bertkit_values = contexts(
        "class", tmp_path / "texts.txt", models=names, out=tmp_path / "out", layer=-2
    )
    client = server(at=ModelRegistry(names, None))
    params = {"word": "class", "texts": "\n".join(texts), "layer": "the second to last layer"}
    html = client.get("/word", params=params).text
    visible_parts = [
        "the word only", "each side separately", "the text before it",
        "the text on both sides",
    ]  # fmt: skip
    assert re.findall(">uses (.*?)</text>", html) == visible_parts
    assert [model["sees"] for model in bertkit_values["models"]] == visible_parts
    charts = re.findall(r"<svg.*?</svg>", html, re.S)[:4]
    for chart, model in zip(charts, bertkit_values["models"], strict=True):
        layer = model["cosines"][-2 if len(model["cosines"]) > 1 else 0]
        cells = re.findall(r">(-?\d\.\d\d)</text>", chart)
        assert cells == [f"{cosine:.2f}" for row in layer for cosine in row]
    for model in bertkit_values["models"]:
        assert f"A state depends on {model['sees']}." in html
    single_model = client.get("/word", params={**params, "model": "elmo"}).text
    # The page has one chart per layer.
    assert single_model.count('class="chart"') == 3
    assert "A state depends on each side separately." in single_model


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"word": "zebra", "texts": "a zebra\nthe zebra"}, "gz: no vector for &#39;zebra&#39;"),
        ({"word": "a", "texts": "a\na", "layer": "<b>"}, "layer: must be one of the last layer"),
        ({"word": "a", "texts": "a\na " + "b " * 600, "model": "elmo"}, "512 words, got 601"),
        ({"word": "a", "texts": "a\na", "model": "<b>"}, "no model &#39;&lt;b&gt;&#39; for this"),
    ],
)
def test_word_page_reports_invalid_requests(
    params: dict[str, str], message: str, server: Server, kinds: list[Path]
) -> None:
    answer = server(at=ModelRegistry(map(str, kinds), None)).get("/word", params=params)
    assert answer.status_code == (404 if "model" in message else 422)
    assert message in alert(answer.text)
