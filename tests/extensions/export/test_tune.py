"""What is fastest is timed, remembered for this machine, and taken by precision auto."""

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
    assert cli.run(["export", "tune", str(model), str(texts)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["precision"], said["max_batch_tokens"], said["threads"]) == ("fp32", 2048, 1)
    assert said["tried"]["max_batch_tokens"]["2048"] == 60.0
    held = read_tuned(model)
    assert held is not None
    assert held.texts_per_second == 120.0
    exact = pipeline("embed", model)(["a b c"])
    assert capsys.readouterr().err == ""  # fp32 was asked for, and fp32 it is
    embed = pipeline("embed", model, precision="auto")
    assert "2,048 tokens per batch, 1 threads, packed batches, as tuned" in capsys.readouterr().err
    assert (embed.engine.max_batch_tokens, torch.get_num_threads()) == (2048, 1)
    np.testing.assert_array_equal(embed(["a b c"]), exact)


def test_a_worker_takes_no_more_threads_than_its_share(
    model: Path,
    texts: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
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


def test_real_times(model: Path, texts: Path) -> None:
    said = tune(model, [texts])
    for name, rates in said["tried"].pop("engines", {}).items():
        assert said["engines"][name] == max(rates, key=rates.__getitem__)
    for what, found in said["tried"].items():
        assert said[what] == max(found, key=found.__getitem__)
        assert min(found.values()) > 0


def _tuned_to_graph(
    model: Path,
    texts: Path,
    monkeypatch: pytest.MonkeyPatch,
    cells: tuple[str, ...] = (),
    fastest: str = "onnxruntime",
) -> dict[str, str]:
    """Tune with a clock by which a runtime is fastest, and with `cells` there alone."""
    for name in ("onnx", fastest):
        pytest.importorskip(name, reason="pip install 'bertkit[export]'")
    clock = {"fp32": 1.0, fastest: 0.5, 1: 0.25}
    with monkeypatch.context() as patch:
        patch.setattr(tuning, "_seconds", lambda made: {c: clock.get(c, 3.0) for c in made})
        said = tune(model, [texts])
    if cells:
        kept = json.loads((model / "tuned.json").read_text())
        for name in kept[0]["engines"]:
            kept[0]["engines"][name] = fastest if name in cells else "packed"
        (model / "tuned.json").write_text(json.dumps(kept))
    return dict(said["engines"])


def test_the_graph_is_taken_where_it_is_the_fastest(
    model: Path, texts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _tuned_to_graph(model, texts, monkeypatch) == {
        "1 short": "onnxruntime",
        "4 short": "onnxruntime",
    }
    exact = pipeline("embed", model)
    capsys.readouterr()
    embed = pipeline("embed", model, precision="auto")
    assert "threads, ONNX Runtime, as tuned on this machine" in capsys.readouterr().err
    ran: list[int] = []
    embed.engine.model.encoder.register_forward_hook(lambda *_: ran.append(1))
    for texts_ in (["a b c"], ["a", "b c d", "e f"]):
        np.testing.assert_allclose(embed(texts_), exact(texts_), atol=1e-5)
    assert ran == []
    many = ["a b", "c"] * 40  # which nobody timed
    np.testing.assert_allclose(embed(many), exact(many), atol=1e-5)
    assert ran == [1]
    windows = ["a b c d e f g h " * 10]
    found = embed(windows, long="window")
    np.testing.assert_allclose(found, exact(windows, long="window"), atol=1e-5)
    other = pipeline("embed", model, precision="auto", pooling="cls")
    expected = pipeline("embed", model, pooling="cls")(["a b"])
    np.testing.assert_allclose(other(["a b"]), expected, atol=1e-5)


def test_windows_are_averaged_before_their_mean_is_normalized(
    model: Path, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load(model)
    save(model, loaded.model, loaded.tokenizer, BERT, pooling=Pooling(normalize=True))
    _tuned_to_graph(model, texts, monkeypatch)
    tuned = read_tuned(model)
    assert tuned is not None
    embed, long = TunedEmbed(model, tuned), ["a b c d e f g h " * 8]
    ((vectors, cut),) = embed.stream(long, long="window")
    assert "packed" not in vars(embed)  # the graph alone has run
    assert cut == [False]
    expected = pipeline("embed", model)(long, long="window")
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    assert np.abs(vectors - embed(long, long="truncate")).max() > 1e-3  # the control


def test_a_tuned_folder_embeds_without_torch(
    model: Path, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _tuned_to_graph(model, texts, monkeypatch, ("1 short",))
    expected = pipeline("embed", model)(["a b c", "d"])
    words = [sys.executable, "-c", WITHOUT_TORCH, "embed", str(model), "--precision", "auto"]
    done = subprocess.run([*words, "a b c"], capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
    assert "ONNX Runtime for 1 short, else packed batches, as tuned" in done.stderr
    np.testing.assert_allclose(json.loads(done.stdout), expected[0], atol=1e-5)
    # of four texts its own engine is the faster: the check itself, as that needs torch
    many = subprocess.run(
        [*words[:5], *"dddd", *words[5:]], capture_output=True, check=False, text=True
    )
    assert many.returncode == 77, many.stderr
    assert many.stderr.count("precision: ") == 1  # the graph is open already, and not opened again
    rows = [json.loads(line) for line in many.stdout.splitlines()]
    np.testing.assert_allclose(rows, expected[[1, 1, 1, 1]], atol=1e-5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"processor": "another"},
            "the tuning is not used (the machine, its cores or OMP_NUM_THREADS differ)",
        ),
        ({"versions": {"torch": "1.0", "onnxruntime": "1"}}, "not used (other versions of "),
        ({"weights": "0"}, "not used (other weights or settings)"),
    ],
)
def test_what_was_found_elsewhere_is_not_used(
    change: dict[str, Any],
    said: str,
    model: Path,
    texts: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _tuned_to_graph(model, texts, monkeypatch)
    path = model / "tuned.json"
    path.write_text(json.dumps([{**json.loads(path.read_text())[0], **change}]))
    capsys.readouterr()
    assert cli.run(["embed", str(model), "a", "--precision", "auto"]) == 0
    told = capsys.readouterr().err
    assert said in told
    assert "ONNX Runtime" not in told
    assert "precision: " in told


def test_one_precision_and_those_that_are_not_there(model: Path, texts: Path) -> None:
    assert list(tune(model, [texts], precision="fp32")["tried"]["precision"]) == ["fp32"]
    with pytest.raises(ConfigError, match="precision: int8 is not supported by this machine"):
        tune(model, [texts], precision="int8")


def test_a_graph_that_was_changed_is_refused(
    model: Path, texts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _tuned_to_graph(model, texts, monkeypatch)
    graph = model / "tuned" / "model.onnx"
    graph.write_bytes(graph.read_bytes() + b"x")
    capsys.readouterr()
    assert cli.run(["embed", str(model), "a", "--precision", "auto"]) == 2
    assert (
        "the file is missing or was changed; run `bertkit export tune` again"
        in capsys.readouterr().err
    )
    shutil.rmtree(model / "tuned")
    assert cli.run(["embed", str(model), "a", "--precision", "auto"]) == 2
    assert "graph not found; create it with `bertkit export tune`" in capsys.readouterr().err


def test_weights_that_change_meanwhile_are_not_those_of_the_record(
    model: Path, texts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tuning, "TIMED_ROUNDS", 1)
    before, precisions = (model / "config.json").read_text(), tuning._precisions

    def changed(*given: Any) -> Any:
        (model / "config.json").write_text(before + "\n")
        return precisions(*given)

    monkeypatch.setattr(tuning, "_precisions", changed)
    monkeypatch.setattr(tuning, "_no_graph", lambda *_: "a test")
    tune(model, [texts], precision="fp32")
    capsys.readouterr()
    assert read_tuned(model) is None
    assert "the tuning is not used (other weights or settings)" in capsys.readouterr().err
    (model / "config.json").write_text(before)
    assert read_tuned(model) is not None


def test_without_a_runtime_ours_is_the_engine(
    model: Path, texts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tuning, "TIMED_ROUNDS", 1)
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name in ("onnxruntime", "openvino") else find(name),
    )
    assert tune(model, [texts])["engines"] == {}
    told = capsys.readouterr().err
    assert (
        "engine: only packed batches, because ONNX Runtime and OpenVINO are not installed (pip"
        in told
    )
    assert not (model / "tuned").exists()


@pytest.mark.bf16
def test_a_precision_that_costs_too_much_is_left_out(
    model: Path, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "TIMED_ROUNDS", 1)
    assert set(tune(model, [texts])["tried"]["precision"]) == {"fp32", "bf16"}
    assert set(tune(model, [texts], lowest=1.5)["tried"]["precision"]) == {"fp32"}


def test_what_cannot_be_tuned(
    model: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blank = tmp_path / "blank.jsonl"
    blank.write_text('{"text": " "}\n{"text": ""}\n', encoding="utf-8")
    with pytest.raises(DataError, match="texts: the files contain no text"):
        tune(model, [blank])
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # tests may run as root
    with pytest.raises(ConfigError, match="model: not writable; copy the directory"):
        tune(model, [texts])


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_answers_follow_it_too(
    runtime: str, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = tiny_tokenizer("abcdefghijklmnopqrstuvwxyz")
    model = tiny_folder(
        tmp_path / "labels", tokenizer, "classify", labels=("no", "yes"), task="classify", hidden=32
    )
    expected = pipeline("classify", model)(["a b c", "z"])
    _tuned_to_graph(model, texts, monkeypatch, fastest=runtime)
    classify = pipeline("classify", model, precision="auto")
    ran: list[int] = []
    classify.engine.model.encoder.register_forward_hook(lambda *_: ran.append(1))
    for found, exact in zip(classify(["a b c", "z"]), expected, strict=True):
        assert found.label == exact.label
        assert found.scores == pytest.approx(exact.scores, abs=1e-5)
    assert ran == []
