"""The window: what people see is what the library computes, and their words are only words."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from tests.extensions.conftest import Server
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


def test_a_form_asks_for_a_text(server: Server) -> None:
    found = server().get("/")
    assert found.status_code == 200
    assert found.headers["content-type"].startswith("text/html")
    assert re.findall("<option>(.*?)</option>", found.text)[0] == "pretrained"
    assert "http" not in re.sub("http-equiv", "", found.text)


def test_the_page_holds_the_models_numbers(server: Server, folders: Path) -> None:
    asked = {"text": "a b c", "pair": "d", "model": "pretrained"}
    found = server().get("/", params=asked)
    data = re.search('id="data">(.*?)</script>', found.text, re.S)
    assert data is not None
    held = json.loads(data[1])
    wanted = explain(folders / "pretrained", "a b c", "d")
    assert [token["piece"] for token in held["tokens"]] == [t.piece for t in wanted.tokens]
    assert held["masked"]
    for array, own in zip(held["attention"], wanted.attention, strict=True):
        array["shape"] = tuple(array["shape"])
        np.testing.assert_allclose(decoded(Array(**array)), decoded(own), atol=1e-3)
    assert "selected>pretrained</option>" in found.text
    assert '<textarea id="ask-text" name="text" rows="2" required>a b c</textarea>' in found.text
    assert server().post("/explain", json={"inputs": ["a b c", "d"]}).json()["text"] == "a b c"


def test_models_without_masks_are_shown_too(server: Server) -> None:
    found = server().get("/", params={"text": "a b", "model": "sentiment"})
    assert found.status_code == 200
    assert '"masked":null' in found.text


@pytest.mark.parametrize(
    ("asked", "status", "said"),
    [
        ({"text": "a", "model": "<b>"}, 422, "no model &#39;&lt;b&gt;&#39; supports"),
        ({"text": "a" * 101}, 413, "a text of 101 characters exceeds the maximum of 100"),
        ({"text": "a", "pair": "a" * 101}, 413, "a text of 101 characters"),
    ],
)
def test_what_is_wrong_is_said_above_the_form(
    asked: dict[str, str], status: int, said: str, server: Server
) -> None:
    found = server(Limits(text_characters=100)).get("/", params=asked)
    assert found.status_code == status
    assert f'<p role="alert">{said}' in found.text


def test_texts_are_only_words(server: Server) -> None:
    hostile = (
        'a </script><script>alert(1)</script> \u2028 "><img src=x onerror=alert(1)> <!-- form -->'
    )
    for model in ("pretrained", "none"):
        found = server().get("/", params={"text": hostile, "model": model})
        assert "<script>alert" not in found.text
        assert "<img" not in found.text
        assert found.text.count("<form") == 1


def test_long_texts_are_cut_and_said_to_be(server: Server) -> None:
    found = server().get("/", params={"text": "a " * 40, "model": "pretrained"})
    assert found.status_code == 200
    assert '"truncated":true' in found.text


def rows(html: str) -> list[list[str]]:
    """The cells of all tables, without their tags."""
    found = re.findall(r"<tr><th scope=\"row\">(.*?)</tr>", html, re.S)
    return [
        [re.sub("<[^>]+>", "", cell).strip() for cell in re.split("<td[^>]*>", r)] for r in found
    ]


def numbers(html: str) -> dict[str, float]:
    return {first: float(last) for first, *_, last in rows(html)}


def test_what_is_asked_is_what_the_interface_answers(server: Server, folders: Path) -> None:
    client = server()

    def ask(what: str, **asked: str) -> str:
        found = client.get("/ask", params={"what": what, **asked})
        assert found.status_code == 200, found.text
        return found.text

    labels = client.post("/predict", json={"inputs": "a b"}).json()
    wanted = {row["label"]: row["score"] for row in labels}
    assert numbers(ask("predict", text="a b")) == pytest.approx(wanted, abs=6e-4)

    given = {"text": "a", "choices": ["b", "c"]}
    scores = client.post("/choose", json={"inputs": given}).json()["scores"]
    html = ask("choose", text="a", other="b\n\n c ")
    assert numbers(html) == pytest.approx(dict(zip("bc", scores, strict=True)), abs=6e-4)

    chance = client.post("/next-sentence", json={"inputs": ["a b", "c"]}).json()["next"]
    found = dict(rows(ask("next-sentence", text="a b", other="c")))
    assert float(found["next"]) == pytest.approx(chance, abs=6e-4)

    given = {"source_sentence": "a b", "sentences": ["c d", "e"]}
    cosines = client.post("/similarity", json={"inputs": given}).json()
    found = numbers(ask("embed", text="a b", other="c d\ne"))
    assert found == pytest.approx({"c d": cosines[0], "e": cosines[1]}, abs=6e-4)

    ranks = client.post("/rerank", json={"query": "a", "texts": ["b", "c d"]}).json()
    found = rows(ask("rerank", text="a", other="b\nc d"))
    assert [row[0] for row in found] == [("b", "c d")[rank["index"]] for rank in ranks]

    entities = client.post("/ner", json={"inputs": "a b <i> c"}).json()["entities"]
    html = ask("ner", text="a b <i> c")
    assert html.count("<mark>") == len(entities)
    assert "<i>" not in html

    given = {"question": "a", "context": "b c d"}
    answered = client.post("/answer", json={"inputs": given}).json()
    html = ask("answer", text="a", other="b c d")
    assert f"<mark>{answered['answer']}</mark>" in html

    masks = client.post("/fill-mask", json={"inputs": "a [MASK] [MASK]"}).json()
    html = ask("fill-mask", text="a [MASK] [MASK]")
    pieces = [candidate["token"] for mask in masks for candidate in mask["candidates"]]
    assert [row[0] for row in rows(html)] == pieces


def test_models_fill_masks_side_by_side(server: Server, folders: Path, bert: Path) -> None:
    client = server(at=ModelRegistry([str(folders / "pretrained"), str(bert)], None))
    asked = {"what": "fill-mask", "text": "a [MASK]"}
    found = client.get("/ask", params=asked).text
    assert re.findall('<th scope="col"[^>]*>(.*?)</th>', found)[::2] == ["pretrained", bert.name]
    alone = client.get("/ask", params=asked | {"model": bert.name}).text
    assert re.findall('<th scope="col"[^>]*>(.*?)</th>', alone)[::2] == [bert.name]


def test_documents_are_found(server: Server, folders: Path, tmp_path: Path) -> None:
    documents = tmp_path / "d.jsonl"
    texts = ["a b", "c d <u>", "e f"]
    documents.write_text(
        "".join(json.dumps({"id": f"d{i}", "text": t}) + "\n" for i, t in enumerate(texts)),
        encoding="utf-8",
    )
    model, store = folders / "pretrained", str(tmp_path / "store")
    index([documents], model=str(model), store=store)
    client = server(at=ModelRegistry([str(model)], store))
    found = client.get("/ask", params={"what": "search", "text": "c d <u>"}).text
    assert rows(found)[0][0] == "d1"
    assert "c d &lt;u&gt;" in found


@pytest.mark.parametrize(
    ("path", "asked", "said"),
    [
        ("/ask", {"what": "embed", "text": "a"}, "the second field is empty"),
        (
            "/ask",
            {"what": "fill-mask", "text": "a"},
            "the text has no mask; replace a word by [MASK]",
        ),
        ("/ask", {"what": "predict", "text": "a", "model": "<b>"}, "no model &#39;&lt;b&gt;"),
        ("/ask", {"what": "predict", "text": "a " * 40}, "exceeds the maximum of 16 tokens"),
        ("/word", {"word": "a", "texts": "a b"}, "texts must be 2 to 32 lines with the word"),
        ("/word", {"word": "zz", "texts": "a b\nc"}, "&#39;zz&#39; is not in &#39;a b"),
        ("/", {"text": "a", "off": "1"}, "such as 2.11, got &#39;1&#39;"),
        ("/", {"text": "a", "off": "9" * 5000 + ".1"}, "form LAYER.HEAD"),
        ("/", {"text": "a", "off": "1.9"}, "heads must be LAYER.HEAD from 1.1 to 1.2, got 1.9"),
        ("/", {"text": "a", "off": "1.1, 1.2"}, "heads: layer 1 must keep at least one head"),
    ],
)
def test_what_cannot_be_answered_is_said(
    path: str, asked: dict[str, str], said: str, server: Server
) -> None:
    found = server().get(path, params=asked)
    assert found.status_code == 422
    (alert,) = re.findall('<p role="alert">(.*?)</p>', found.text)
    assert said in alert


def test_a_head_that_is_off(server: Server, folders: Path) -> None:
    asked = {"text": "a b c", "model": "pretrained", "off": "1.2"}
    data = re.search('id="data">(.*?)</script>', server().get("/", params=asked).text, re.S)
    assert data is not None
    held = json.loads(data[1])
    assert held["off"] == ["1.2"]
    whole = explain(folders / "pretrained", "a b c")
    assert whole.off_change is None
    embedding, last = held["off_change"]
    assert embedding == pytest.approx([1.0] * 5, abs=1e-5)
    assert min(last) < min(embedding) - 5e-7  # a tiny model, whose heads do little
    sent = {"inputs": "a b c", "off": ["1.2"]}
    assert server().post("/explain", json=sent).json()["off_change"] == held["off_change"]


def test_words_that_are_masked_together(server: Server, folders: Path) -> None:
    asked = {"text": "a b c", "model": "pretrained", "hide": "0 2"}
    client = server()
    data = re.search('id="data">(.*?)</script>', client.get("/", params=asked).text, re.S)
    assert data is not None
    held = json.loads(data[1])["hidden"]
    wanted = explain(folders / "pretrained", "a b c", hide=[0, 2]).hidden
    assert wanted is not None
    assert held["words"] == [0, 2]
    tokens = [[[one["token"] for one in piece] for piece in word] for word in held["candidates"]]
    assert tokens == [[[one.token for one in piece] for piece in w] for w in wanted.candidates]
    sent = {"inputs": "a b c", "hide": [0, 2], "model": "pretrained"}
    assert client.post("/explain", json=sent).json()["hidden"] == held
    for wrong, sentence in (("0 3", "got 3"), ("x", "must be the index of a word")):
        found = client.get("/", params={**asked, "hide": wrong})
        assert found.status_code == 422
        assert sentence in found.text
    refused = client.get("/", params={**asked, "model": "sentiment"})
    assert "no trained head for masked words" in refused.text


def test_examples_are_there_to_be_clicked(server: Server) -> None:
    client = server()
    for page in ("/", "/word"):
        links = re.findall(r'<li><a href="(/[^"]*)"', client.get(page).text)
        assert len(links) >= 3
        for link in links:
            answer = client.get(link.replace("&amp;", "&"))
            assert answer.status_code in (200, 422)  # a tiny vocabulary has not every word


def test_ask_and_growing_have_an_example_for_each_question(server: Server) -> None:
    client = server()
    questions = re.findall(r'href="/ask\?what=([\w-]+)"', client.get("/ask").text)
    assert {"fill-mask", "embed", "ner"} <= set(questions)
    pages = [*(f"/ask?what={name}" for name in questions), "/growing"]
    for page in pages:
        (link,) = re.findall(r'<li><a href="(/[^"]*)"', client.get(page).text)
        answer = client.get(link.replace("&amp;", "&"))
        assert answer.status_code in (200, 422)  # a tiny model has few words and positions


def test_a_word_in_several_texts(server: Server) -> None:
    client = server()
    asked = {"word": "c", "texts": "a c\n\nc b d\n", "model": "pretrained"}
    found = client.get("/word", params=asked)
    given = {"word": "c", "inputs": ["a c", "c b d"], "model": "pretrained"}
    own = client.post("/contexts", json=given).json()
    (row,) = rows(found.text)
    assert row == ["1 and 2", *(f"{layer[0][1]:.2f}" for layer in own["cosines"])]
    assert found.text.count("<mark>c</mark>") == 2
    assert found.text.count('class="chart"') == 2  # a map of the embedding and of the layer


@pytest.fixture
def kinds(tmp_path: Path, english: list[str], bert: Path) -> list[Path]:
    """Word vectors, an ELMo, a GPT and a BERT, all of random weights."""
    Vectors(["class", "loop"], np.float32([[1, 2], [3, 0]])).save(tmp_path / "vectors.txt.gz")
    writes = train(english[:5], kind="bpe", size=400, use="write")
    gpt = tiny_folder(tmp_path / "gpt", writes, "lm", family=GPT2, layers=2, length=48)
    return [tmp_path / "vectors.txt.gz", tiny_elmo(tmp_path / "elmo"), gpt, bert]


def test_a_word_by_all_models_is_what_bertkit_contexts_draws(
    server: Server, kinds: list[Path], tmp_path: Path
) -> None:
    texts = ["The class has a name.", "The class is taught.", "She was in the class."]
    (tmp_path / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    names = list(map(str, kinds))
    own = contexts("class", tmp_path / "texts.txt", models=names, out=tmp_path / "out", layer=-2)
    client = server(at=ModelRegistry(names, None))
    asked = {"word": "class", "texts": "\n".join(texts), "layer": "the second to last layer"}
    html = client.get("/word", params=asked).text
    sees = [
        "nothing of its text", "both sides, each by itself", "what stands before it",
        "both sides at once",
    ]  # fmt: skip
    assert re.findall(">sees (.*?)</text>", html) == sees
    assert [one["sees"] for one in own["models"]] == sees
    charts = re.findall(r"<svg.*?</svg>", html, re.S)[:4]
    for chart, one in zip(charts, own["models"], strict=True):
        layer = one["cosines"][-2 if len(one["cosines"]) > 1 else 0]
        cells = re.findall(r">(-?\d\.\d\d)</text>", chart)
        assert cells == [f"{cosine:.2f}" for row in layer for cosine in row]
    for one in own["models"]:
        assert f"A state depends on {one['sees']}." in html
    alone = client.get("/word", params={**asked, "model": "elmo"}).text
    assert alone.count('class="chart"') == 3  # a map of each layer
    assert "Each depends on both sides, each by itself." in alone


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"word": "zebra", "texts": "a zebra\nthe zebra"}, "gz has no vector of &#39;zebra&#39;"),
        ({"word": "a", "texts": "a\na", "layer": "<b>"}, "layer: expected the last layer, the"),
        (
            {"word": "a", "texts": "a\na " + "b " * 600, "model": "elmo"},
            "sentence must have at most 512 words, got 601",
        ),
        ({"word": "a", "texts": "a\na", "model": "<b>"}, "no model &#39;&lt;b&gt;&#39; supports"),
    ],
)
def test_a_word_that_cannot_be_compared(
    asked: dict[str, str], said: str, server: Server, kinds: list[Path]
) -> None:
    answer = server(at=ModelRegistry(map(str, kinds), None)).get("/word", params=asked)
    assert answer.status_code == 422
    (alert,) = re.findall('<p role="alert">(.*?)</p>', answer.text)
    assert said in alert


def test_a_word_without_any_model(server: Server) -> None:
    nothing = server(at=ModelRegistry([], None), runs=[Path("run")])
    answer = nothing.get("/word", params={"word": "a", "texts": "a\na b"})
    assert answer.url.path == "/training"
