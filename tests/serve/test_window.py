"""The window: what people see is what the library computes, and their words are only words."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from tests.serve.conftest import Server

from bertkit.serve.limits import Limits
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
        ({"text": "a", "model": "<b>"}, 422, "no model &#x27;&lt;b&gt;&#x27; answers this"),
        ({"text": "a" * 101}, 413, "a text of 101 characters, and 100 are the most"),
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
