"""A store in a Qdrant server: addresses, servers that do not answer, collections of others."""

from __future__ import annotations

import numpy as np
import pytest
from tests.extensions.search.conftest import SPEC, passage

from bertkit.errors import ConfigError, SearchError
from bertkit.extensions.search.stores import open_store


def test_no_server_behind_the_address() -> None:
    with pytest.raises(SearchError, match=r"http://127.0.0.1:1/docs: the Qdrant server is not"):
        open_store("http://127.0.0.1:1/docs")


@pytest.mark.parametrize("place", ["http://localhost:6333", "http://localhost:6333/a/b"])
def test_an_address_names_a_collection(place: str) -> None:
    with pytest.raises(SearchError, match="the address has no collection"):
        open_store(place, create=SPEC)


@pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection")
def test_no_password_and_no_key_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SearchError, match=r"^http://127\.0\.0\.1:1/docs: the Qdrant server is not"):
        open_store("http://user:passw0rd@127.0.0.1:1/docs")
    with pytest.raises(SearchError, match="not a valid address"):
        open_store("http://[::1/docs")
    monkeypatch.setenv("QDRANT_API_KEY", "s3cret\n")  # as files of keys end
    with pytest.raises(SearchError, match="the Qdrant server is not reachable") as error:
        open_store("http://127.0.0.1:1/docs")
    assert "s3cret" not in str(error.value)
    assert "header" not in str(error.value)
    monkeypatch.setenv("QDRANT_API_KEY", "s3cr\u00e9t")
    with pytest.raises(
        ConfigError, match=r"^QDRANT_API_KEY: the key contains a character"
    ) as refused:
        open_store("http://127.0.0.1:1/docs")
    assert "s3cr" not in str(refused.value)


@pytest.mark.filterwarnings("ignore:Payload indexes have no effect in the local Qdrant")
def test_a_document_that_a_killed_run_left_twice_is_written_again() -> None:
    from qdrant_client import QdrantClient

    from bertkit.extensions.search.qdrant import QdrantStore

    store = QdrantStore.open("http://localhost:6333/docs", SPEC, QdrantClient(":memory:"))
    vectors = np.eye(4, dtype=np.float32)[:1]
    store.replace([passage("a", "old text")], vectors)
    store.replace([passage("b", "same")], vectors)
    killed = store.client.delete
    store.client.delete = lambda *_, **__: None  # type: ignore[method-assign]
    store.replace([passage("a", "new text")], vectors)
    store.client.delete = killed  # type: ignore[method-assign]
    assert store.digests(["a", "b"]) == {"b": "same"}
    store.replace([passage("a", "new text")], vectors)
    assert store.digests(["a", "b"]) == {"a": "new text", "b": "same"}


def test_collections_of_others_are_left_alone() -> None:
    from qdrant_client import QdrantClient, models

    from bertkit.extensions.search.qdrant import QdrantStore

    client = QdrantClient(":memory:")
    vectors = models.VectorParams(size=4, distance=models.Distance.DOT)
    client.create_collection("theirs", vectors_config=vectors)
    for create in (None, SPEC):
        with pytest.raises(SearchError, match="not a collection of bertkit"):
            QdrantStore.open("http://localhost:6333/theirs", create, client)
