"""The application handles invalid requests, and reloads models while it runs."""

from __future__ import annotations

import json
import shutil
import string
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient
from tests.extensions.conftest import KINDS, Server

from bertkit import web
from bertkit.checkpoint.directory import load, save
from bertkit.errors import BertkitError, CheckpointError, DataError, SearchError
from bertkit.extensions.serving import app
from bertkit.extensions.serving.limits import Limits
from bertkit.extensions.serving.models import ModelRegistry
from bertkit.extensions.serving.request_context import request_error
from bertkit.families import BERT
from bertkit.web import Context

ROUTES = ["/embed", "/v1/embeddings", "/similarity", "/predict", "/rerank", "/ner", "/answer"]
ROUTES += ["/choose", "/fill-mask", "/next-sentence", "/tokenize", "/explain", "/search", "/info"]
ROUTES += ["/contexts"]

BROKEN = [
    b"",
    b"{",
    b"[" * 100_000,
    b'{"inputs":' * 20_000,
    b'{"inputs": "\\ud800"}',
    b'{"inputs": ["a", "\\udfff x"]}',
    b'{"inputs": "a", "top": 1e400}',
    b'{"inputs": "[MASK]", "top": ' + b"9" * 5000 + b"}",
    b'{"inputs": NaN}',
    b"\xff\xfe{}",
    b'{"inputs": "\x00"}',
    b'{"inputs": "' + b"\xcc\x81" * 40_000 + b'"}',
    b'{"inputs": {"source_sentence": "a", "sentences": []}}',
    b'{"query": "a", "texts": ["' + b"a" * 1000 + b'"]}',
    b"null",
    b"7",
    b'"text"',
    b'{"inputs": [[[[["a"]]]]]}',
]


@pytest.mark.parametrize(
    ("error", "status"),
    [(DataError("a"), 422), (CheckpointError("a"), 503), (SearchError("a"), 503)],
)
def test_request_error_distinguishes_client_and_server_errors(
    error: BertkitError, status: int
) -> None:
    assert request_error(error).status == status


def test_invalid_json_has_a_clear_message(server: Server) -> None:
    headers = {"content-type": "application/json"}
    response = server().post("/embed", content=b'{"inputs": ', headers=headers).json()
    message = "invalid JSON (Input data was truncated)"
    assert response == {"error": message, "error_type": "Validation"}


def test_invalid_bodies_return_4xx(server: Server) -> None:
    client = server()
    for path in ROUTES:
        for body in BROKEN:
            response = client.post(path, content=body, headers={"content-type": "application/json"})
            assert response.status_code < 500, (path, body[:40], response.text)
            if response.status_code >= 400:
                assert response.json()["error"]
        for kind in ("text/plain", "application/x-no", ""):
            response = client.post(path, content=b"{}", headers={"content-type": kind})
            assert 400 <= response.status_code < 500
            assert response.json()["error"]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["inputs", "text", "question", "model", "a"]), inner)
    ),
    max_leaves=8,
)
fields = ["word", "inputs", "input", "query", "texts", "model", "truncate", "top", "dimensions"]
fields += ["where", "hybrid"]


@pytest.fixture
def client(server: Server) -> TestClient:
    """Client of one server for all examples of a test."""
    return server()


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from(ROUTES),
    bodies=st.lists(st.dictionaries(st.sampled_from(fields), values), min_size=10, max_size=10),
    cut=st.integers(0, 40),
)
def test_random_bodies_never_return_5xx(
    client: TestClient, path: str, bodies: list[Any], cut: int
) -> None:
    for body in bodies:
        text = json.dumps(body).encode()
        for sent in (text, text[cut:], text[: -cut or None]):
            response = client.post(path, content=sent, headers={"content-type": "application/json"})
            assert response.status_code < 500, (sent, response.text)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.text(string.printable, max_size=30), method=st.sampled_from(["GET", "PUT", "HEAD"]))
def test_random_paths_never_return_5xx(client: TestClient, path: str, method: str) -> None:
    from urllib.parse import quote

    assert client.request(method, "/" + quote(path)).status_code < 500


def test_reload_replaces_model_of_running_server(
    server: Server, folders: Path, tmp_path: Path
) -> None:
    model_dir = tmp_path / "model"
    first, second = load(folders / "pretrained"), load(folders / "pretrained")
    save(model_dir, first.model, first.tokenizer, BERT)
    registry = ModelRegistry([str(model_dir)], None)
    client = server(at=registry)
    request_body = {"inputs": "a b", "normalize": False}
    before = client.post("/embed", json=request_body).json()
    second.model.encoder.embedding.tokens.weight.data += 0.5
    save(model_dir, second.model, second.tokenizer, BERT)
    assert client.post("/embed", json=request_body).json() == before
    assert client.post("/models/model/reload").json()["name"] == "model"
    assert client.post("/embed", json=request_body).json() != before
    assert client.post("/models/other/reload").status_code == 422
    # The served model does not map the file.
    (model_dir / "model.safetensors").write_bytes(b"")
    shutil.rmtree(model_dir)
    assert client.post("/embed", json={"inputs": "c d e"}).status_code == 200
    broken = client.post("/models/model/reload")
    assert broken.status_code == 422
    assert client.post("/embed", json=request_body).status_code == 200


