"""Models that are no encoders: what a server opens, what it knows of them, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.factories import ELMO_OPTIONS, elmo_weights, tiny_elmo
from tests.serve.conftest import Server

from bertkit.checkpoint.elmo import Softmax
from bertkit.errors import BertkitError, CheckpointError, DataError
from bertkit.pipelines import FillGap
from bertkit.serve.limits import Limits
from bertkit.serve.registry import ModelRegistry, open_model
from bertkit.serve.served import LENGTH, ServedElmo, require_finite
from bertkit.text.vectors import Vectors


@pytest.fixture(scope="module")
def elmo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return softmax(tiny_elmo(tmp_path_factory.mktemp("served") / "elmo"))


def softmax(folder: Path) -> Path:
    """The folder, with a softmax of random weights beside."""
    random = np.random.default_rng(0)
    words = ["<UNK>", "a", "cat", "<mat>"]
    weight = torch.from_numpy(random.normal(size=(4, 6)).astype(np.float32))
    Softmax(words, weight, torch.zeros(4)).save(folder)
    return folder


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served") / "vectors.txt"
    Vectors(["class", "loop"], np.float32([[1, 2], [3, 0]])).save(path)
    return path


def test_abilities(elmo: Path, vectors: Path, tmp_path: Path) -> None:
    published = tiny_elmo(tmp_path / "published")
    assert {*open_model(str(elmo), "bf16").pipelines} == {"contexts", "fill-gap"}
    assert {*open_model(str(published), "fp32").pipelines} == {"contexts"}
    assert {*open_model(str(vectors), "fp32").pipelines} == {"contexts"}


def test_a_server_says_what_they_are_and_that_they_are_well(
    server: Server, elmo: Path, vectors: Path, folders: Path
) -> None:
    registry = ModelRegistry([str(elmo), str(vectors), str(folders / "pretrained")], None)
    client = server(at=registry)
    first, second, _ = client.get("/info").json()["models"]
    assert (first["family"], first["answers"], first["dimension"]) == ("elmo", ["contexts"], 12)
    assert (second["name"], second["family"], second["dimension"]) == ("vectors.txt", "vectors", 2)
    assert client.get("/health/ready").json() == {"status": "ready"}
    assert client.post("/models/vectors.txt/reload").status_code == 200
    assert client.post("/models/elmo/reload").json() == first
    assert client.get("/damage").text.count("<option>elmo</option>") == 0  # it has no vocabulary
    changed = registry.models["elmo"]
    changed.known = changed.known * 1.1
    unwell = client.get("/health/ready")
    assert (unwell.status_code, "elmo gives other vectors" in unwell.text) == (503, True)


def test_the_known_vector_is_the_last_state_of_its_word(elmo: Path) -> None:
    one = ServedElmo(str(elmo))
    (words,) = one.words(["A known sentence gives a known vector."])
    np.testing.assert_allclose(one.known, words.layers[-1, 1], atol=1e-6)
    assert one.well(one.known)
    assert not one.well(one.known * np.nan)


def test_unusable_vectors() -> None:
    good = np.ones((2, 3), np.float32)
    assert require_finite(good) is good
    for bad in (0.0, np.nan, np.inf):
        rows = good.copy()
        rows[1] = bad
        with pytest.raises(ArithmeticError, match="not finite, or zero"):
            require_finite(rows)


def test_what_does_not_open_is_refused(tmp_path: Path) -> None:
    weights = elmo_weights(ELMO_OPTIONS)
    weights["char_embed"][3] = np.nan
    tiny_elmo(tmp_path / "nan", weights=weights)
    (tmp_path / "text.txt").write_text("no vectors here at all", encoding="utf-8")
    cases: list[tuple[str, type[BertkitError], str]] = [
        ("nan", CheckpointError, "has numbers that are none"),
        ("text.txt", DataError, r"text\.txt:1: not a word and its numbers"),
        ("nothing", CheckpointError, "nothing"),
    ]
    for name, error, said in cases:
        with pytest.raises(error, match=said):
            open_model(str(tmp_path / name), "fp32")


def test_a_long_text_is_refused_and_no_word_is_logged(
    server: Server, elmo: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    client = server(at=ModelRegistry([str(elmo)], None))
    many = client.get("/gap", params={"text": "a " * LENGTH + "___ b"})
    assert many.status_code == 422
    assert f"{LENGTH + 1} words, and {LENGTH} are the most here" in many.text
    FillGap(elmo)(["a " * LENGTH + "___ b"])  # the control: a model itself reads on
    ask = {"word": "class", "inputs": ["class " + "secret" * 20, "a class"]}
    assert client.post("/contexts", json=ask).status_code == 200
    assert "secret" not in capfd.readouterr().err
    cut = client.post("/contexts", json={**ask, "truncate": True})
    assert (cut.status_code, "no text is cut here" in cut.text) == (422, True)
    few = server(Limits(queue_tokens=20), at=ModelRegistry([str(elmo)], None))
    assert few.get("/gap", params={"text": "a " * 30 + "___"}).status_code == 413
