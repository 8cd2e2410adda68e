"""Padded graphs and their ONNX and OpenVINO exports match the packed model."""

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
def test_padded_graph_matches_packed_model(family: str, mode: Any) -> None:
    model = model_of(family)
    texts = encodings(np.random.default_rng(0), [40, 3, 17, 1])
    inputs = pad([e.ids for e in texts], [e.types for e in texts])
    graph = GraphModel(model.encoder, Pooling(mode)).eval()
    _, vectors = graph(*(torch.from_numpy(inputs[name]) for name in inputs))
    expected = Engine(model).rows(texts, POOLINGS[mode])
    np.testing.assert_allclose(vectors.numpy(), expected, atol=1e-5)
    unmasked = {**inputs, "attention_mask": np.ones_like(inputs["attention_mask"])}
    _, unmasked_vectors = graph(*(torch.from_numpy(unmasked[name]) for name in unmasked))
    # Control: the mask must hide padding.
    assert np.abs(unmasked_vectors.numpy() - expected).max() > 1e-3


# The graphs of the slow families have the operators of the others.
SLOW = [pytest.param(family, marks=pytest.mark.slow) for family in ("nomic_bert", "gte")]


@pytest.mark.parametrize("family", ["bert", "modernbert", "mpnet", "deberta-v2", *SLOW])
def test_exported_graph_vectors_match_model(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason="pip install 'bertkit[export]'")
    # If layers differ, the model has one of each type.
    model = model_of(family, layers=2 if family == "modernbert" else 1)
    pooling = Pooling("mean", True, Dense(model.config.hidden, 5) if family == "bert" else None)
    for kind in ("onnx", "openvino"):
        if kind == "openvino":
            pytest.importorskip(kind, reason="pip install 'bertkit[export]'")
            # Export to ONNX takes seconds and OpenVINO reads the same ONNX graph, so reuse it.
            onnx_directory = tmp_path / "onnx"
            monkeypatch.setattr(
                exporting,
                "_export_standard",
                lambda _graph, path, _length, onnx_directory=onnx_directory: shutil.copytree(
                    onnx_directory, path.parent, dirs_exist_ok=True
                ),
            )
        (tmp_path / kind).mkdir()
        assert export(model, pooling, tmp_path / kind, length=64, kind=kind) <= 1e-5
        dimension = model.config.hidden if pooling.dense is None else 5
        assert Graph(tmp_path / kind).record.dimension == dimension
    monkeypatch.setattr(exporting, "TOLERANCE", 0.0)
    (tmp_path / "inexact").mkdir()
    with pytest.raises(CheckpointError, match="the maximum is 0e"):
        export(model, pooling, tmp_path / "inexact", length=64, kind="onnx")


@pytest.mark.parametrize("head", ["classify", "tag", "answer"])
def test_exported_graph_logits_match_model(head: str, tmp_path: Path) -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason="pip install 'bertkit[export]'")
    shape = SHAPE | {"layers": 1}
    model = tiny_model(60, head, labels=("O", "B-x", "I-x"), spread=0.1, **shape).eval()
    difference = export(model, Pooling(), tmp_path, length=64, kind="onnx", head=head)
    assert difference <= 1e-5
    inputs = pad([np.arange(1, 8)], [np.zeros(7, np.int64)])
    expected_shape = {"classify": (1, 3), "tag": (1, 7, 3), "answer": (1, 7, 2)}[head]
    assert load_onnx(tmp_path / "model.onnx")(inputs, "logits").shape == expected_shape
