"""The pages on what states hold: what they show is what the library computes, within limits."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
from tests.extensions.classic.families.test_lstm import saved
from tests.extensions.classic.families.test_lstm import tokenizer as letters  # noqa: F401  (the fixture)
from tests.extensions.conftest import Server
from tests.extensions.generation.test_pages import alert, both  # noqa: F401  (the fixture)
from tests.extensions.generation.test_routes import folder as llama  # noqa: F401  (the fixture)
from tests.extensions.serving.test_served import softmax
from tests.factories import tiny_elmo

import bertkit
from bertkit.extensions.classic.distance import DistancePipeline
from bertkit.extensions.classic.fill_gap import FillGap
from bertkit.extensions.classic.pages import WordPage
from bertkit.extensions.generation.pipeline import Generate
from bertkit.extensions.serving.limits import Limits
from bertkit.extensions.serving.models import ModelRegistry
from bertkit.text.tokenizer import Tokenizer
from bertkit.view.figures import Example

TEXT = "a b c d"


@pytest.fixture(scope="module")
def lstm(letters: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    return saved(tmp_path_factory.mktemp("states") / "lstm", letters, attention="none")[0]


@pytest.fixture(scope="module")
def two(lstm: Path, bert: Path) -> ModelRegistry:
    return ModelRegistry([str(lstm), str(bert)], None)


def test_a_sentence_grows(server: Server, two: ModelRegistry, lstm: Path) -> None:
    client = server(at=two)
    asked = {"text": TEXT, "others": "b c\n\nd", "model": "lstm"}
    html = unescape(client.get("/growing", params=asked).text)
    assert html.count('aria-label="8 values"') == 4
    for text in ("a", "a b", "a b c", TEXT):
        ((written,),) = Generate(bertkit.load(lstm))([text])
        row = html[html.index(f'<th scope="row">{text.split()[-1]}</th>') :]
        assert written.text in row[: row.index("</tr>")]
    other = unescape(client.get("/growing", params={"text": TEXT, "model": "small-bert"}).text)
    assert other.count('aria-label="32 values"') == 4
    assert ('<th scope="col">generated</th>' in html) > ('scope="col">generated<' in other)


def test_models_side_by_side(server: Server, two: ModelRegistry, bert: Path) -> None:
    client = server(at=two)
    asked = {"text": "the bank of a river", "word": "a"}
    html = client.get("/distance", params=asked).text
    assert html.count("data-figure=") == 3
    pipeline = DistancePipeline(bertkit.load(bert))
    (found,) = pipeline.run(pipeline.prepare([("a", asked["text"])], long="error"))
    shown = html[html.index('data-figure="small-bert"') : html.index('data-figure="Distance"')]
    shares = re.findall(r"</svg> ([\d.]+)</span>", shown)
    assert shares == [f"{min(norm, 1.0):.3f}" for norm in found.norms]
    alone = client.get("/distance", params={**asked, "model": "lstm"}).text
    assert alone.count("data-figure=") == 2
    assert "bank" in client.get("/distance").text  # an example stands in the empty form


@pytest.mark.parametrize(
    ("path", "asked", "status", "said"),
    [
        ("/growing", {"text": "a " * 41}, 422, "text must have 1 to 40 words, got 41"),
        ("/growing", {"text": "a", "model": "<b>"}, 422, "no model &#39;&lt;b&gt;&#39; supports"),
        (
            "/growing",
            {"text": "a" * 501},
            413,
            "a text of 501 characters exceeds the maximum of 500",
        ),
        ("/distance", {"text": "a b", "word": "zebra"}, 422, "&#39;zebra&#39; is not in"),
        ("/distance", {"text": "a " * 70, "word": "a"}, 422, "more than 64 tokens"),
        ("/distance", {"text": "a", "word": "a", "model": "x"}, 422, "no model &#39;x&#39;"),
    ],
)
def test_what_cannot_be_is_said_above_the_form(
    path: str, asked: dict[str, str], status: int, said: str, server: Server, two: ModelRegistry
) -> None:
    answer = server(Limits(text_characters=500), at=two).get(path, params=asked)
    assert answer.status_code == status
    assert said in alert(answer.text)


def test_pages_that_no_model_fills_lead_elsewhere(server: Server) -> None:
    nothing = server(at=ModelRegistry([], None), runs=[Path("run")])
    for path in ("/growing", "/distance"):
        assert nothing.get(path, follow_redirects=False).headers["location"] == "/"


def test_a_gap_by_both(
    server: Server,
    both: ModelRegistry,  # noqa: F811
    llama: Path,  # noqa: F811
) -> None:
    client = server(at=both)
    assert "I am a ___ . I like playing cricket." in client.get("/gap").text
    text = "we sat on the ___ of the river"
    html = client.get("/gap", params={"text": text}).text
    assert f"{llama.name}: from the left context" in html
    assert html.count("<mark>we sat on the</mark>") == 2
    assert html.count("<mark>of the river</mark>") == 1
    masked = client.post("/fill-mask", json={"inputs": text.replace("___", "[MASK]")}).json()
    tokens = [one["token"] for one in masked[0]["candidates"]]
    (_, table) = re.findall(r"<table>(.*?)</table>", html, re.S)
    heads = re.findall('<th scope="row">(.*?)</th>', table)
    assert [unescape(head) for head in heads] == tokens
    twice = client.get("/gap", params={"text": "[MASK] sat on the ___"}).text
    masks = client.post("/fill-mask", json={"inputs": "[MASK] sat on the [MASK]"}).json()
    heads = re.findall(
        '<th scope="row">(.*?)</th>', re.findall("<table>(.*?)</table>", twice, re.S)[1]
    )
    assert [unescape(head) for head in heads] == [one["token"] for one in masks[1]["candidates"]]
    other = client.get("/gap", params={"text": text.replace("of the river", "<i>")}).text
    left = [re.findall(r"<table>(.*?)</table>", page, re.S)[0] for page in (html, other)]
    assert left[0] == left[1]  # what follows is not seen
    assert "<i>" not in other


def test_one_model_alone_says_how_to_give_the_other(
    server: Server,
    folders: Path,
    llama: Path,  # noqa: F811
) -> None:
    client = server(at=ModelRegistry([str(folders / "pretrained")], None))
    assert client.get("/gap", follow_redirects=False).headers["location"] == "/"
    assert 'href="/gap"' not in client.get("/").text
    client = server(at=ModelRegistry([str(llama)], None))
    answer = client.get("/gap", params={"text": "a ___ c"})
    assert answer.status_code == 200
    assert "uses only the left context; start" in alert(answer.text)
    assert f"bertkit view {llama.name} OTHER" in alert(answer.text)
    assert answer.text.count("<table>") == 1
    refused = client.get("/gap", params={"text": "no gap"})
    assert refused.status_code == 422
    assert "must have exactly one gap ___" in refused.text


def test_both_directions_of_an_elmo_stand_between(
    server: Server,
    llama: Path,  # noqa: F811
    bert: Path,
    tmp_path: Path,
) -> None:
    elmo = softmax(tiny_elmo(tmp_path / "elmo"))
    client = server(at=ModelRegistry([str(elmo), str(bert), str(llama)], None))
    text = "A cat sat on ___ in the hall."
    html = client.get("/gap", params={"text": text}).text
    heads = re.findall('<th scope="col">(.*?)</th>', html)[::2]
    assert [head.partition(": from ")[::2] for head in heads] == [
        (llama.name, "the left context"),
        ("elmo", "the left context"),
        ("elmo", "the right context"),
        (bert.name, "both sides"),
    ]
    assert '<p role="alert">' not in html
    (wanted,) = FillGap(elmo)([text])
    tables = re.findall(r"<table>(.*?)</table>", html, re.S)
    for table, own in zip(tables[1:3], (wanted.forward, wanted.backward), strict=True):
        tokens = [unescape(one) for one in re.findall('<th scope="row">(.*?)</th>', table)]
        assert tokens == [one.token for one in own]
        shares = re.findall(r"</svg> ([\d.]+)</span>", table)
        assert shares == [f"{one.score:.3f}" for one in own]
    alone = server(at=ModelRegistry([str(elmo)], None)).get("/gap", params={"text": text})
    assert "elmo is the only model here and reads each side separately" in alert(alone.text)
    assert alone.text.count("<table>") == 2
    published = server(at=ModelRegistry([str(tiny_elmo(tmp_path / "published"))], None))
    assert published.get("/gap", follow_redirects=False).status_code == 303
    assert published.get("/").url.path == "/word"


@pytest.mark.parametrize("example", WordPage().examples(dict), ids=lambda one: one.text)
def test_a_word_stands_once_in_each_of_its_texts(example: Example) -> None:
    word, texts = example.values["word"], example.values["texts"].splitlines()
    assert len(set(texts)) == len(texts) >= 4
    for text in texts:
        assert re.findall(r"\w+", text.lower()).count(word) == 1
