"""int8 models record their quality and reject other weights."""

from __future__ import annotations

import json
import math
import shutil
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
from bertkit.metrics import cosines
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
def rough_model(tiny: Path, tmp_path: Path) -> Path:
    """Return a model whose weights are large enough that int8 reduces its quality."""
    loaded = load(tiny)
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in loaded.model.encoder.blocks.parameters():
            weight.add_(torch.randn_like(weight) * 0.5)
    save(tmp_path / "rough", loaded.model, loaded.tokenizer, loaded.family)
    return tmp_path / "rough"


def write_texts(path: Path, count: int) -> Path:
    lines = [" ".join(LETTERS[(3 * i + j) % 26] for j in range(1 + i % 30)) for i in range(count)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_quantize_measures_and_records_quality(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    report = quantize(tiny, [write_texts(tmp_path / "t.txt", 200)], out=out)
    assert report["layers"] + len(report["left"]) == 4
    assert 0.99 <= report["lowest_cosine"] <= report["mean_cosine"] <= 1.0
    assert report["texts"] == 50
    queries = ["a b c", "z y x w v u", "q"]
    exact = pipeline("embed", tiny)(queries)
    int8_rows = pipeline("embed", out, precision="int8")(queries)
    assert cosines(int8_rows, exact).min() > 0.98
    assert np.abs(int8_rows - exact).max() > 1e-4
    # The fp32 weights are unchanged.
    np.testing.assert_allclose(pipeline("embed", out)(queries), exact, atol=1e-6)
    _, quality = read_int8(out, load(out).fingerprint())
    assert quality.lowest_cosine == report["lowest_cosine"]


def test_read_int8_rejects_invalid_factors(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    quantize(tiny, [write_texts(tmp_path / "t.txt", 200)], out=out)
    fingerprint = load(out).fingerprint()
    inputs, quality = read_int8(out, fingerprint)
    write_int8(out, inputs, quality)
    read_int8(out, fingerprint)  # Control.
    name, first = next(iter(inputs.items()))
    f = first.factor
    for factor in (-f, f * math.nan, f[None], f.long()):
        write_int8(out, {**inputs, name: replace(first, factor=factor)}, quality)
        with pytest.raises(CheckpointError, match=r"damaged .*greater than 0.*; quantize"):
            read_int8(out, fingerprint)


@pytest.mark.bf16
@pytest.mark.parametrize(
    ("amx", "bf16", "attention"),
    [(True, True, PackedLinear), (False, True, Int8Linear), (True, False, Int8Linear)],
)
def test_attention_stays_in_bf16_with_amx(
    amx: bool,
    bf16: bool,
    attention: type[nn.Module],
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = [write_texts(tmp_path / "t.txt", 200)]
    report = quantize(tiny, texts, out=tmp_path / "out", min_cosine=0.5)
    assert report["left"] == []
    monkeypatch.setattr(integers, "has_amx", lambda: amx)
    monkeypatch.setattr(precision, "bf16_is_faster", lambda device: bf16)
    model = open_engine(load(tmp_path / "out"), "int8").model
    modules = dict(model.transformer.named_modules())
    for name in layers_of(load(tiny).model):
        is_feed_forward = name.endswith((".up", ".down"))
        assert type(modules[name]) is (Int8Linear if is_feed_forward else attention)


def test_quantize_skips_layers_until_quality_is_reached(
    rough_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Disable bf16, so only int8 causes differences.
    monkeypatch.setattr(precision, "has_bf16", lambda device: False)
    file = write_texts(tmp_path / "t.txt", 100)
    loose = quantize(rough_model, [file], out=tmp_path / "loose", min_cosine=0.5)
    assert loose["left"] == []
    strict = quantize(rough_model, [file], out=tmp_path / "strict", min_cosine=0.9999)
    assert strict["left"]
    assert strict["lowest_cosine"] > loose["lowest_cosine"]
    with pytest.raises(DataError, match=r"with even one layer in int8, .* is below 1\.1"):
        quantize(rough_model, [file], out=tmp_path / "none", min_cosine=1.1)
    assert not (tmp_path / "none").exists()


def test_quantize_reports_quality_on_held_out_texts(
    rough_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every fourth text is used only for the report, not for calibration or selection."""
    monkeypatch.setattr(precision, "has_bf16", lambda device: False)
    file = write_texts(tmp_path / "t.txt", 80)
    inputs_per_run: list[set[bytes]] = []
    rows, calibrate = Engine.rows, recipe.calibrate

    def record_rows(self: Engine, encodings: Any, *rest: Any) -> Any:
        inputs_per_run.append({e.ids.tobytes() for e in encodings})
        return rows(self, encodings, *rest)

    def record_calibration(model: Any, batches: Any) -> Any:
        used = {s.numpy().tobytes() for b in batches for s in b.ids.split(b.layout.lengths)}
        inputs_per_run.append(used)
        return calibrate(model, batches)

    monkeypatch.setattr(Engine, "rows", record_rows)
    monkeypatch.setattr(recipe, "calibrate", record_calibration)
    report = quantize(rough_model, [file], out=tmp_path / "out", min_cosine=0.9999)
    tokenizer = load(rough_model).tokenizer
    lines = file.read_text(encoding="utf-8").splitlines()
    measured = {e.ids.tobytes() for e in tokenizer.encode_batch(lines[::4])}
    assert report["texts"] == 20
    assert inputs_per_run[-2] == inputs_per_run[-1] == measured  # The fp32 run and the int8 run.
    used = inputs_per_run[:-2]
    assert len(used) > 2
    assert not any(run_inputs & measured for run_inputs in used)


def test_quantize_rejects_too_few_texts(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="quantization requires at least 64 texts, got 63"):
        quantize(tiny, [write_texts(tmp_path / "t.txt", 63)], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="already exists"):
        quantize(tiny, [tmp_path / "t.txt"], out=tmp_path)


def test_quantize_rejects_generative_models_and_lstms(english: list[str], tmp_path: Path) -> None:
    tokenizer, rows = train(english[:5], kind="bpe", size=400, use="write"), tmp_path / "t.txt"
    gpt = tiny_folder(tmp_path / "gpt", tokenizer, "lm", family=GPT2)
    with pytest.raises(ConfigError, match=r"generative models need no calibration"):
        quantize(gpt, [write_texts(rows, 64)], out=tmp_path / "out")
    pipeline("generate", gpt, precision="int8")
    lstm = tiny_folder(tmp_path / "lstm", tokenizer, "lm", family=LSTM_LM)
    with pytest.raises(ConfigError, match=r"lstm: int8 is not supported by RecurrentEncoder"):
        quantize(lstm, [write_texts(rows, 64)], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(DeviceError, match=r"^int8: not supported by RecurrentEncoder; use another"):
        pipeline("embed", lstm, precision="int8")


def test_int8_precision_requires_matching_calibration(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="run `bertkit export int8`"):
        pipeline("embed", tiny, precision="int8")
    out = tmp_path / "out"
    quantize(tiny, [write_texts(tmp_path / "t.txt", 64)], out=out)
    other = load(tiny)
    other.model.encoder.embedding.tokens.weight.data[9] += 1.0
    save(tmp_path / "other", other.model, other.tokenizer, other.family)
    shutil.copy(out / FILE, tmp_path / "other" / FILE)
    with pytest.raises(CheckpointError, match="was made for other weights"):
        pipeline("embed", tmp_path / "other", precision="int8")
    (out / FILE).write_bytes((out / FILE).read_bytes()[:100])
    with pytest.raises(CheckpointError, match=r"invalid .* quantize the model again"):
        pipeline("embed", out, precision="int8")


def test_export_int8_command(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    args = ["export", "int8", str(tiny), str(write_texts(tmp_path / "t.txt", 64)), "--out", out]
    assert cli.run(args) == 0
    assert json.loads(capsys.readouterr().out)["texts"] == 16
    assert cli.run(["embed", out, "a b", "--precision", "int8"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 32
    assert cli.run(["embed", str(tiny), "a b", "--precision", "int8"]) == 2
    assert "bertkit export int8" in capsys.readouterr().err
