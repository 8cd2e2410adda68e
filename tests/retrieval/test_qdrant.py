"""A store in a Qdrant server: addresses, servers that do not answer, collections of others."""

from __future__ import annotations

import pytest
from tests.retrieval.conftest import SPEC

from bertkit.errors import SearchError
from bertkit.retrieval.opening import open_store


def test_no_server_behind_the_address() -> None:
    with pytest.raises(SearchError, match=r"http://127.0.0.1:1/docs: no Qdrant server answers"):
        open_store("http://127.0.0.1:1/docs")


@pytest.mark.parametrize("place", ["http://localhost:6333", "http://localhost:6333/a/b"])
def test_an_address_names_a_collection(place: str) -> None:
    with pytest.raises(SearchError, match="name a collection behind the address"):
        open_store(place, create=SPEC)


def test_collections_of_others_are_left_alone() -> None:
    from qdrant_client import QdrantClient, models

    from bertkit.retrieval.qdrant import QdrantStore

    client = QdrantClient(":memory:")
    vectors = models.VectorParams(size=4, distance=models.Distance.DOT)
    client.create_collection("theirs", vectors_config=vectors)
    for create in (None, SPEC):
        with pytest.raises(SearchError, match="a collection that bertkit did not make"):
            QdrantStore.open("http://localhost:6333/theirs", create, client)
