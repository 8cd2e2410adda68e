"""Pages of the classic extension: results match the library, and inputs are limited."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
from tests.extensions.classic.families.test_lstm import save_lstm
from tests.extensions.classic.families.test_lstm import tokenizer as letters  # noqa: F401  (the fixture)
from tests.extensions.conftest import Server, alert
from tests.extensions.generation.test_pages import both  # noqa: F401  (the fixture)
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
    return save_lstm(tmp_path_factory.mktemp("states") / "lstm", letters, attention="none")[0]


@pytest.fixture(scope="module")
def registry(lstm: Path, bert: Path) -> ModelRegistry:
    return ModelRegistry([str(lstm), str(bert)], None)


def test_growing_page_matches_generate(server: Server, registry: ModelRegistry, lstm: Path) -> None:
    client = server(at=registry)
    params = {"text": TEXT, "others": "b c\n\nd", "model": "lstm"}
    html = unescape(client.get("/growing", params=params).text)
    assert html.count('aria-label="8 values"') == 4
    for text in ("a", "a b", "a b c", TEXT):
        ((written,),) = Generate(bertkit.load(lstm))([text])
        row = html[html.index(f'<th scope="row">{text.split()[-1]}</th>') :]
        assert written.text in row[: row.index("</tr>")]
    other = unescape(client.get("/growing", params={"text": TEXT, "model": "small-bert"}).text)
    assert other.count('aria-label="32 values"') == 4
    assert ('<th scope="col">generated</th>' in html) > ('scope="col">generated<' in other)


def test_distance_page_shows_models_side_by_side(
    server: Server, registry: ModelRegistry, bert: Path
) -> None:
    client = server(at=registry)
    params = {"text": "the bank of a river", "word": "a"}
    html = client.get("/distance", params=params).text
    assert html.count("data-figure=") == 3
    pipeline = DistancePipeline(bertkit.load(bert))
    (found,) = pipeline.run(pipeline.prepare([("a", params["text"])], long="error"))
    shown = html[html.index('data-figure="small-bert"') : html.index('data-figure="Distance"')]
    shares = re.findall(r"</svg> ([\d.]+)</span>", shown)
    assert shares == [f"{min(norm, 1.0):.3f}" for norm in found.norms]
    single = client.get("/distance", params={**params, "model": "lstm"}).text
    assert single.count("data-figure=") == 2
    assert "bank" in client.get("/distance").text  # The empty form contains an example.


@pytest.mark.parametrize(
    ("path", "params", "status", "message"),
    [
        ("/growing", {"text": "a " * 41}, 422, "text must have 1 to 40 words, got 41"),
        ("/growing", {"text": "a", "model": "<b>"}, 404, "no model &#39;&lt;b&gt;&#39; for this"),
        ("/growing", {"text": "a" * 501}, 413, "a text has 501 characters, but the maximum is 500"),
        ("/distance", {"text": "a b", "word": "zebra"}, 422, "does not contain &#39;zebra&#39;"),
        ("/distance", {"text": "a " * 70, "word": "a"}, 422, "more than 64 tokens"),
        ("/distance", {"text": "a", "word": "a", "model": "x"}, 404, "no model &#39;x&#39;"),
    ],
)
def test_pages_show_errors_above_form(
    path: str,
    params: dict[str, str],
    status: int,
    message: str,
    server: Server,
    registry: ModelRegistry,
) -> None:
    response = server(Limits(text_characters=500), at=registry).get(path, params=params)
    assert response.status_code == status
    assert message in alert(response.text)


def test_pages_without_model_redirect_home(server: Server) -> None:
    client = server(at=ModelRegistry([], None), runs=[Path("run")])
    for path in ("/growing", "/distance"):
        assert client.get(path, follow_redirects=False).headers["location"] == "/"


def test_gap_page_matches_fill_mask(
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
    tokens = [candidate["token"] for candidate in masked[0]["candidates"]]
    (_, table) = re.findall(r"<table>(.*?)</table>", html, re.S)
    heads = re.findall('<th scope="row">(.*?)</th>', table)
    assert [unescape(head) for head in heads] == tokens
    twice = client.get("/gap", params={"text": "[MASK] sat on the ___"}).text
    masks = client.post("/fill-mask", json={"inputs": "[MASK] sat on the [MASK]"}).json()
    heads = re.findall(
        '<th scope="row">(.*?)</th>', re.findall("<table>(.*?)</table>", twice, re.S)[1]
    )
    assert [unescape(head) for head in heads] == [
        candidate["token"] for candidate in masks[1]["candidates"]
    ]
    other = client.get("/gap", params={"text": text.replace("of the river", "<i>")}).text
    left = [re.findall(r"<table>(.*?)</table>", page, re.S)[0] for page in (html, other)]
    assert left[0] == left[1]  # The causal model ignores the right context.
    assert "<i>" not in other


def test_gap_page_with_one_model_explains_missing_model(
    server: Server,
    folders: Path,
    llama: Path,  # noqa: F811
) -> None:
    client = server(at=ModelRegistry([str(folders / "pretrained")], None))
    assert client.get("/gap", follow_redirects=False).headers["location"] == "/"
    assert 'href="/gap"' not in client.get("/").text
    client = server(at=ModelRegistry([str(llama)], None))
    response = client.get("/gap", params={"text": "a ___ c"})
    assert response.status_code == 200
    assert "uses only the left context; add" in alert(response.text)
    assert f"bertkit view {llama.name} OTHER" in alert(response.text)
    assert response.text.count("<table>") == 1
    rejected = client.get("/gap", params={"text": "no gap"})
    assert rejected.status_code == 422
    assert "must contain exactly one gap, ___" in rejected.text


def test_gap_page_shows_both_directions_of_elmo(
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
    (expected,) = FillGap(elmo)([text])
    tables = re.findall(r"<table>(.*?)</table>", html, re.S)
    for table, candidates in zip(tables[1:3], (expected.forward, expected.backward), strict=True):
        tokens = [
            unescape(candidate) for candidate in re.findall('<th scope="row">(.*?)</th>', table)
        ]
        assert tokens == [candidate.token for candidate in candidates]
        shares = re.findall(r"</svg> ([\d.]+)</span>", table)
        assert shares == [f"{candidate.score:.3f}" for candidate in candidates]
    single = server(at=ModelRegistry([str(elmo)], None)).get("/gap", params={"text": text})
    assert "elmo is the only model here and reads each side separately" in alert(single.text)
    assert single.text.count("<table>") == 2
    published = server(at=ModelRegistry([str(tiny_elmo(tmp_path / "published"))], None))
    assert published.get("/gap", follow_redirects=False).status_code == 303
    assert published.get("/").url.path == "/word"


@pytest.mark.parametrize("example", WordPage().examples(dict), ids=lambda example: example.text)
def test_word_examples_contain_word_once(example: Example) -> None:
    word, texts = example.values["word"], example.values["texts"].splitlines()
    assert len(set(texts)) == len(texts) >= 4
    for text in texts:
        assert re.findall(r"\w+", text.lower()).count(word) == 1
