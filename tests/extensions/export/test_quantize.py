"""A folder made to compute in integers says what that costs, and refuses other weights."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.factories import tiny_folder
from torch import nn

from bertkit import cli
from bertkit.checkpoint.directory import load, save
from bertkit.engine.engine import Engine
from bertkit.engine.packed_linear import PackedLinear
from bertkit.errors import CheckpointError, ConfigError, DataError, DeviceError
from bertkit.extensions.classic.families.lstm import LSTM_LM
from bertkit.extensions.export import int8_layers as integers
from bertkit.extensions.export import quantize as recipe
from bertkit.extensions.export.int8_layers import Int8Linear, layers_of, unavailable
from bertkit.extensions.export.int8_record import FILE, read_int8, write_int8
from bertkit.extensions.export.quantize import quantize
from bertkit.extensions.generation.families.gpt2 import GPT2
from bertkit.nn import precision
from bertkit.pipelines import pipeline
from bertkit.pipelines.base import open_engine
from bertkit.text.vocabulary_training import train

LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(autouse=True)
def _available() -> None:
    if unavailable():
        pytest.skip(str(unavailable()))


@pytest.fixture
def rough(tiny: Path, tmp_path: Path) -> Path:
    """A model with weights so large that integers cost it something beyond rounding."""
    loaded = load(tiny)
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in loaded.model.encoder.blocks.parameters():
            weight.add_(torch.randn_like(weight) * 0.5)
    save(tmp_path / "rough", loaded.model, loaded.tokenizer, loaded.family)
    return tmp_path / "rough"


def texts(path: Path, count: int) -> Path:
    lines = [" ".join(LETTERS[(3 * i + j) % 26] for j in range(1 + i % 30)) for i in range(count)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_the_quality_is_measured_and_kept(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    said = quantize(tiny, [texts(tmp_path / "t.txt", 200)], out=out)
    assert said["layers"] + len(said["left"]) == 4
    assert 0.99 <= said["lowest_cosine"] <= said["mean_cosine"] <= 1.0
    assert said["texts"] == 50
    asked = ["a b c", "z y x w v u", "q"]
    exact = pipeline("embed", tiny)(asked)
    found = pipeline("embed", out, precision="int8")(asked)
    cosines = (found * exact).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(exact, axis=1)
    assert cosines.min() > 0.98
    assert np.abs(found - exact).max() > 1e-4
    np.testing.assert_allclose(pipeline("embed", out)(asked), exact, atol=1e-6)  # the same weights
    _, quality = read_int8(out, load(out).fingerprint())
    assert quality.lowest_cosine == said["lowest_cosine"]


@pytest.mark.parametrize(
    "wrong", [lambda f: -f, lambda f: f * math.nan, lambda f: f[None], lambda f: f.long()]
)
def test_factors_that_are_none_are_refused(
    wrong: Callable[[torch.Tensor], torch.Tensor], tiny: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    quantize(tiny, [texts(tmp_path / "t.txt", 200)], out=out)
    fingerprint = load(out).fingerprint()
    inputs, quality = read_int8(out, fingerprint)
    write_int8(out, inputs, quality)
    read_int8(out, fingerprint)  # the control
    name, first = next(iter(inputs.items()))
    write_int8(out, {**inputs, name: replace(first, factor=wrong(first.factor))}, quality)
    with pytest.raises(CheckpointError, match=r"damaged .*greater than 0.*; quantize"):
        read_int8(out, fingerprint)


@pytest.mark.bf16
@pytest.mark.parametrize(
    ("amx", "bf16", "attention"),
    [(True, True, PackedLinear), (False, True, Int8Linear), (True, False, Int8Linear)],
)
def test_attention_stays_in_bf16_where_a_processor_has_tiles(
    amx: bool,
    bf16: bool,
    attention: type[nn.Module],
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = quantize(tiny, [texts(tmp_path / "t.txt", 200)], out=tmp_path / "out", lowest=0.5)
    assert said["left"] == []
    monkeypatch.setattr(integers, "has_amx", lambda: amx)
    monkeypatch.setattr(precision, "bf16_is_faster", lambda device: bf16)
    model = open_engine(load(tmp_path / "out"), "int8").model
    parts = dict(model.transformer.named_modules())
    for name in layers_of(load(tiny).model):
        inner = name.endswith((".up", ".down"))
        assert type(parts[name]) is (Int8Linear if inner else attention)


def test_layers_stay_until_the_quality_is_reached(
    rough: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "has_bf16", lambda device: False)  # all but integers is exact
    file = texts(tmp_path / "t.txt", 100)
    loose = quantize(rough, [file], out=tmp_path / "loose", lowest=0.5)
    assert loose["left"] == []
    strict = quantize(rough, [file], out=tmp_path / "strict", lowest=0.9999)
    assert strict["left"]
    assert strict["lowest_cosine"] > loose["lowest_cosine"]
    with pytest.raises(DataError, match=r"no int8 layer reaches a cosine similarity of 1.1"):
        quantize(rough, [file], out=tmp_path / "none", lowest=1.1)
    assert not (tmp_path / "none").exists()


def test_what_chooses_layers_does_not_report(
    rough: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four texts one is measured on; what calibrates and what chooses never sees it."""
    monkeypatch.setattr(precision, "has_bf16", lambda device: False)
    file = texts(tmp_path / "t.txt", 80)
    seen: list[set[bytes]] = []
    rows, calibrate = Engine.rows, recipe.calibrate

    def running(self: Engine, encodings: Any, *rest: Any) -> Any:
        seen.append({e.ids.tobytes() for e in encodings})
        return rows(self, encodings, *rest)

    def calibrating(model: Any, batches: Any) -> Any:
        used = {s.numpy().tobytes() for b in batches for s in b.ids.split(b.layout.lengths)}
        seen.append(used)
        return calibrate(model, batches)

    monkeypatch.setattr(Engine, "rows", running)
    monkeypatch.setattr(recipe, "calibrate", calibrating)
    said = quantize(rough, [file], out=tmp_path / "out", lowest=0.9999)
    tokenizer = load(rough).tokenizer
    lines = file.read_text(encoding="utf-8").splitlines()
    measured = {e.ids.tobytes() for e in tokenizer.encode_batch(lines[::4])}
    assert said["texts"] == 20
    assert seen[-2] == seen[-1] == measured  # in fp32, and in integers
    used = seen[:-2]
    assert len(used) > 2
    assert not any(one & measured for one in used)


