"""Exporting leaves nothing half-written, and says what is not installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from bertkit.errors import ConfigError
from bertkit.extensions.export import export as recipe


def test_what_is_not_installed_is_named(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = importlib.util.find_spec

    def none(name: str, *rest: Any) -> Any:
        return None if name == "onnxscript" else original(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", none)
    with pytest.raises(ConfigError, match=r"onnx requires .*onnxscript.*pip install"):
        recipe.export(tiny, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_graph_that_fails_leaves_nothing(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnx", reason="pip install 'bertkit[export]'")
    monkeypatch.setattr(recipe, "NEEDS", {"onnx": ()})

    def fails(*_: Any, **__: Any) -> float:
        raise RuntimeError("no such operator")

    monkeypatch.setattr(recipe.exporting, "export", fails)
    with pytest.raises(RuntimeError, match="no such operator"):
        recipe.export(tiny, out=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
