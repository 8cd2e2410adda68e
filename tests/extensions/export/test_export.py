"""`export` deletes partial output and reports missing packages."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from bertkit.errors import ConfigError
from bertkit.extensions.export import export as recipe


def test_export_reports_missing_package(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = importlib.util.find_spec

    def find_spec_without_onnxscript(name: str, *rest: Any) -> Any:
        return None if name == "onnxscript" else original(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec_without_onnxscript)
    with pytest.raises(ConfigError, match=r"onnx requires .*onnxscript.*pip install"):
        recipe.export(tiny, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_failed_export_leaves_no_files(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnx", reason="pip install 'bertkit[export]'")
    monkeypatch.setattr(recipe, "NEEDS", {"onnx": ()})

    def raise_error(*_: Any, **__: Any) -> float:
        raise RuntimeError("no such operator")

    monkeypatch.setattr(recipe.exporting, "export", raise_error)
    with pytest.raises(RuntimeError, match="no such operator"):
        recipe.export(tiny, out=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
