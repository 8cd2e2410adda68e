"""A pad graph computes what the packed model computes, for every family, and as ONNX."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.factories import ENCODERS, tiny_model

from bertkit.engine.engine import Engine
from bertkit.errors import CheckpointError
from bertkit.extensions.export import graph_export as exporting
from bertkit.extensions.export.exported import Graph, load_onnx, pad
from bertkit.extensions.export.graph_export import GraphModel, export
from bertkit.families import FAMILIES
from bertkit.models.model import Model
from bertkit.nn.pooling import POOLINGS, Dense, Pooling
from bertkit.text.encoding import Encoding

SHAPE = {"hidden": 32, "layers": 4, "intermediate": 48, "length": 64}
MORE: dict[str, dict[str, Any]] = {
    "albert": {"embedding": 16, "layer_sharing": (0, 0, 0, 0)},
    "modernbert": {"attention.window": {"tokens": 3}},
}


def model_of(family: str, **more: Any) -> Model:
    settings = {**SHAPE, **MORE.get(family, {}), **more}
    return tiny_model(60, family=FAMILIES[family], spread=0.1, **settings).eval()


def encodings(rng: np.random.Generator, lengths: list[int]) -> list[Encoding]:
    zeros = [np.zeros(n, np.int64) for n in lengths]
    ids = [rng.integers(0, 60, n) for n in lengths]
    return [
        Encoding(i, z, np.zeros((len(i), 2), np.int64), [], [], False)
        for i, z in zip(ids, zeros, strict=True)
    ]


@pytest.mark.parametrize("mode", POOLINGS)
@pytest.mark.parametrize("family", sorted(ENCODERS))
@torch.inference_mode()
def test_a_rectangle_is_the_packed_model(family: str, mode: Any) -> None:
    model = model_of(family)
    read = encodings(np.random.default_rng(0), [40, 3, 17, 1])
    inputs = pad([e.ids for e in read], [e.types for e in read])
    graph = GraphModel(model.encoder, Pooling(mode)).eval()
    _, vectors = graph(*(torch.from_numpy(inputs[name]) for name in inputs))
    ours = Engine(model).rows(read, POOLINGS[mode])
    np.testing.assert_allclose(vectors.numpy(), ours, atol=1e-5)
    blind = {**inputs, "attention_mask": np.ones_like(inputs["attention_mask"])}
    _, wrong = graph(*(torch.from_numpy(blind[name]) for name in blind))
    assert np.abs(wrong.numpy() - ours).max() > 1e-3  # padding is not to be seen


@pytest.mark.parametrize(
    "family", ["bert", "modernbert", "mpnet", "deberta-v2", "nomic_bert", "gte"]
)
def test_a_graph_has_the_models_vectors(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason="pip install 'bertkit[export]'")
    model = model_of(family, layers=2)  # where layers differ, one of each kind
    pooling = Pooling("mean", True, Dense(model.config.hidden, 5) if family == "bert" else None)
    for kind in ("onnx", "openvino"):
        if kind == "openvino":
            pytest.importorskip(kind, reason="pip install 'bertkit[export]'")
            # translating takes seconds, and is the same for both: OpenVINO reads the ONNX graph
            known = tmp_path / "onnx"
            monkeypatch.setattr(
                exporting,
                "_export_standard",
                lambda _graph, path, _length, known=known: shutil.copytree(
                    known, path.parent, dirs_exist_ok=True
                ),
            )
        (tmp_path / kind).mkdir()
        assert export(model, pooling, tmp_path / kind, length=64, kind=kind) <= 1e-5
        wide = model.config.hidden if pooling.dense is None else 5
        assert Graph(tmp_path / kind).record.dimension == wide


@pytest.mark.parametrize("head", ["classify", "tag", "answer"])
def test_a_graph_has_the_heads_logits(head: str, tmp_path: Path) -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason="pip install 'bertkit[export]'")
    shape = SHAPE | {"layers": 1}
    model = tiny_model(60, head, labels=("O", "B-x", "I-x"), spread=0.1, **shape).eval()
    apart = export(model, Pooling(), tmp_path, length=64, kind="onnx", head=head)
    assert apart <= 1e-5
    inputs = pad([np.arange(1, 8)], [np.zeros(7, np.int64)])
    wanted = {"classify": (1, 3), "tag": (1, 7, 3), "answer": (1, 7, 2)}[head]
    assert load_onnx(tmp_path / "model.onnx")(inputs, "logits").shape == wanted


def test_a_graph_with_other_vectors_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason="pip install 'bertkit[export]'")
    monkeypatch.setattr(exporting, "TOLERANCE", 0.0)
    with pytest.raises(CheckpointError, match="the maximum is 0e"):
        export(model_of("bert", layers=1), Pooling(), tmp_path, length=64, kind="onnx")
