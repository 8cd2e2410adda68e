"""A store address selects the store library."""

from __future__ import annotations

import sys

import pytest

from bertkit.errors import BertkitError
from bertkit.extensions.search.stores import open_store


def test_open_store_reports_missing_qdrant_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "bertkit.extensions.search.qdrant", raising=False)
    monkeypatch.setitem(sys.modules, "qdrant_client", None)
    with pytest.raises(BertkitError, match=r"not installed; run `pip install 'bertkit\[search\]'"):
        open_store("http://127.0.0.1:1/docs")
