"""SPLADE directories work with the commands and a server; other uses are rejected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.extensions.conftest import Server
from tests.extensions.search.splade_models import LONG, TEXTS, write_mlm, write_splade

import bertkit
from bertkit import cli
from bertkit.checkpoint.formats import LoadSettings, open_format
from bertkit.errors import CheckpointError
from bertkit.extensions.serving.limits import Limits
from bertkit.extensions.serving.models import ModelRegistry

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_splade(tmp_path_factory.mktemp("splade") / "model")


@pytest.fixture(scope="module")
def registry_of_splade(folder: Path) -> ModelRegistry:
    return ModelRegistry([str(folder)], None)


def is_close(actual: Any, expected: Any) -> bool:
    """Return whether weights have the same tokens, and values with a tolerance of 1e-5."""
    actual, expected = ({row["index"]: row for row in rows} for rows in (actual, expected))
    return actual.keys() == expected.keys() and all(
        row.keys() == actual[index].keys()
        and list(row.values()) == pytest.approx(list(actual[index].values()), abs=1e-5)
        for index, row in expected.items()
    )


def test_predict_prints_weights(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    texts, options = TEXTS[:3], ["--max-active-dims", "4", "--prompt", "query"]
    for model in (folder, write_mlm(tmp_path / "plain")):
        command = ["predict", str(model), *texts, "--pipeline", "sparse-embedding"]
        embed = bertkit.pipeline("sparse-embedding", model)
        expected = embed(texts, max_active_dims=4, prompt="q u " if model == folder else None)
        assert cli.run([*command, *(options if model == folder else options[:2])]) == 0
        printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert printed == msgspec.to_builtins(expected)
        assert [len(row) for row in printed] == [4, 4, 4]
    assert cli.run([*command, "--prompt", "query"]) == 2
    assert "prompt: 'query' is not a prompt of this model" in capsys.readouterr().err


def test_server_returns_weights(
    folder: Path, registry_of_splade: ModelRegistry, server: Server
) -> None:
    client, embed = server(at=registry_of_splade), bertkit.pipeline("sparse-embedding", folder)
    ask = {"inputs": TEXTS[:3], "max_active_dims": 3, "prompt": "query"}
    answer = client.post("/sparse-embedding", json=ask)
    assert answer.status_code == 200, answer.text
    expected = embed(TEXTS[:3], max_active_dims=3, prompt="query")
    for actual, row in zip(answer.json(), msgspec.to_builtins(expected), strict=True):
        assert is_close(actual, row)
        assert [weight["token"] for weight in actual] == [weight["token"] for weight in row]
    page = client.get("/ask", params={"what": "sparse-embedding", "text": "a b"})
    assert page.status_code == 200
    assert f">{embed('a b')[0].token}<" in page.text
    info = client.get("/info").json()
    assert info["model_type"] == {"embedding": {"pooling": "splade"}}
    (about,) = info["models"]
    assert {"sparse-embedding", "fill-mask"} <= {*about["answers"]}
    assert "embed" not in about["answers"]
    assert client.post("/embed", json={"inputs": "a"}).status_code == 404


def test_embed_sparse_answers_like_tei(
    folder: Path, registry_of_splade: ModelRegistry, server: Server
) -> None:
    client, embed = server(at=registry_of_splade), bertkit.pipeline("sparse-embedding", folder)

    def values(rows: Any) -> Any:
        return [[{"index": w.index, "value": w.weight} for w in row] for row in rows]

    texts = TEXTS[:4]
    answer = client.post("/embed_sparse", json={"inputs": texts})
    assert answer.status_code == 200, answer.text
    assert all(map(is_close, answer.json(), values(embed(texts))))
    for row in answer.json():
        indices = [value["index"] for value in row]
        assert indices == sorted(indices)
        assert all(value["value"] > 0 for value in row)
    one = client.post("/embed_sparse", json={"inputs": "a b"}).json()
    assert all(map(is_close, one, values([embed("a b")])))
    assert len(one) == 1
    prompted = client.post("/embed_sparse", json={"inputs": "a b", "prompt_name": "query"}).json()
    assert is_close(prompted[0], values([embed("a b", prompt="query")])[0])
    assert not is_close(prompted[0], one[0])
    rows = client.post("/tokenize", json={"inputs": texts}).json()
    ids = [[token["id"] for token in row] for row in rows]
    assert client.post("/embed_sparse", json={"inputs": ids}).json() == answer.json()
    cut = {"inputs": [LONG, "a"], "truncate": True}
    right = client.post("/embed_sparse", json={**cut, "truncation_direction": "Right"})
    left = client.post("/embed_sparse", json={**cut, "truncation_direction": "Left"})
    assert right.headers["x-truncated"] == left.headers["x-truncated"] == "0"
    assert all(map(is_close, right.json(), values(embed([LONG, "a"], long="truncate"))))
    assert all(map(is_close, left.json(), values(embed([LONG[-27:], "a"]))))


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"inputs": LONG}, 413, "exceeds the maximum of 16 tokens"),
        ({"inputs": []}, 400, "inputs"),
        ({"inputs": "a", "prompt_name": "qurey"}, 422, "the model has query, document"),
        ({"inputs": "a", "normalize": True}, 422, "normalize"),
        ({"inputs": ["a"] * 5}, 413, "5 items exceed the maximum of 4"),
        ({"inputs": "a", "model": "other"}, 404, "this server has no model 'other' for this route"),
    ],
)
def test_embed_sparse_reports_errors_like_embed(
    body: dict[str, Any],
    status: int,
    message: str,
    registry_of_splade: ModelRegistry,
    server: Server,
) -> None:
    answer = server(at=registry_of_splade, limits=Limits(items=4)).post("/embed_sparse", json=body)
    assert answer.status_code == status, answer.text
    assert message in answer.text
    assert {"error", "error_type"} <= answer.json().keys()


def test_memory_of_weights_is_reserved(registry_of_splade: ModelRegistry, server: Server) -> None:
    """A text has at most 32 weights of 192 bytes here; 100 texts exceed this budget."""
    limits = Limits(memory_bytes=600_000)
    texts = ["a"] * 100
    client = server(at=registry_of_splade, limits=limits)
    rejected = client.post("/embed_sparse", json={"inputs": texts})
    assert rejected.status_code in (413, 429)
    few = {"inputs": texts, "max_active_dims": 1}
    roomy = server(at=registry_of_splade, limits=Limits(memory_bytes=1_000_000))
    assert roomy.post("/sparse-embedding", json=few).status_code == 200


def test_server_without_splade_model_has_no_sparse_route(tmp_path: Path, server: Server) -> None:
    """Weights of a model that was not trained with SPLADE would be wrong without an error."""
    plain = write_mlm(tmp_path / "plain")
    client = server(at=ModelRegistry([str(plain)], None))
    answer = client.post("/embed_sparse", json={"inputs": "a"})
    assert answer.status_code == 404
    assert "sparse-embedding" not in client.get("/info").text


def test_other_uses_are_rejected(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    loaded = bertkit.load(folder)
    for use in (
        lambda: open_format(folder).load_embedder(LoadSettings()),
        lambda: bertkit.pipeline("embed", folder),
        lambda: bertkit.embed(loaded, "a b"),
        lambda: bertkit.pipeline("similarity", loaded),
        lambda: loaded.save(tmp_path / "copy"),
    ):
        with pytest.raises(CheckpointError, match=r"expected a .*, got a SPLADE model; "):
            use()
    assert not (tmp_path / "copy").exists()
    (tmp_path / "a.txt").write_text("a b")
    store = str(tmp_path / "store")
    command = ["index", str(tmp_path / "a.txt"), "--model", str(folder), "--store", store]
    assert cli.run(command) == 2
    assert "got a SPLADE model; use" in capsys.readouterr().err
    model, texts, out = str(folder), str(tmp_path / "a.txt"), str(tmp_path / "out")
    for command in (["export", model, "--out", out], ["export", "tune", model, texts]):
        assert cli.run(command) == 2
        assert "got a SPLADE model; use" in capsys.readouterr().err
