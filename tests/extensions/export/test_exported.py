"""An exported folder embeds without torch, and says when it is not what it was."""

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
    said = export(tiny, out=out)
    assert said["format"] == "onnx"
    assert said["largest_difference"] <= 1e-5
    return out


def test_the_same_vectors_in_the_order_given(graph: Path, tiny: Path) -> None:
    ready = Exported(graph)
    np.testing.assert_allclose(ready(TEXTS), pipeline("embed", tiny)(TEXTS), atol=1e-5)
    assert ready([]).shape == (0, 32)
    many = [text for _ in range(700) for text in TEXTS]
    np.testing.assert_allclose(ready(many)[-4:], ready(TEXTS), atol=1e-5)


def test_prompts_go_with_the_graph(tiny: Path, graph: Path, tmp_path: Path) -> None:
    prompts = Prompts({"query": "q u ", "document": "p a "}, "document")
    loaded = replace(load(tiny), pooling=Pooling(prompts=prompts))
    export(loaded, out=tmp_path / "graph")
    ready, model = Exported(tmp_path / "graph"), pipeline("embed", loaded)
    for prompt in ("query", "document", None, "x y ", ""):
        found = ready(TEXTS, prompt=prompt)
        np.testing.assert_allclose(found, model(TEXTS, prompt=prompt), atol=1e-5)
    assert abs(ready(TEXTS) - ready(TEXTS, prompt="")).max() > 1e-2
    record = json.loads((graph / "export.json").read_text())
    del record["prompts"]  # as bertkit wrote it before it knew them
    copy = tmp_path / "old"
    shutil.copytree(graph, copy)
    (copy / "export.json").write_text(json.dumps(record))
    np.testing.assert_array_equal(Exported(copy)(TEXTS), Exported(graph)(TEXTS))


def test_long_texts_as_asked(graph: Path) -> None:
    ready = Exported(graph)
    with pytest.raises(DataError, match=r"102 tokens, but the limit is 32; .*truncate") as told:
        ready("a " * 100)
    assert "window" not in str(told.value)
    assert [cut for _, cut in ready.stream(["a " * 100, "b"], long="truncate")] == [[True, False]]
    with pytest.raises(ConfigError, match="long = window is not supported"):
        ready("a", long="window")


def test_torch_is_not_imported(graph: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from bertkit import cli; code = cli.run(sys.argv[1:]); "
        "sys.exit(code or 'torch' in sys.modules)"
    )
    words = ["embed", str(graph), "a b", "--out", str(tmp_path / "v.npy")]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), Exported(graph)("a b"), atol=1e-6)


SLOW = {
    *("torch", "rich", "jinja2", "huggingface_hub"),
    *("bertkit.data.row_readers", "bertkit.progress"),
}
"""What the first vector of an exported folder waits for no more."""


