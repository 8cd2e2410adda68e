"""The pages on what states hold: what they show is what the library computes, within limits."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
from tests.extensions.classic.families.test_lstm import saved
from tests.extensions.classic.families.test_lstm import tokenizer as letters  # noqa: F401  (the fixture)
from tests.extensions.serving.conftest import Server
from tests.extensions.serving.test_generation_pages import alert

import bertkit
from bertkit.extensions.generation.pipeline import Generate
from bertkit.extensions.serving.limits import Limits
from bertkit.extensions.serving.models import ModelRegistry
from bertkit.extensions.serving.views.distance import DistancePipeline
from bertkit.text.tokenizer import Tokenizer

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
    assert html.count('aria-label="8 numbers"') == 4
    for text in ("a", "a b", "a b c", TEXT):
        ((written,),) = Generate(bertkit.load(lstm))([text])
        row = html[html.index(f'<th scope="row">{text.split()[-1]}</th>') :]
        assert written.text in row[: row.index("</tr>")]
    other = unescape(client.get("/growing", params={"text": TEXT, "model": "small-bert"}).text)
    assert other.count('aria-label="32 numbers"') == 4
    assert ('<th scope="col">written</th>' in html) > ('scope="col">written<' in other)


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
        ("/growing", {"text": "a " * 41}, 422, "text: 41 words; a page shows 1 to 40"),
        ("/growing", {"text": "a", "model": "<b>"}, 422, "no model &#39;&lt;b&gt;&#39; answers"),
        ("/growing", {"text": "a" * 501}, 413, "a text of 501 characters, and 500 are the most"),
        ("/distance", {"text": "a b", "word": "zebra"}, 422, "&#39;zebra&#39; is not in"),
        ("/distance", {"text": "a " * 70, "word": "a"}, 422, "a page shows 64 tokens"),
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
