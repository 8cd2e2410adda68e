"""`tune` times the options and records the fastest for `precision auto` on this machine."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.extensions.export.test_exported_task import WITHOUT_TORCH
from tests.factories import tiny_folder, tiny_tokenizer

from bertkit import cli
from bertkit.checkpoint.directory import load, save
from bertkit.errors import ConfigError, DataError
from bertkit.extensions.export import tune as tuning
from bertkit.extensions.export.tune import tune
from bertkit.extensions.export.tuned_embedder import TunedEmbed
from bertkit.extensions.export.tuning_record import read_tuned
from bertkit.families import BERT
from bertkit.nn.pooling import Pooling
from bertkit.pipelines import pipeline


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def model(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "model"))


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    path.write_text("\n".join(["a b c", "z y", "q w e r t y"] * 10), encoding="utf-8")
    return path


def tune_with_fastest_runtime(model: Path, texts: Path, fastest: str = "onnxruntime") -> Path:
    """Tune with a clock that makes a runtime the fastest, and return the model."""
    for name in ("onnx", fastest):
        pytest.importorskip(name, reason="pip install 'bertkit[export]'")
    clock = {"fp32": 1.0, fastest: 0.5, 1: 0.25}
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OMP_NUM_THREADS", raising=False)
        patch.setattr(tuning, "_seconds", lambda made: {c: clock.get(c, 3.0) for c in made})
        assert tune(model, [texts])["engines"] == dict.fromkeys(("1 short", "4 short"), fastest)
    return model


@pytest.fixture(scope="module")
def tuned_once(tiny: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = Path(shutil.copytree(tiny, tmp_path_factory.mktemp("tuned") / "model"))
    return tune_with_fastest_runtime(model, texts)


@pytest.fixture
def tuned_model(tuned_once: Path, tmp_path: Path) -> Path:
    """A copy of a model for which ONNX Runtime was the fastest."""
    return Path(shutil.copytree(tuned_once, tmp_path / "model"))


def test_auto_precision_uses_fastest_settings(
    model: Path, texts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = {"fp32": 1.0, "bf16": 2.0, 1024: 4.0, 2048: 0.5, 1: 0.25}
    monkeypatch.setattr(tuning, "_seconds", lambda made: {c: clock.get(c, 3.0) for c in made})
    assert cli.run(["export", "tune", str(model), str(texts)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["precision"], report["max_batch_tokens"], report["threads"]) == ("fp32", 2048, 1)
    assert report["tried"]["max_batch_tokens"]["2048"] == 60.0
    tuned = read_tuned(model)
    assert tuned is not None
    assert tuned.texts_per_second == 120.0
    exact = pipeline("embed", model)(["a b c"])
    assert capsys.readouterr().err == ""  # The default precision is fp32, so nothing is logged.
    embed = pipeline("embed", model, precision="auto")
    assert "2,048 tokens per batch, 1 threads, packed batches, as tuned" in capsys.readouterr().err
    assert (embed.engine.max_batch_tokens, torch.get_num_threads()) == (2048, 1)
    np.testing.assert_array_equal(embed(["a b c"]), exact)


def test_tuned_worker_threads_respect_core_limit(
    model: Path, texts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        tuning, "_seconds", lambda made: {c: 1.0 / c if type(c) is int else 1.0 for c in made}
    )
    monkeypatch.setattr(tuning, "thread_limit", lambda: 4)
    monkeypatch.setattr("bertkit.extensions.export.tuning_record.thread_limit", lambda: 4)
    assert cli.run(["export", "tune", str(model), str(texts)]) == 0
    assert json.loads(capsys.readouterr().out)["threads"] == 4
    for share in (8, 2, 1):
        monkeypatch.setattr(
            "bertkit.extensions.export.accelerated.own_cores", lambda share=share: share
        )
        pipeline("embed", model, precision="auto")
        assert torch.get_num_threads() == min(share, 4)
        assert f" {min(share, 4)} threads" in capsys.readouterr().err


def test_tune_selects_fastest_measured_options(model: Path, texts: Path) -> None:
    report = tune(model, [texts])
    for name, rates in report["tried"].pop("engines", {}).items():
        assert report["engines"][name] == max(rates, key=rates.__getitem__)
    for option, speeds in report["tried"].items():
        assert report[option] == max(speeds, key=speeds.__getitem__)
        assert min(speeds.values()) > 0


def test_auto_precision_uses_graph_if_fastest(
    tuned_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exact = pipeline("embed", tuned_model)
    embed = pipeline("embed", tuned_model, precision="auto")
    assert "threads, ONNX Runtime, as tuned on this machine" in capsys.readouterr().err
    forward_calls: list[int] = []
    embed.engine.model.encoder.register_forward_hook(lambda *_: forward_calls.append(1))
    for batch in (["a b c"], ["a", "b c d", "e f"]):
        np.testing.assert_allclose(embed(batch), exact(batch), atol=1e-5)
    assert forward_calls == []
    many = ["a b", "c"] * 40  # Batches of this size were not timed.
    np.testing.assert_allclose(embed(many), exact(many), atol=1e-5)
    assert forward_calls == [1]
    windows = ["a b c d e f g h " * 10]
    found = embed(windows, long="window")
    np.testing.assert_allclose(found, exact(windows, long="window"), atol=1e-5)
    cls_embed = pipeline("embed", tuned_model, precision="auto", pooling="cls")
    expected = pipeline("embed", tuned_model, pooling="cls")(["a b"])
    np.testing.assert_allclose(cls_embed(["a b"]), expected, atol=1e-5)


def test_tuned_windows_are_averaged_before_normalization(model: Path, texts: Path) -> None:
    loaded = load(model)
    save(model, loaded.model, loaded.tokenizer, BERT, pooling=Pooling(normalize=True))
    tuned = read_tuned(tune_with_fastest_runtime(model, texts))
    assert tuned is not None
    embed, long = TunedEmbed(model, tuned), ["a b c d e f g h " * 8]
    ((vectors, truncated),) = embed.stream(long, long="window")
    assert "packed" not in vars(embed)  # Only the graph has run.
    assert truncated == [False]
    expected = pipeline("embed", model)(long, long="window")
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    assert np.abs(vectors - embed(long, long="truncate")).max() > 1e-3  # Control.


def test_tuned_model_embeds_without_torch(tuned_model: Path) -> None:
    record = tuned_model / "tuned.json"
    (found,) = json.loads(record.read_text())
    engines = dict.fromkeys(found["engines"], "packed") | {"1 short": "onnxruntime"}
    record.write_text(json.dumps([{**found, "engines": engines}]))
    expected = pipeline("embed", tuned_model)(["a b c", "d"])
    args = [sys.executable, "-c", WITHOUT_TORCH, "embed", str(tuned_model), "--precision", "auto"]
    process = subprocess.run([*args, "a b c"], capture_output=True, check=False, text=True)
    assert process.returncode == 0, process.stderr
    assert "ONNX Runtime for 1 short, else packed batches, as tuned" in process.stderr
    np.testing.assert_allclose(json.loads(process.stdout), expected[0], atol=1e-5)
    # Control: bertkit's engine is faster for four texts, and it requires torch.
    many = subprocess.run(
        [*args[:5], *"dddd", *args[5:]], capture_output=True, check=False, text=True
    )
    assert many.returncode == 77, many.stderr
    assert many.stderr.count("precision: ") == 1  # The graph is loaded once.
    rows = [json.loads(line) for line in many.stdout.splitlines()]
    np.testing.assert_allclose(rows, expected[[1, 1, 1, 1]], atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"processor": "another"}, "with another processor, number of cores or OMP_NUM_THREADS"),
        ({"versions": {"torch": "1.0", "onnxruntime": "1"}}, "with other versions of "),
        ({"weights": "0"}, "with other weights or settings;"),
    ],
)
def test_auto_precision_ignores_mismatched_tuning(
    change: dict[str, Any], message: str, tuned_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tuned_model / "tuned.json"
    path.write_text(json.dumps([{**json.loads(path.read_text())[0], **change}]))
    assert cli.run(["embed", str(tuned_model), "a", "--precision", "auto"]) == 0
    log = capsys.readouterr().err
    assert message in log
    assert "ONNX Runtime" not in log
    assert "precision: " in log


def test_tune_tries_requested_precision_only(model: Path, texts: Path) -> None:
    assert list(tune(model, [texts], precision="fp32")["tried"]["precision"]) == ["fp32"]
    with pytest.raises(ConfigError, match="precision: this machine does not support int8"):
        tune(model, [texts], precision="int8")


def test_auto_precision_rejects_changed_graph(
    tuned_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph, command = tuned_model / "tuned" / "model.onnx", ["embed", str(tuned_model), "a"]
    graph.write_bytes(graph.read_bytes() + b"x")
    assert cli.run([*command, "--precision", "auto"]) == 2
    message = "the file is missing or was changed; run `bertkit export tune` again"
    assert message in capsys.readouterr().err
    shutil.rmtree(tuned_model / "tuned")
    assert cli.run([*command, "--precision", "auto"]) == 2
    assert "graph not found; create it with `bertkit export tune`" in capsys.readouterr().err


def test_tuning_record_excludes_changes_made_during_tuning(
    model: Path, texts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tuning, "TIMED_ROUNDS", 1)
    before, precisions = (model / "config.json").read_text(), tuning._precisions

    def change_config(*args: Any) -> Any:
        (model / "config.json").write_text(before + "\n")
        return precisions(*args)

    monkeypatch.setattr(tuning, "_precisions", change_config)
    monkeypatch.setattr(tuning, "_no_graph", lambda *_: "a test")
    tune(model, [texts], precision="fp32")
    capsys.readouterr()
    assert read_tuned(model) is None
    assert "they were measured with other weights or settings;" in capsys.readouterr().err
    (model / "config.json").write_text(before)
    assert read_tuned(model) is not None


def test_tune_without_runtimes_uses_packed_batches(
    model: Path, texts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tuning, "TIMED_ROUNDS", 1)
    find, missing = importlib.util.find_spec, ("onnxruntime", "openvino")
    find_installed = lambda name: None if name in missing else find(name)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", find_installed)
    assert tune(model, [texts])["engines"] == {}
    message = "packed batches only, because ONNX Runtime and OpenVINO are not installed (pip"
    assert f"engine: {message}" in capsys.readouterr().err
    assert not (model / "tuned").exists()


@pytest.mark.bf16
def test_tune_skips_precision_below_required_quality(
    model: Path, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "TIMED_ROUNDS", 1)
    assert set(tune(model, [texts])["tried"]["precision"]) == {"fp32", "bf16"}
    assert set(tune(model, [texts], min_cosine=1.5)["tried"]["precision"]) == {"fp32"}


def test_tune_rejects_empty_files_and_read_only_models(
    model: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blank = tmp_path / "blank.jsonl"
    blank.write_text('{"text": " "}\n{"text": ""}\n', encoding="utf-8")
    with pytest.raises(DataError, match="the files contain no text"):
        tune(model, [blank])
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # Tests may run as root.
    with pytest.raises(ConfigError, match="model: not writable; copy the directory"):
        tune(model, [texts])


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_auto_precision_classifier_uses_graph(runtime: str, texts: Path, tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer("abcdefghijklmnopqrstuvwxyz")
    model = tiny_folder(
        tmp_path / "labels", tokenizer, "classify", labels=("no", "yes"), task="classify", hidden=32
    )
    expected = pipeline("classify", model)(["a b c", "z"])
    tune_with_fastest_runtime(model, texts, fastest=runtime)
    classify = pipeline("classify", model, precision="auto")
    forward_calls: list[int] = []
    classify.engine.model.encoder.register_forward_hook(lambda *_: forward_calls.append(1))
    for found, exact in zip(classify(["a b c", "z"]), expected, strict=True):
        assert found.label == exact.label
        assert found.scores == pytest.approx(exact.scores, abs=1e-5)
    assert forward_calls == []
