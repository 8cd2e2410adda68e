"""Folders of every kind that a server has routes for, tiny and random, and a server in process."""

from __future__ import annotations

import importlib.util
import json
import re
import string
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.extensions.transformers_pipelines.models import write_models
from tests.factories import tiny_folder, tiny_tokenizer

from bertkit.extensions.search.documents import DocumentColumns
from bertkit.extensions.search.index import index
from bertkit.extensions.serving.admission import AdmissionMiddleware
from bertkit.extensions.serving.api_keys import ApiKeys
from bertkit.extensions.serving.app import install_app
from bertkit.extensions.serving.batcher import Batcher
from bertkit.extensions.serving.limits import Limits
from bertkit.extensions.serving.metrics import Metrics
from bertkit.extensions.serving.models import ModelRegistry

LENGTH = 16

KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...], str | None]] = {
    "pretrained": (("mlm", "nsp"), (), None),
    "sentiment": (("classify",), ("bad", "good", "mixed"), "classify"),
    "entities": (("tag",), ("O", "B-PER", "I-PER"), "tag"),
    "reader": (("answer",), (), "answer"),
    "ending": (("choose",), (), "choose"),
    "ranker": (("choose",), (), "respond"),
}
"""Name -> heads, labels, task."""


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the models of `models.py`."""
    root = tmp_path_factory.mktemp("transformers-pipelines")
    write_models(root)
    return root


@pytest.fixture(scope="session")
def perturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the models of `models.py`, with a relative change of each weight."""
    root = tmp_path_factory.mktemp("perturbed")
    write_models(root, change=0.01)
    return root


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("served")
    tokenizer = tiny_tokenizer([*string.ascii_lowercase, "."])
    for seed, (name, (heads, labels, task)) in enumerate(KINDS.items()):
        settings = {"labels": labels, "task": task, "length": LENGTH, "seed": seed}
        tiny_folder(root / name, tokenizer, *heads, **settings)
    return root


@pytest.fixture(scope="session")
def store(folders: Path) -> str | None:
    """A store of three documents; None where LanceDB is not installed."""
    if importlib.util.find_spec("lancedb") is None:
        return None
    rows = [{"id": str(i), "text": text, "year": i} for i, text in enumerate(["a b", "c d", "e"])]
    documents, place = folders / "docs.jsonl", str(folders / "store")
    documents.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    columns = DocumentColumns(keep=("year:number",))
    index([documents], model=folders / "pretrained", store=place, columns=columns)
    return place


@pytest.fixture(scope="session")
def registry(folders: Path, store: str | None) -> ModelRegistry:
    return ModelRegistry([str(folders / name) for name in KINDS], store)


def alert(html: str) -> str:
    """Return the error message of a page."""
    (message,) = re.findall('<p role="alert">(.*?)</p>', html)
    return str(message)


def page_data(html: str) -> Any:
    """Return the values that the script of a page shows."""
    data = re.search('id="data">(.*?)</script>', html, re.S)
    assert data is not None
    return json.loads(data[1])


Server = Callable[..., TestClient]


@pytest.fixture
def server(registry: ModelRegistry) -> Iterator[Server]:
    """Makes a client of a server in this process, with the limits and keys that are given."""
    opened: list[tuple[TestClient, Batcher]] = []

    def make(
        limits: Limits | None = None,
        keys: ApiKeys | None = None,
        at: Any = None,
        runs: Sequence[Path] = (),
    ) -> TestClient:
        limits = limits or Limits()
        metrics = Metrics()
        batcher = Batcher(
            queue_tokens=limits.queue_tokens, batch_tokens=limits.batch_tokens, metrics=metrics
        )
        admission = AdmissionMiddleware(limits=limits, keys=keys or ApiKeys([]), metrics=metrics)
        install_app(admission, at or registry, batcher, runs)
        client = TestClient(admission).__enter__()
        opened.append((client, batcher))
        return client

    yield make
    for client, batcher in opened:
        client.__exit__()
        batcher.close()
