"""Web pages of generative models: contents, links, and limits."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from tests.extensions.conftest import Server, alert, page_data
from tests.extensions.generation.tasks.test_seq2seq import write_model
from tests.extensions.generation.test_routes import folder as llama  # noqa: F401  (the fixture)

import bertkit
from bertkit.extensions.generation.decode_view import decoder_steps
from bertkit.extensions.generation.pages import EXAMPLE_TEXT
from bertkit.extensions.generation.pipeline import Generate
from bertkit.extensions.serving.limits import Limits
from bertkit.extensions.serving.models import ModelRegistry
from bertkit.view.arrays import Array, decoded

TEXT = "the cat sat on the mat"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("writers")
    return {family: write_model(directory / family, family) for family in ("t5", "bart")}


@pytest.fixture(scope="module")
def writers(models: dict[str, Path]) -> ModelRegistry:
    return ModelRegistry(map(str, models.values()), None)


@pytest.fixture(scope="module")
def both(llama: Path, bert: Path) -> ModelRegistry:  # noqa: F811
    return ModelRegistry([str(llama), str(bert)], None)


def test_pages_link_only_to_supported_pages(
    server: Server, writers: ModelRegistry, both: ModelRegistry
) -> None:
    first = server(at=writers).get("/", follow_redirects=False)
    assert first.headers["location"] == "/steps"
    for registry, linked, absent in ((writers, "/steps", "/gap"), (both, "/gap", "/steps")):
        page = server(at=registry).get("/damage").text
        assert f'<a href="{linked}"' in page
        assert f'<a href="{absent}"' not in page


def test_unsupported_pages_redirect(
    server: Server, writers: ModelRegistry, both: ModelRegistry
) -> None:
    client = server(at=ModelRegistry([], None), runs=[Path("run")])
    for path in ("/", "/steps", "/gap", "/damage"):
        answer = client.get(path, follow_redirects=False)
        assert answer.status_code == 303
    assert client.get("/damage").url.path == "/training"
    assert server(at=both).get("/steps", follow_redirects=False).headers["location"] == "/"
    assert server(at=writers).get("/gap", follow_redirects=False).headers["location"] == "/"


def test_steps_page_matches_decoder_steps(
    server: Server, writers: ModelRegistry, models: dict[str, Path]
) -> None:
    params = {"text": TEXT, "beams": "2", "model": "t5"}
    page = server(at=writers).get("/steps", params=params)
    assert page.status_code == 200
    data = page_data(page.text)
    expected = decoder_steps(Generate(bertkit.load(models["t5"])), TEXT, beams=2)
    assert data["written"] == expected.written
    assert data["target"] == expected.target
    assert len(data["beams"]) == len(expected.beams) > 0
    for layer, weights in zip(data["attention"], expected.attention, strict=True):
        layer["shape"] = tuple(layer["shape"])
        np.testing.assert_allclose(decoded(Array(**layer)), decoded(weights), atol=1e-3)
    assert "selected>2</option>" in page.text
    default = server(at=writers).get(
        "/steps", params={"text": TEXT, "beams": "default of the model"}
    )
    assert default.status_code == 200
    assert page_data(default.text)["model"]["name"] == "t5"


@pytest.mark.parametrize(
    ("path", "params", "status", "message"),
    [
        ("/steps", {"text": "a", "beams": "99"}, 422, "beams"),
        ("/steps", {"text": "a", "beams": "x"}, 422, "beams"),
        ("/steps", {"text": "a", "model": "<b>"}, 404, "no model &#39;&lt;b&gt;&#39; for"),
        ("/steps", {"text": "a " * 200}, 422, "tokens, but the model supports at most 64"),
        ("/steps", {"text": "a" * 501}, 413, "a text has 501 characters, but the maximum is 500"),
        ("/damage", {"text": "a b", "damage": "none"}, 422, "damage"),
        ("/damage", {"text": "a b", "seed": "x"}, 422, "seed"),
        ("/damage", {"text": "a", "damage": "prefix"}, 422, "at least two tokens"),
        ("/damage", {"text": "a b", "damage": "mass", "model": "t5"}, 422, "no mask token"),
        ("/damage", {"text": "a b", "damage": "spans", "model": "bart"}, 422, "no sentinel token"),
        ("/damage", {"text": "a" * 501}, 413, "a text has 501 characters, but the maximum is 500"),
    ],
)
def test_page_shows_error_of_invalid_request(
    path: str,
    params: dict[str, str],
    status: int,
    message: str,
    server: Server,
    writers: ModelRegistry,
) -> None:
    answer = server(Limits(text_characters=500), at=writers).get(path, params=params)
    assert answer.status_code == status
    assert message in alert(answer.text)


def test_steps_page_rejects_request_larger_than_queue(
    server: Server, writers: ModelRegistry
) -> None:
    answer = server(Limits(queue_tokens=20), at=writers).get("/steps", params={"text": TEXT})
    assert answer.status_code == 413
    assert "exceeds the maximum of 20 tokens" in alert(answer.text)


def test_corruption_page_shows_corrupted_text_and_next_seed(
    server: Server, writers: ModelRegistry
) -> None:
    client = server(at=writers)
    assert EXAMPLE_TEXT in client.get("/damage").text
    shown = client.get("/damage", params={"text": TEXT, "seed": "3"}).text
    assert "&lt;extra_id_0&gt;" in shown
    (link,) = re.findall(r'href="(/damage\?[^"]*)"', shown)
    assert "seed=4" in link
    following = client.get(link.replace("&amp;", "&")).text
    assert TEXT in following
    assert 'value="4"' in following
    bart = client.get("/damage", params={"text": TEXT, "damage": "BART: masks for spans"}).text
    # BART's own vocabulary has a mask token.
    assert "&lt;mask&gt;" in bart or "[MASK]" in bart