@pytest.mark.parametrize(
    ("code", "unneeded"),
    [
        ("import bertkit; bertkit.embed(sys.argv[2], ['a b'])", {"cyclopts", "bertkit.config"}),
        ("from bertkit import cli; assert not cli.run(sys.argv[1:])", set()),
    ],
)
def test_what_is_slow_to_import_is_not_imported(code: str, unneeded: set[str], graph: Path) -> None:
    code = f"import sys; {code}; print(*sorted(sys.modules), file=sys.stderr)"
    words = [sys.executable, "-c", code, "embed", str(graph), "a b"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert "onnxruntime" in loaded  # the control
    assert not loaded & (SLOW | unneeded)


def test_another_graph_is_refused(graph: Path, tmp_path: Path) -> None:
    for name, damage in itertools.product(("model.onnx", "model.onnx.data"), (b"x", None)):
        copy = tmp_path / f"{name}-{damage!r}"
        shutil.copytree(graph, copy)
        path = copy / name
        path.unlink() if damage is None else path.write_bytes(path.read_bytes() + damage)
        with pytest.raises(CheckpointError, match="missing or was changed"):
            Exported(copy)
    (copy / "export.json").write_text("{}")
    with pytest.raises(CheckpointError, match="invalid record"):
        Exported(copy)
    with pytest.raises(CheckpointError, match="exported graph not found; create it"):
        Exported(tmp_path)


def test_a_package_that_is_not_there_is_named(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(
        CheckpointError, match=r"a package is not installed .*onnxruntime.*; run pip"
    ):
        Exported(graph)


def test_a_worker_opens_a_graph_on_its_share_of_the_cores(
    graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnxruntime

    opened: list[int] = []
    session = onnxruntime.InferenceSession

    def noted(path: Path, options: onnxruntime.SessionOptions, **more: object) -> object:
        opened.append(options.intra_op_num_threads)
        return session(path, options, **more)

    monkeypatch.setattr(onnxruntime, "InferenceSession", noted)
    monkeypatch.setattr(threads, "cores", lambda: 4)
    for workers in (1, 4):
        monkeypatch.setattr(threads, "_workers", workers)
        Exported(graph)
    assert opened == [4, 1]


def test_a_worker_opens_a_graph_of_openvino_so_too(
    graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    openvino = pytest.importorskip("openvino", reason="pip install 'bertkit[export]'")
    asked: list[tuple[int, bool]] = []

    class Core:
        def compile_model(self, path: Path, device: str, hints: dict[str, Any]) -> None:
            asked.append((hints["INFERENCE_NUM_THREADS"], hints["ENABLE_CPU_PINNING"]))
            raise StopIteration

    monkeypatch.setattr(openvino, "Core", Core)
    for module in (threads, exported):
        monkeypatch.setattr(module, "bound", lambda: 4)
    monkeypatch.setattr(threads, "quota", lambda: None)
    for workers in (1, 2):
        monkeypatch.setattr(threads, "_workers", workers)
        with pytest.raises(StopIteration):
            load_openvino(graph / "model.onnx", "fp32")
    assert asked == [(4, True), (2, False)]  # bound to the first cores where it has all alone


def test_weights_may_lie_in_the_graph(graph: Path, tmp_path: Path) -> None:
    """As bertkit wrote them once."""
    import onnx

    copy = tmp_path / "whole"
    shutil.copytree(graph, copy)
    onnx.save(onnx.load(graph / "model.onnx"), copy / "model.onnx")
    (copy / "model.onnx.data").unlink()
    record = json.loads((copy / "export.json").read_text())
    (copy / "export.json").write_text(json.dumps({**record, "sha256": hash_files(copy, "onnx")}))
    np.testing.assert_array_equal(Exported(copy)(TEXTS), Exported(graph)(TEXTS))


def test_weights_beside_a_graph_are_checked_too(tiny: Path, tmp_path: Path) -> None:
    pytest.importorskip("openvino", reason="pip install 'bertkit[export]'")
    export(tiny, out=tmp_path / "ov", format="openvino")
    assert not [*(tmp_path / "ov").glob("model.onnx*")]
    Exported(tmp_path / "ov")
    whole = (tmp_path / "ov" / "model.bin").read_bytes()
    for name, damaged in (
        ("zeros", bytes(len(whole))),
        ("half", whole[: len(whole) // 2]),
        ("none", None),
    ):  # each in a folder of its own: a file that a runtime has mapped must stay as it is
        weights = shutil.copytree(tmp_path / "ov", tmp_path / name) / "model.bin"
        weights.unlink()
        if damaged is not None:
            weights.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"model\.bin: the file is missing or"):
            Exported(tmp_path / name)


def test_the_commands(
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
    for words, said in (
        (["--precision", "bf16"], "bf16 is not supported by ONNX Runtime; use fp32"),
        (["--pooling", "cls"], "not supported by exported graphs"),
    ):
        assert cli.run(["embed", out, "a b", *words]) == 2
        assert said in capsys.readouterr().err
