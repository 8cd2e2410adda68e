"""Qdrant stores: addresses, unreachable servers, secrets, and collections of other clients."""

from __future__ import annotations

import numpy as np
import pytest
from qdrant_client import QdrantClient, models
from tests.extensions.search.conftest import SPEC, passage

from bertkit.errors import ConfigError, SearchError
from bertkit.extensions.search.qdrant import QdrantStore
from bertkit.extensions.search.stores import open_store


@pytest.mark.parametrize("address", ["http://localhost:6333", "http://localhost:6333/a/b"])
def test_open_store_rejects_address_without_collection(address: str) -> None:
    with pytest.raises(SearchError, match="the address does not name a collection"):
        open_store(address, create=SPEC)


@pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection")
def test_errors_contain_no_password_or_key(monkeypatch: pytest.MonkeyPatch) -> None:
    unreachable = r"^http://127\.0\.0\.1:1/docs: the Qdrant server cannot be reached"
    with pytest.raises(SearchError, match=unreachable):
        open_store("http://user:passw0rd@127.0.0.1:1/docs")
    with pytest.raises(SearchError, match="not a valid address"):
        open_store("http://[::1/docs")
    # Files that contain a key end with a newline.
    monkeypatch.setenv("QDRANT_API_KEY", "s3cret\n")
    with pytest.raises(SearchError, match=unreachable) as error:
        open_store("http://127.0.0.1:1/docs")
    assert "s3cret" not in str(error.value)
    assert "header" not in str(error.value)
    monkeypatch.setenv("QDRANT_API_KEY", "s3cr\u00e9t")
    with pytest.raises(ConfigError, match=r"^QDRANT_API_KEY: the key contains a char") as caught:
        open_store("http://127.0.0.1:1/docs")
    assert "s3cr" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:Payload indexes have no effect in the local Qdrant")
def test_document_written_twice_by_killed_run_is_replaced() -> None:
    store = QdrantStore.open("http://localhost:6333/docs", SPEC, QdrantClient(":memory:"))
    vectors = np.eye(4, dtype=np.float32)[:1]
    store.replace([passage("a", "old text")], vectors)
    store.replace([passage("b", "same")], vectors)
    delete = store.client.delete
    store.client.delete = lambda *_, **__: None  # type: ignore[method-assign]
    store.replace([passage("a", "new text")], vectors)
    store.client.delete = delete  # type: ignore[method-assign]
    assert store.digests(["a", "b"]) == {"b": "same"}
    store.replace([passage("a", "new text")], vectors)
    assert store.digests(["a", "b"]) == {"a": "new text", "b": "same"}


def test_open_rejects_collection_created_by_other_clients() -> None:
    client = QdrantClient(":memory:")
    vectors = models.VectorParams(size=4, distance=models.Distance.DOT)
    client.create_collection("theirs", vectors_config=vectors)
    for create in (None, SPEC):
        with pytest.raises(SearchError, match="not a collection of bertkit"):
            QdrantStore.open("http://localhost:6333/theirs", create, client)
