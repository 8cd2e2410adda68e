"""The pages on models that write: what they hold is what the library computes, within limits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.extensions.conftest import Server
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
    place = tmp_path_factory.mktemp("writers")
    return {family: write_model(place / family, family) for family in ("t5", "bart")}


@pytest.fixture(scope="module")
def writers(models: dict[str, Path]) -> ModelRegistry:
    return ModelRegistry(map(str, models.values()), None)


@pytest.fixture(scope="module")
def both(llama: Path, bert: Path) -> ModelRegistry:  # noqa: F811
    return ModelRegistry([str(llama), str(bert)], None)


def alert(html: str) -> str:
    (said,) = re.findall('<p role="alert">(.*?)</p>', html)
    return str(said)


def held(html: str) -> Any:
    data = re.search('id="data">(.*?)</script>', html, re.S)
    assert data is not None
    return json.loads(data[1])


def test_links_lead_to_what_the_models_can(
    server: Server, writers: ModelRegistry, both: ModelRegistry
) -> None:
    first = server(at=writers).get("/", follow_redirects=False)
    assert first.headers["location"] == "/steps"
    for registry, there, absent in ((writers, "/steps", "/gap"), (both, "/gap", "/steps")):
        found = server(at=registry).get("/damage").text
        assert f'<a href="{there}"' in found
        assert f'<a href="{absent}"' not in found


def test_pages_that_no_model_fills_lead_elsewhere(
    server: Server, writers: ModelRegistry, both: ModelRegistry
) -> None:
    nothing = server(at=ModelRegistry([], None), runs=[Path("run")])
    for path in ("/", "/steps", "/gap", "/damage"):
        answer = nothing.get(path, follow_redirects=False)
        assert answer.status_code == 303
    assert nothing.get("/damage").url.path == "/training"
    assert server(at=both).get("/steps", follow_redirects=False).headers["location"] == "/"
    assert server(at=writers).get("/gap", follow_redirects=False).headers["location"] == "/"


def test_the_page_of_steps_holds_the_models_numbers(
    server: Server, writers: ModelRegistry, models: dict[str, Path]
) -> None:
    asked = {"text": TEXT, "beams": "2", "model": "t5"}
    shown = server(at=writers).get("/steps", params=asked)
    assert shown.status_code == 200
    data = held(shown.text)
    wanted = decoder_steps(Generate(bertkit.load(models["t5"])), TEXT, beams=2)
    assert data["written"] == wanted.written
    assert data["target"] == wanted.target
    assert len(data["beams"]) == len(wanted.beams) > 0
    for layer, own in zip(data["attention"], wanted.attention, strict=True):
        layer["shape"] = tuple(layer["shape"])
        np.testing.assert_allclose(decoded(Array(**layer)), decoded(own), atol=1e-3)
    assert "selected>2</option>" in shown.text
    usual = server(at=writers).get("/steps", params={"text": TEXT, "beams": "default of the model"})
    assert usual.status_code == 200
    assert held(usual.text)["model"]["name"] == "t5"


@pytest.mark.parametrize(
    ("path", "asked", "status", "said"),
    [
        ("/steps", {"text": "a", "beams": "99"}, 422, "beams"),
        ("/steps", {"text": "a", "beams": "x"}, 422, "beams"),
        ("/steps", {"text": "a", "model": "<b>"}, 422, "no model &#39;&lt;b&gt;&#39; supports"),
        ("/steps", {"text": "a " * 200}, 422, "tokens, but the model supports 64"),
        ("/steps", {"text": "a" * 501}, 413, "a text of 501 characters exceeds the maximum of 500"),
        ("/damage", {"text": "a b", "damage": "none"}, 422, "damage"),
        ("/damage", {"text": "a b", "seed": "x"}, 422, "seed"),
        ("/damage", {"text": "a", "damage": "prefix"}, 422, "at least two tokens"),
        ("/damage", {"text": "a b", "damage": "mass", "model": "t5"}, 422, "no mask token"),
        (
            "/damage",
            {"text": "a b", "damage": "spans", "model": "bart"},
            422,
            "no sentinel token &lt;extra_id_0&gt;",
        ),
        (
            "/damage",
            {"text": "a" * 501},
            413,
            "a text of 501 characters exceeds the maximum of 500",
        ),
    ],
)
def test_what_cannot_be_is_said_above_the_form(
    path: str, asked: dict[str, str], status: int, said: str, server: Server, writers: ModelRegistry
) -> None:
    answer = server(Limits(text_characters=500), at=writers).get(path, params=asked)
    assert answer.status_code == status
    assert said in alert(answer.text)


def test_more_than_the_queue_takes_is_refused(server: Server, writers: ModelRegistry) -> None:
    answer = server(Limits(queue_tokens=20), at=writers).get("/steps", params={"text": TEXT})
    assert answer.status_code == 413
    assert "exceeds the maximum of 20 tokens" in alert(answer.text)


def test_a_text_is_damaged_and_the_next_seed_offered(
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
    assert (
        "&lt;mask&gt;" in bart or "[MASK]" in bart
    )  # its own vocabulary is taken, which has a mask
