"""Served ELMo models, word vectors, and models fine-tuned on ELMo."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.extensions.classic.test_word_features import conll, reviews, shaped
from tests.extensions.conftest import Server
from tests.factories import ELMO_OPTIONS, elmo_weights, tiny_elmo

import bertkit
from bertkit.errors import BertkitError, CheckpointError, DataError
from bertkit.extensions.classic.elmo_files import Softmax
from bertkit.extensions.classic.fill_gap import FillGap
from bertkit.extensions.classic.word_features import LENGTH
from bertkit.extensions.classic.word_vectors import Vectors
from bertkit.extensions.serving.limits import Limits
from bertkit.extensions.serving.models import ModelRegistry
from bertkit.extensions.serving.served import ServedModel, require_finite
from bertkit.tasks.tag import TagAnswer


@pytest.fixture(scope="module")
def elmo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return softmax(tiny_elmo(tmp_path_factory.mktemp("served") / "elmo"))


def softmax(folder: Path) -> Path:
    """Add a softmax with random weights to the directory, and return the directory."""
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


def test_pipelines_of_elmo_and_word_vectors(elmo: Path, vectors: Path, tmp_path: Path) -> None:
    published = tiny_elmo(tmp_path / "published")
    assert {*ServedModel(str(elmo), "bf16").pipelines} == {"contexts", "fill-gap"}
    assert {*ServedModel(str(published), "fp32").pipelines} == {"contexts"}
    assert {*ServedModel(str(vectors), "fp32").pipelines} == {"contexts"}


def test_server_reports_info_and_readiness_of_models(
    server: Server, elmo: Path, vectors: Path, folders: Path
) -> None:
    registry = ModelRegistry([str(elmo), str(vectors), str(folders / "pretrained")], None)
    client = server(at=registry)
    first, second, _ = client.get("/info").json()["models"]
    assert (first["family"], first["dimension"]) == ("elmo", 12)
    assert first["answers"] == ["fill-gap", "contexts"]
    assert (second["name"], second["family"], second["dimension"]) == ("vectors.txt", "vectors", 2)
    assert client.get("/health/ready").json() == {"status": "ready"}
    assert client.post("/models/vectors.txt/reload").status_code == 200
    assert client.post("/models/elmo/reload").json() == first
    # The ELMo has no vocabulary.
    assert client.get("/damage").text.count("<option>elmo</option>") == 0
    changed = registry.models["elmo"]
    changed.reference = changed.reference * 1.1
    not_ready = client.get("/health/ready")
    assert (not_ready.status_code, "elmo computes other embeddings" in not_ready.text) == (
        503,
        True,
    )


def test_elmo_reference_is_last_state_of_word(elmo: Path) -> None:
    served = ServedModel(str(elmo))
    (words,) = bertkit.pipeline("words", elmo)(["A known sentence gives a known vector."])
    np.testing.assert_allclose(served.reference, words.layers[-1, 1], atol=1e-6)
    assert served.is_unchanged(served.reference)
    assert not served.is_unchanged(served.reference * np.nan)


def test_require_finite_rejects_zero_nan_and_inf() -> None:
    good = np.ones((2, 3), np.float32)
    assert require_finite(good) is good
    for bad in (0.0, np.nan, np.inf):
        rows = good.copy()
        rows[1] = bad
        with pytest.raises(ArithmeticError, match="zero, NaN or inf"):
            require_finite(rows)


def test_served_model_rejects_invalid_files(tmp_path: Path) -> None:
    weights = elmo_weights(ELMO_OPTIONS)
    weights["char_embed"][3] = np.nan
    tiny_elmo(tmp_path / "nan", weights=weights)
    (tmp_path / "text.txt").write_text("no vectors here at all", encoding="utf-8")
    cases: list[tuple[str, type[BertkitError], str]] = [
        ("nan", CheckpointError, "contains NaN or inf"),
        ("text.txt", DataError, r"text\.txt:1: expected a word and its values"),
        ("nothing", CheckpointError, "nothing"),
    ]
    for name, error, message in cases:
        with pytest.raises(error, match=message):
            ServedModel(str(tmp_path / name), "fp32")


def test_elmo_rejects_long_text_without_logging_words(
    server: Server, elmo: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    client = server(at=ModelRegistry([str(elmo)], None))
    many = client.get("/gap", params={"text": "a " * LENGTH + "___ b"})
    assert many.status_code == 422
    assert f"must have at most {LENGTH} words, got {LENGTH + 1}" in many.text
    # The pipeline itself has no limit.
    FillGap(elmo)(["a " * LENGTH + "___ b"])
    ask = {"word": "class", "inputs": ["class " + "secret" * 20, "a class"]}
    assert client.post("/contexts", json=ask).status_code == 200
    assert "secret" not in capfd.readouterr().err
    cut = client.post("/contexts", json={**ask, "truncate": True})
    assert (cut.status_code, "never truncates" in cut.text) == (422, True)
    few = server(Limits(queue_tokens=20), at=ModelRegistry([str(elmo)], None))
    assert few.get("/gap", params={"text": "a " * 30 + "___"}).status_code == 413


@pytest.fixture(scope="module")
def finetuned(elmo: Path) -> dict[str, Path]:
    """A tagger and a classifier that are fine-tuned on the ELMo."""
    files = {
        "tag": conll(elmo.parent / "train.conll", 30),
        "classify": reviews(elmo.parent / "train.tsv", 30),
    }
    folders = {name: elmo.parent / f"{name}-elmo" for name in files}
    start = shaped(tiny_elmo(elmo.parent / "start"))
    for task, file in files.items():
        bertkit.finetune(task, start, train=file, dev=file, out=folders[task], epochs=2)
    return folders


def test_finetuned_elmo_routes_match_pipelines(
    server: Server, finetuned: dict[str, Path], folders: Path
) -> None:
    models = [*map(str, finetuned.values()), str(folders / "sentiment")]
    client = server(at=ModelRegistry(models, None))
    tagger, classifier, _ = client.get("/info").json()["models"]
    assert (tagger["answers"], classifier["answers"]) == (["ner"], ["predict"])
    assert classifier["labels"] == ["no", "yes"]
    texts = ["we eat the bread", "soup"]
    expected = bertkit.pipeline("tag", finetuned["tag"])(texts)
    answers = msgspec.convert(client.post("/ner", json={"inputs": texts}).json(), list[TagAnswer])
    assert [answer.tags for answer in answers] == [answer.tags for answer in expected]
    assert [answer.words for answer in answers] == [["we", "eat", "the", "bread"], ["soup"]]
    scores = bertkit.pipeline("classify", finetuned["classify"])("a fine film").scores
    labels = client.post("/predict", json={"inputs": "a fine film"}).json()
    assert {label["label"]: label["score"] for label in labels} == pytest.approx(scores, abs=1e-5)
    rows = client.post("/predict", json={"inputs": ["soup", "a fine film"]}).json()
    assert {label["label"]: label["score"] for label in rows[1]} == pytest.approx(scores, abs=1e-5)
    other = client.post("/predict", json={"inputs": "a b", "model": "sentiment"}).json()
    assert {label["label"] for label in other} == {"bad", "good", "mixed"}
    assert {"/ner", "/predict"} <= client.get("/openapi.json").json()["paths"].keys()


CUT = {"inputs": "a " * 600, "truncate": True}


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"inputs": [["a", "b"]]}, 422, "expected a single text, got a pair"),
        ({"inputs": "a " * 600}, 413, "exceeds the maximum of 512 tokens"),
        ({"inputs": "a " * 300}, 413, "exceeds the maximum of 200 tokens"),
        ({**CUT, "truncation_direction": "Left"}, 422, "can truncate texts only on the right"),
        ({"inputs": " "}, 422, "a text is empty"),
        (CUT, 200, ""),
    ],
)
def test_finetuned_elmo_rejects_invalid_texts(
    body: dict[str, Any], status: int, message: str, server: Server, finetuned: dict[str, Path]
) -> None:
    limits = Limits(queue_tokens=200 if "200" in message else 65536)
    client = server(limits, at=ModelRegistry([str(finetuned["classify"])], None))
    answer = client.post("/predict", json=body)
    assert answer.status_code == status, answer.text
    assert message in answer.text


def test_finetuned_elmo_with_nan_weights_is_rejected(
    finetuned: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(finetuned["tag"], tmp_path / "damaged")
    weights = load_file(folder / "model.safetensors")
    weights["classifier.bias"] = weights["classifier.bias"] * np.nan
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="contains NaN or inf"):
        ServedModel(str(folder), "fp32")
