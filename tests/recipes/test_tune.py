"""What is fastest is timed, remembered for this machine, and taken by precision auto."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from bertkit import cli
from bertkit.checkpoint.tuned import read_tuned
from bertkit.errors import ConfigError, DataError
from bertkit.pipelines import pipeline
from bertkit.recipes import tune as tuning
from bertkit.recipes.tune import tune


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def model(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "model"))


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(["a b c", "z y", "q w e r t y"] * 10), encoding="utf-8")
    return path


def test_the_fastest_is_what_auto_takes(
    model: Path, texts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = {"fp32": 1.0, "bf16": 2.0, 1024: 4.0, 2048: 0.5, 1: 0.25}
    monkeypatch.setattr(tuning, "_seconds", lambda made: {c: clock.get(c, 3.0) for c in made})
    assert cli.run(["tune", str(model), str(texts)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["precision"], said["max_batch_tokens"], said["threads"]) == ("fp32", 2048, 1)
    assert said["tried"]["max_batch_tokens"]["2048"] == 60.0
    held = read_tuned(model)
    assert held is not None
    assert held.texts_per_second == 120.0
    exact = pipeline("embed", model)(["a b c"])
    assert capsys.readouterr().err == ""  # fp32 was asked for, and fp32 it is
    embed = pipeline("embed", model, precision="auto")
    assert "fp32, 2,048 tokens a batch, 1 threads, as tuned" in capsys.readouterr().err
    assert (embed.engine.max_batch_tokens, torch.get_num_threads()) == (2048, 1)
    np.testing.assert_array_equal(embed(["a b c"]), exact)


def test_real_times(model: Path, texts: Path) -> None:
    said = tune(model, [texts])
    for what, found in said["tried"].items():
        assert said[what] == max(found, key=found.__getitem__)
        assert min(found.values()) > 0


@pytest.mark.bf16
def test_a_precision_that_costs_too_much_is_left_out(
    model: Path, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "ROUNDS", 1)
    assert set(tune(model, [texts])["tried"]["precision"]) == {"fp32", "bf16"}
    assert set(tune(model, [texts], lowest=1.5)["tried"]["precision"]) == {"fp32"}


def test_what_cannot_be_tuned(
    model: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blank = tmp_path / "blank.jsonl"
    blank.write_text('{"text": " "}\n{"text": ""}\n', encoding="utf-8")
    with pytest.raises(DataError, match="texts: there is none in these files"):
        tune(model, [blank])
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # tests may run as root
    with pytest.raises(ConfigError, match="model: cannot be written to; copy the folder"):
        tune(model, [texts])
