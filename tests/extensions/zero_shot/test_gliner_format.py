"""GLiNER directories work with the commands, a server, and other uses of models."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from tests.extensions.conftest import Server
from tests.extensions.zero_shot.gliner_models import LABELS, TEXTS, write_gliner

import bertkit
from bertkit import cli
from bertkit.checkpoint.formats import LoadSettings, open_format
from bertkit.errors import CheckpointError
from bertkit.extensions.serving.models import ModelRegistry

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gliner(tmp_path_factory.mktemp("gliner") / "model")


def test_predict_prints_entities(folder: Path, capsys: Captured) -> None:
    command = ["predict", str(folder), *TEXTS[:2], "--pipeline", "zero-shot-entities"]
    options = ["--labels", json.dumps(LABELS), "--threshold", "0.3", "--flat", "false"]
    assert cli.run([*command, *options]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    find = bertkit.pipeline("zero-shot-entities", folder)
    expected = msgspec.to_builtins(find(TEXTS[:2], LABELS, threshold=0.3, flat=False))
    assert printed == expected
    assert any(printed)
    assert cli.run([*command, "--labels", "[]"]) == 2
    assert "labels: there are no labels" in capsys.readouterr().err
    assert cli.run(["predict", str(folder), "a text"]) == 2
    assert "use bertkit.pipeline('zero-shot-entities', folder)" in capsys.readouterr().err


def test_server_returns_entities(folder: Path, server: Server) -> None:
    client = server(at=ModelRegistry([str(folder)], None))
    find = bertkit.pipeline("zero-shot-entities", folder)
    expected = msgspec.to_builtins(find(TEXTS, LABELS, threshold=0.3, flat=False))
    ask = {"inputs": TEXTS, "labels": LABELS, "threshold": 0.3, "flat": False}
    answer = client.post("/zero-shot-entities", json=ask)
    assert answer.status_code == 200, answer.text
    for actual, entities in zip(answer.json(), expected, strict=True):
        spans = [[(e["start"], e["end"], e["type"]) for e in row] for row in (actual, entities)]
        assert spans[0] == spans[1]
        scores = [e["score"] for e in entities]
        assert [e["score"] for e in actual] == pytest.approx(scores, abs=1e-5)
    assert client.post("/zero-shot-entities", json={"inputs": "a"}).status_code == 422
    cut = client.post("/zero-shot-entities", json={**ask, "truncate": True})
    assert cut.headers["x-truncated"] == "3"
    (info,) = client.get("/info").json()["models"]
    assert (info["family"], info["answers"]) == ("gliner", ["zero-shot-entities"])


def test_page_shows_entities(folder: Path, server: Server) -> None:
    client = server(at=ModelRegistry([str(folder)], None))
    ask = {"what": "zero-shot-entities", "text": TEXTS[0], "labels": "person, city"}
    page = client.get("/ask", params={**ask, "threshold": "0.1"})
    assert page.status_code == 200
    find = bertkit.pipeline("zero-shot-entities", folder)
    entities = find(TEXTS[0], ["person", "city"], threshold=0.1)
    assert entities
    # The page also repeats the text, so count the types, which occur only in results.
    rows = page.text.count(">person<") + page.text.count(">city<")
    none = client.get("/ask", params={**ask, "threshold": "1"}).text
    assert rows - none.count(">person<") - none.count(">city<") >= len(entities)


def test_info_counts_the_weights_of_the_head(folder: Path, capsys: Captured) -> None:
    assert cli.run(["info", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "head entities" in printed
    assert "deberta-v2" in printed


def test_encoder_loads_without_the_head(folder: Path) -> None:
    loaded = bertkit.load(folder)
    assert loaded.family.name == "deberta-v2"
    assert not loaded.model.heads
    with pytest.raises(CheckpointError, match="has no entities head"):
        bertkit.pipeline("zero-shot-entities", loaded)


def test_other_uses_are_rejected(folder: Path, tmp_path: Path) -> None:
    opened, loaded = open_format(folder), bertkit.load(folder)
    for use in (
        lambda: opened.load_embedder(LoadSettings()),
        lambda: opened.load_task(LoadSettings()),
        lambda: bertkit.pipeline("embed", folder),
        lambda: bertkit.embed(loaded, "a b"),
        lambda: bertkit.pipeline("similarity", loaded),
        lambda: bertkit.export(loaded, out=tmp_path / "out"),
        lambda: loaded.save(tmp_path / "copy"),
    ):
        with pytest.raises(CheckpointError, match=r"expected a .*, got a GLiNER model; "):
            use()
    assert not [*tmp_path.iterdir()]
