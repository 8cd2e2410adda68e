"""Exported models embed without torch and reject changed files."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertkit import cli, threads
from bertkit.checkpoint.directory import load
from bertkit.errors import CheckpointError, ConfigError, DataError
from bertkit.extensions.export import exported
from bertkit.extensions.export.export import export
from bertkit.extensions.export.exported import Exported, hash_files, load_openvino
from bertkit.nn.pooling import Pooling
from bertkit.pipelines import pipeline
from bertkit.text.prompts import Prompts

for _name in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(_name, reason="pip install 'bertkit[export]'")

TEXTS = ["a b c", "d", "e f g h i j k l m n o p", "a b c"]


@pytest.fixture(scope="module")
def graph(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("export") / "graph"
    report = export(tiny, out=out)
    assert report["format"] == "onnx"
    assert report["largest_difference"] <= 1e-5
    return out


def test_exported_embed_matches_model_in_input_order(graph: Path, tiny: Path) -> None:
    ready = Exported(graph)
    np.testing.assert_allclose(ready(TEXTS), pipeline("embed", tiny)(TEXTS), atol=1e-5)
    assert ready([]).shape == (0, 32)
    many = [text for _ in range(700) for text in TEXTS]
    np.testing.assert_allclose(ready(many)[-4:], ready(TEXTS), atol=1e-5)


def test_exported_embed_applies_prompts(tiny: Path, graph: Path, tmp_path: Path) -> None:
    prompts = Prompts({"query": "q u ", "document": "p a "}, "document")
    loaded = replace(load(tiny), pooling=Pooling(prompts=prompts))
    export(loaded, out=tmp_path / "graph")
    ready, model = Exported(tmp_path / "graph"), pipeline("embed", loaded)
    for prompt in ("query", "document", None, "x y ", ""):
        embeddings = ready(TEXTS, prompt=prompt)
        np.testing.assert_allclose(embeddings, model(TEXTS, prompt=prompt), atol=1e-5)
    assert abs(ready(TEXTS) - ready(TEXTS, prompt="")).max() > 1e-2
    record = json.loads((graph / "export.json").read_text())
    del record["prompts"]  # Earlier versions of bertkit did not write prompts.
    copy = tmp_path / "old"
    shutil.copytree(graph, copy)
    (copy / "export.json").write_text(json.dumps(record))
    np.testing.assert_array_equal(Exported(copy)(TEXTS), Exported(graph)(TEXTS))


def test_exported_embed_rejects_or_truncates_long_texts(graph: Path) -> None:
    ready = Exported(graph)
    with pytest.raises(DataError, match=r"102 tokens, but the limit is 32; .*truncate") as error:
        ready("a " * 100)
    assert "window" not in str(error.value)
    assert [truncated for _, truncated in ready.stream(["a " * 100, "b"], long="truncate")] == [
        [True, False]
    ]
    with pytest.raises(ConfigError, match="do not support long = window"):
        ready("a", long="window")


def test_embed_command_does_not_import_torch(graph: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from bertkit import cli; code = cli.run(sys.argv[1:]); "
        "sys.exit(code or 'torch' in sys.modules)"
    )
    args = ["embed", str(graph), "a b", "--out", str(tmp_path / "v.npy")]
    process = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, check=False)
    assert process.returncode == 0, process.stderr.decode()
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), Exported(graph)("a b"), atol=1e-6)


SLOW = {
    *("torch", "rich", "jinja2", "huggingface_hub"),
    *("bertkit.data.row_readers", "bertkit.progress"),
}
"""Modules that computing the first embedding of an exported model must not import."""


@pytest.mark.parametrize(
    ("code", "unneeded"),
    [
        ("import bertkit; bertkit.embed(sys.argv[2], ['a b'])", {"cyclopts", "bertkit.config"}),
        ("from bertkit import cli; assert not cli.run(sys.argv[1:])", set()),
    ],
)
def test_embed_does_not_import_slow_modules(code: str, unneeded: set[str], graph: Path) -> None:
    code = f"import sys; {code}; print(*sorted(sys.modules), file=sys.stderr)"
    args = [sys.executable, "-c", code, "embed", str(graph), "a b"]
    process = subprocess.run(args, capture_output=True, text=True, check=True)
    loaded = set(process.stderr.split())
    assert "onnxruntime" in loaded  # the control
    assert not loaded & (SLOW | unneeded)


def test_exported_rejects_changed_or_missing_files(graph: Path, tmp_path: Path) -> None:
    for name, damage in itertools.product(("model.onnx", "model.onnx.data"), (b"x", None)):
        copy = tmp_path / f"{name}-{damage!r}"
        shutil.copytree(graph, copy)
        path = copy / name
        path.unlink() if damage is None else path.write_bytes(path.read_bytes() + damage)
        with pytest.raises(CheckpointError, match="missing or was changed"):
            Exported(copy)
    (copy / "export.json").write_text("{}")
    with pytest.raises(CheckpointError, match="the record is invalid"):
        Exported(copy)
    with pytest.raises(CheckpointError, match="exported graph not found; create it"):
        Exported(tmp_path)


def test_exported_reports_missing_package(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(
        CheckpointError, match=r"a package is not installed .*onnxruntime.*; run pip"
    ):
        Exported(graph)


def test_onnx_worker_uses_its_fraction_of_cores(
    graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnxruntime

    num_threads: list[int] = []
    session = onnxruntime.InferenceSession

    def create_session(path: Path, options: onnxruntime.SessionOptions, **more: object) -> object:
        num_threads.append(options.intra_op_num_threads)
        return session(path, options, **more)

    monkeypatch.setattr(onnxruntime, "InferenceSession", create_session)
    monkeypatch.setattr(threads, "cores", lambda: 4)
    for workers in (1, 4):
        monkeypatch.setattr(threads, "_workers", workers)
        Exported(graph)
    assert num_threads == [4, 1]


def test_openvino_worker_uses_its_fraction_of_cores(
    graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    openvino = pytest.importorskip("openvino", reason="pip install 'bertkit[export]'")
    requested: list[tuple[int, bool]] = []

    class Core:
        def compile_model(self, path: Path, device: str, hints: dict[str, Any]) -> None:
            requested.append((hints["INFERENCE_NUM_THREADS"], hints["ENABLE_CPU_PINNING"]))
            raise StopIteration

    monkeypatch.setattr(openvino, "Core", Core)
    for module in (threads, exported):
        monkeypatch.setattr(module, "bound", lambda: 4)
    monkeypatch.setattr(threads, "quota", lambda: None)
    for workers in (1, 2):
        monkeypatch.setattr(threads, "_workers", workers)
        with pytest.raises(StopIteration):
            load_openvino(graph / "model.onnx", "fp32")
    # Threads are pinned only if a single worker uses all cores.
    assert requested == [(4, True), (2, False)]


def test_exported_accepts_weights_inside_graph_file(graph: Path, tmp_path: Path) -> None:
    """Earlier versions of bertkit stored the weights in the graph file."""
    import onnx

    copy = tmp_path / "whole"
    shutil.copytree(graph, copy)
    onnx.save(onnx.load(graph / "model.onnx"), copy / "model.onnx")
    (copy / "model.onnx.data").unlink()
    record = json.loads((copy / "export.json").read_text())
    (copy / "export.json").write_text(json.dumps({**record, "sha256": hash_files(copy, "onnx")}))
    np.testing.assert_array_equal(Exported(copy)(TEXTS), Exported(graph)(TEXTS))


def test_exported_rejects_corrupted_weights_file(tiny: Path, tmp_path: Path) -> None:
    pytest.importorskip("openvino", reason="pip install 'bertkit[export]'")
    export(tiny, out=tmp_path / "ov", format="openvino")
    assert not [*(tmp_path / "ov").glob("model.onnx*")]
    Exported(tmp_path / "ov")
    weight_bytes = (tmp_path / "ov" / "model.bin").read_bytes()
    # Use separate directories: a file that a runtime has mapped must not change.
    for name, damaged in (
        ("zeros", bytes(len(weight_bytes))),
        ("half", weight_bytes[: len(weight_bytes) // 2]),
        ("none", None),
    ):
        weights = shutil.copytree(tmp_path / "ov", tmp_path / name) / "model.bin"
        weights.unlink()
        if damaged is not None:
            weights.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"model\.bin: the file is missing or"):
            Exported(tmp_path / name)


def test_export_and_embed_commands(
    graph: Path, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert cli.run(["export", str(tiny), "--out", out]) == 0
    assert json.loads(capsys.readouterr().out)["length"] == 32
    assert cli.run(["export", str(tiny), "--out", out]) == 2
    assert "already exists" in capsys.readouterr().err
    assert cli.run(["embed", out, "a b"]) == 0
    row = json.loads(capsys.readouterr().out)
    np.testing.assert_allclose(row, pipeline("embed", tiny)("a b")[0], atol=1e-5)
    for options, message in (
        (["--precision", "bf16"], "bf16 is not supported by ONNX Runtime; use fp32"),
        (["--pooling", "cls"], "exported graphs do not support"),
    ):
        assert cli.run(["embed", out, "a b", *options]) == 2
        assert message in capsys.readouterr().err
