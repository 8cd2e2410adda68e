"""A study runs every way with every seed, and its table is their spread."""

from __future__ import annotations

import pytest

from bertkit.recipes.study import study


def test_each_way_with_each_seed(capsys: pytest.CaptureFixture[str]) -> None:
    ways = {"one": lambda seed: {"f1": seed / 4}, "other": lambda seed: {"f1": 1.0}}
    table = study(ways, range(1, 4), "f1")
    assert list(table) == ["one", "other"]
    assert table["one"]["f1"] == {"mean": 0.5, "sd": 0.25, "each": [0.25, 0.5, 0.75]}
    assert table["other"]["f1"]["sd"] == 0.0
    assert "one, seed 3: f1 0.7500" in capsys.readouterr().err