def test_too_few_texts_are_refused(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="at least 64 texts are required for calibration, got 63"):
        quantize(tiny, [texts(tmp_path / "t.txt", 63)], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="already exists"):
        quantize(tiny, [tmp_path / "t.txt"], out=tmp_path)


def test_a_model_that_writes_needs_no_folder_of_its_own(english: list[str], tmp_path: Path) -> None:
    tokenizer, rows = train(english[:5], kind="bpe", size=400, use="write"), tmp_path / "t.txt"
    gpt = tiny_folder(tmp_path / "gpt", tokenizer, "lm", family=GPT2)
    with pytest.raises(ConfigError, match=r"generative models need no calibration"):
        quantize(gpt, [texts(rows, 64)], out=tmp_path / "out")
    pipeline("generate", gpt, precision="int8")
    lstm = tiny_folder(tmp_path / "lstm", tokenizer, "lm", family=LSTM_LM)
    with pytest.raises(ConfigError, match=r"lstm: int8 is not supported by RecurrentEncoder"):
        quantize(lstm, [texts(rows, 64)], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(DeviceError, match=r"^int8: not supported by RecurrentEncoder; use another"):
        pipeline("embed", lstm, precision="int8")


def test_folders_without_or_with_other_integers(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="run `bertkit export int8`"):
        pipeline("embed", tiny, precision="int8")
    out = tmp_path / "out"
    quantize(tiny, [texts(tmp_path / "t.txt", 64)], out=out)
    other = load(tiny)
    other.model.encoder.embedding.tokens.weight.data[9] += 1.0
    save(tmp_path / "other", other.model, other.tokenizer, other.family)
    shutil.copy(out / FILE, tmp_path / "other" / FILE)
    with pytest.raises(CheckpointError, match="belongs to other weights"):
        pipeline("embed", tmp_path / "other", precision="int8")
    (out / FILE).write_bytes((out / FILE).read_bytes()[:100])
    with pytest.raises(CheckpointError, match=r"invalid .* quantize the model again"):
        pipeline("embed", out, precision="int8")


def test_the_command(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    words = ["export", "int8", str(tiny), str(texts(tmp_path / "t.txt", 64)), "--out", out]
    assert cli.run(words) == 0
    assert json.loads(capsys.readouterr().out)["texts"] == 16
    assert cli.run(["embed", out, "a b", "--precision", "int8"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 32
    assert cli.run(["embed", str(tiny), "a b", "--precision", "int8"]) == 2
    assert "bertkit export int8" in capsys.readouterr().err
