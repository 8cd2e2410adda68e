"""Fixtures that open a LanceDB or a Qdrant store, and small passages and vectors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bertkit.extensions.search.store import Passage, Spec, Store

pytest.importorskip("lancedb", reason="pip install 'bertkit[search]'")
pytest.importorskip("qdrant_client", reason="pip install 'bertkit[search]'")

SPEC = Spec(
    model="m",
    fingerprint="f",
    dimension=4,
    length=32,
    long="window",
    fields={"year": "number", "the author": "text"},
)


def passage(id: str, text: str, number: int = 0, *, digest: str = "", **fields: Any) -> Passage:
    field_values = {"year": fields.get("year"), "the author": fields.get("author")}
    return Passage(id, number, text, 0, len(text), f"docs:{id}", digest or text, field_values)


def unit(*numbers: float) -> NDArray[np.float32]:
    vector = np.array(numbers, dtype=np.float32)
    return vector / np.linalg.norm(vector)


@pytest.fixture(params=["lance", "qdrant"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Store]:
    """Function that opens the same store, in LanceDB or in Qdrant, at each call."""
    from bertkit.extensions.search.lance import LanceStore
    from bertkit.extensions.search.qdrant import QdrantStore

    if request.param == "lance":
        return lambda create=None: LanceStore.open(str(tmp_path / "store"), create)
    from qdrant_client import QdrantClient

    warnings.filterwarnings("ignore", "Payload indexes have no effect in the local Qdrant")
    client = QdrantClient(":memory:")
    return lambda create=None: QdrantStore.open("http://localhost:6333/docs", create, client)