def test_reload_updates_routes_of_changed_model(
    server: Server, folders: Path, tmp_path: Path
) -> None:
    model_dir = tmp_path / "model"
    shutil.copytree(folders / "pretrained", model_dir)
    client = server(at=ModelRegistry([str(model_dir)], None))
    assert client.post("/predict", json={"inputs": "a b"}).status_code == 404
    shutil.rmtree(model_dir)
    shutil.copytree(folders / "sentiment", model_dir)
    assert client.post("/models/model/reload").json()["answers"][0] == "predict"
    assert client.post("/predict", json={"inputs": "a b"}).status_code == 200
    assert client.post("/fill-mask", json={"inputs": "a [MASK]"}).status_code == 404
    paths = client.get("/openapi.json").json()["paths"]
    assert "/predict" in paths
    assert "/fill-mask" not in paths
    assert "what=predict" in client.get("/ask").text


def test_reload_by_earlier_application_installs_current_routes(
    server: Server, folders: Path, tmp_path: Path
) -> None:
    model_dir = tmp_path / "model"
    shutil.copytree(folders / "pretrained", model_dir)
    client = server(at=ModelRegistry([str(model_dir)], None))
    admission: Any = client.app
    # A request that waits for the lock uses the earlier application.
    earlier = admission.app
    for kind in ("sentiment", "pretrained"):
        shutil.rmtree(model_dir)
        shutil.copytree(folders / kind, model_dir)
        current, admission.app = admission.app, earlier
        assert client.post("/models/model/reload").status_code == 200
        assert admission.app is not earlier
        assert admission.app is not current
        is_missing = client.post("/fill-mask", json={"inputs": "a [MASK]"}).status_code == 404
        assert is_missing == (kind == "sentiment")


def test_models_with_equal_directory_names_have_different_names(
    server: Server, folders: Path, tmp_path: Path
) -> None:
    model_dirs = [tmp_path / name / "model" for name in ("one", "two")]
    for model_dir in model_dirs:
        shutil.copytree(folders / "sentiment", model_dir)
    client = server(at=ModelRegistry(list(map(str, model_dirs)), None))
    assert [m["name"] for m in client.get("/info").json()["models"]] == ["one", "two"]
    shutil.rmtree(model_dirs[1])
    shutil.copytree(folders / "pretrained", model_dirs[1])
    assert "predict" not in client.post("/models/two/reload").json()["answers"]
    nested = [tmp_path / "one" / "x" / "m", tmp_path / "two" / "m"]
    for model_dir in nested:
        shutil.copytree(folders / "sentiment", model_dir)
    client = server(at=ModelRegistry(list(map(str, nested)), None))
    assert client.post("/models/one/x/reload").json()["answers"][0] == "predict"
    assert client.post("/predict", json={"inputs": "a b", "model": "one/x"}).status_code == 200


def test_reload_continues_after_request_timeout(
    server: Server, folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_dir, reload = tmp_path / "model", ModelRegistry.reload
    shutil.copytree(folders / "pretrained", model_dir)
    client = server(Limits(timeout=0.2), at=ModelRegistry([str(model_dir)], None))

    def slow_reload(registry: ModelRegistry, name: str) -> None:
        time.sleep(0.5)
        reload(registry, name)

    monkeypatch.setattr(ModelRegistry, "reload", slow_reload)
    shutil.rmtree(model_dir)
    shutil.copytree(folders / "sentiment", model_dir)
    assert client.post("/models/model/reload").status_code == 429
    end = time.monotonic() + 20
    while client.post("/predict", json={"inputs": "a b"}).status_code != 200:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_request_selects_model_by_name(server: Server, folders: Path) -> None:
    client = server()
    assert len(client.get("/info").json()["models"]) == len(KINDS)
    texts = {"query": "a", "texts": ["b"], "raw_scores": True}
    names = ("ending", "ranker")
    first, second = (client.post("/rerank", json={**texts, "model": name}).json() for name in names)
    assert first != second


def test_route_without_a_pipeline_is_served(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hello(context: Context) -> Any:
        """Greet."""
        return context.reply({"hello": "world"})

    route = web.Route("/hello", hello, dict[str, str], method="GET")
    monkeypatch.setattr(app, "ROUTES", {**web.ROUTES, "/hello": route})
    client = server()
    assert client.get("/hello").json() == {"hello": "world"}
    assert "/hello" in client.get("/openapi.json").json()["paths"]
