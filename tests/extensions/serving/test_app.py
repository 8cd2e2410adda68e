"""The application as a whole: no body brings it down, and a model is opened again under way."""

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
def test_what_is_damaged_is_not_the_clients_fault(error: BertkitError, status: int) -> None:
    assert request_error(error).status == status


def test_what_is_no_json_is_said_so(server: Server) -> None:
    found = (
        server()
        .post("/embed", content=b'{"inputs": ', headers={"content-type": "application/json"})
        .json()
    )
    assert found == {"error": "invalid JSON (Input data was truncated)", "error_type": "validation"}


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "application/x-no", ""])
def test_broken_bodies_are_the_clients_fault(server: Server, kind: str) -> None:
    client = server()
    for path in ROUTES:
        for body in BROKEN:
            found = client.post(path, content=body, headers={"content-type": kind})
            assert found.status_code < 500, (path, body[:40], found.text)
            if found.status_code >= 400:
                assert found.json()["error"]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["inputs", "text", "question", "model", "a"]), inner)
    ),
    max_leaves=8,
)
fields = [
    "word",
    "inputs",
    "input",
    "query",
    "texts",
    "model",
    "truncate",
    "top",
    "dimensions",
    "where",
    "hybrid",
]


@pytest.fixture
def client(server: Server) -> TestClient:
    """Of one server for all examples of a property."""
    return server()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from(ROUTES),
    bodies=st.lists(st.dictionaries(st.sampled_from(fields), values), min_size=10, max_size=10),
    cut=st.integers(0, 40),
)
def test_no_body_is_a_5xx(client: TestClient, path: str, bodies: list[Any], cut: int) -> None:
    for body in bodies:
        text = json.dumps(body).encode()
        for sent in (text, text[cut:], text[: -cut or None]):
            found = client.post(path, content=sent, headers={"content-type": "application/json"})
            assert found.status_code < 500, (sent, found.text)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.text(string.printable, max_size=30), method=st.sampled_from(["GET", "PUT", "HEAD"]))
def test_no_path_is_a_5xx(client: TestClient, path: str, method: str) -> None:
    from urllib.parse import quote

    assert client.request(method, "/" + quote(path)).status_code < 500


def test_a_model_is_opened_again_under_way(server: Server, folders: Path, tmp_path: Path) -> None:
    place = tmp_path / "model"
    first, second = load(folders / "pretrained"), load(folders / "pretrained")
    save(place, first.model, first.tokenizer, BERT)
    registry = ModelRegistry([str(place)], None)
    client = server(at=registry)
    ask = {"inputs": "a b", "normalize": False}
    before = client.post("/embed", json=ask).json()
    second.model.encoder.embedding.tokens.weight.data += 0.5
    save(place, second.model, second.tokenizer, BERT)
    assert client.post("/embed", json=ask).json() == before
    assert client.post("/models/model/reload").json()["name"] == "model"
    assert client.post("/embed", json=ask).json() != before
    assert client.post("/models/other/reload").status_code == 422
    (place / "model.safetensors").write_bytes(b"")  # nothing of the file is still mapped
    shutil.rmtree(place)
    assert client.post("/embed", json={"inputs": "c d e"}).status_code == 200
    broken = client.post("/models/model/reload")
    assert broken.status_code == 422
    assert client.post("/embed", json=ask).status_code == 200


def test_a_model_is_asked_other_things_after_it_changed(
    server: Server, folders: Path, tmp_path: Path
) -> None:
    place = tmp_path / "model"
    shutil.copytree(folders / "pretrained", place)
    client = server(at=ModelRegistry([str(place)], None))
    assert client.post("/predict", json={"inputs": "a b"}).status_code == 404
    shutil.rmtree(place)
    shutil.copytree(folders / "sentiment", place)
    assert client.post("/models/model/reload").json()["answers"][0] == "predict"
    assert client.post("/predict", json={"inputs": "a b"}).status_code == 200
    assert client.post("/fill-mask", json={"inputs": "a [MASK]"}).status_code == 404
    paths = client.get("/openapi.json").json()["paths"]
    assert "/predict" in paths
    assert "/fill-mask" not in paths
    assert "what=predict" in client.get("/ask").text


def test_a_reload_of_an_earlier_application_opens_the_routes_of_now(
    server: Server, folders: Path, tmp_path: Path
) -> None:
    place = tmp_path / "model"
    shutil.copytree(folders / "pretrained", place)
    client = server(at=ModelRegistry([str(place)], None))
    admission: Any = client.app
    earlier = admission.app  # which a request that waits for the lock came through
    for kind in ("sentiment", "pretrained"):
        shutil.rmtree(place)
        shutil.copytree(folders / kind, place)
        now, admission.app = admission.app, earlier
        assert client.post("/models/model/reload").status_code == 200
        assert admission.app is not earlier
        assert admission.app is not now
        lost = client.post("/fill-mask", json={"inputs": "a [MASK]"}).status_code == 404
        assert lost == (kind == "sentiment")


def test_models_of_one_folder_name_are_asked_and_reloaded_by_their_paths(
    server: Server, folders: Path, tmp_path: Path
) -> None:
    places = [tmp_path / name / "model" for name in ("one", "two")]
    for place in places:
        shutil.copytree(folders / "sentiment", place)
    client = server(at=ModelRegistry(list(map(str, places)), None))
    assert [m["name"] for m in client.get("/info").json()["models"]] == ["one", "two"]
    shutil.rmtree(places[1])
    shutil.copytree(folders / "pretrained", places[1])
    assert "predict" not in client.post("/models/two/reload").json()["answers"]
    nested = [tmp_path / "one" / "x" / "m", tmp_path / "two" / "m"]
    for place in nested:
        shutil.copytree(folders / "sentiment", place)
    client = server(at=ModelRegistry(list(map(str, nested)), None))
    assert client.post("/models/one/x/reload").json()["answers"][0] == "predict"
    assert client.post("/predict", json={"inputs": "a b", "model": "one/x"}).status_code == 200


def test_a_reload_goes_on_when_nobody_waits_for_it(
    server: Server, folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, whole = tmp_path / "model", ModelRegistry.reload
    shutil.copytree(folders / "pretrained", place)
    client = server(Limits(timeout=0.2), at=ModelRegistry([str(place)], None))

    def slowly(registry: ModelRegistry, name: str) -> None:
        time.sleep(0.5)
        whole(registry, name)

    monkeypatch.setattr(ModelRegistry, "reload", slowly)
    shutil.rmtree(place)
    shutil.copytree(folders / "sentiment", place)
    assert client.post("/models/model/reload").status_code == 429
    end = time.monotonic() + 20
    while client.post("/predict", json={"inputs": "a b"}).status_code != 200:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_second_model_answers_when_it_is_named(server: Server, folders: Path) -> None:
    client = server()
    assert len(client.get("/info").json()["models"]) == len(KINDS)
    texts = {"query": "a", "texts": ["b"], "raw_scores": True}
    names = ("ending", "ranker")
    one, other = (client.post("/rerank", json={**texts, "model": name}).json() for name in names)
    assert one != other


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
