"""The fused-operator graph matches the packed model for the supported families."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.extensions.export.test_graph_export import SHAPE, encodings, model_of
from tests.factories import ENCODERS, tiny_model

from bertkit.engine.engine import Engine
from bertkit.extensions.export import int8_layers as quantize
from bertkit.extensions.export.exported import LOGITS, VECTORS, GraphOutput, load_onnx, pad
from bertkit.extensions.export.int8_layers import Inputs, calibrate, calibrated
from bertkit.metrics import cosines
from bertkit.models.lora import LoRA, adapters, add_lora
from bertkit.models.model import Model
from bertkit.models.surgery import without_heads
from bertkit.nn.pooling import POOLINGS, Dense, Pooling
from bertkit.pipelines import pipeline
from bertkit.text.encoding import Encoding

for _name in ("onnx", "onnxruntime"):
    pytest.importorskip(_name, reason="pip install 'bertkit[export]'")

from onnx import TensorProto, numpy_helper  # noqa: E402

from bertkit.extensions.export.graph import build, unsupported_reason  # noqa: E402  # needs onnx

UNSUPPORTED = {
    "gte": "its positions setting differs from BERT",
    "deberta-v2": "its positions setting differs from BERT",
    "modernbert": "its positions setting differs from BERT",
    "mpnet": "its positions setting differs from BERT",
    "nomic_bert": "its positions setting differs from BERT",
}
SUPPORTED = sorted(set(ENCODERS) - set(UNSUPPORTED))


def padded(texts: list[Encoding]) -> dict[str, Any]:
    return pad([e.ids for e in texts], [e.types for e in texts])


def load_graph(model: Any, output: str = VECTORS) -> GraphOutput:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        run = load_onnx(path)
    return lambda inputs, _="": run(inputs, output)


@cache
def engine_and_graph(name: str) -> tuple[Engine, GraphOutput]:
    model = model_of(name)
    return Engine(model), load_graph(build(model, Pooling()))


@pytest.mark.parametrize("name", SUPPORTED)
@given(lengths=st.lists(st.integers(1, 64), min_size=1, max_size=6), seed=st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_graph_ignores_padding(name: str, lengths: list[int], seed: int) -> None:
    engine, run = engine_and_graph(name)
    texts = encodings(np.random.default_rng(seed), lengths)
    inputs = padded(texts)
    expected = engine.rows(texts, POOLINGS["mean"])
    np.testing.assert_allclose(run(inputs), expected, atol=1e-5)
    for index, text in enumerate(texts):
        np.testing.assert_allclose(run(padded([text]))[0], expected[index], atol=1e-5)


@pytest.mark.parametrize("name", SUPPORTED)
def test_graph_without_mask_differs_from_engine(name: str) -> None:
    engine, run = engine_and_graph(name)
    texts = encodings(np.random.default_rng(0), [40, 3])
    inputs = padded(texts)
    unmasked = {**inputs, "attention_mask": np.ones_like(inputs["attention_mask"])}
    assert np.abs(run(unmasked) - engine.rows(texts, POOLINGS["mean"])).max() > 1e-2


@pytest.mark.parametrize("mode", POOLINGS)
def test_graph_matches_engine_with_pooling_and_dense(mode: Any) -> None:
    model = model_of("bert")
    pooling = Pooling(mode, True, Dense(32, 5, "gelu"))
    texts = encodings(np.random.default_rng(0), [40, 3, 17])
    expected = Engine(model).rows(texts, pooling)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    embeddings = load_graph(build(model, pooling))(padded(texts))
    np.testing.assert_allclose(embeddings, expected, atol=1e-5)


@pytest.mark.parametrize("name", ["bert", "roberta", "electra", "albert"])
@pytest.mark.parametrize("head", ["classify", "tag", "answer"])
def test_graph_logits_match_engine(name: str, head: str) -> None:
    labels = ("O", "B-x", "I-x")
    model = tiny_model(60, head, family=ENCODERS[name], labels=labels, spread=0.1, **SHAPE).eval()
    head_module = model.heads[head]
    assert unsupported_reason(model, head_module) is None
    graph_run = load_graph(build(model, Pooling(), head_module), LOGITS)
    read = encodings(np.random.default_rng(0), [40, 3])
    expected = Engine(model).run(read, lambda m, batch: m.heads[head](m.states(batch), batch))
    logits = graph_run(padded(read))
    for graph_logits, expected_logits in zip(logits, expected, strict=True):
        rows = (
            graph_logits[: len(expected_logits)] if graph_logits.ndim == 2 else graph_logits[None]
        )
        np.testing.assert_allclose(rows, expected_logits, atol=1e-5)


def test_graph_uses_token_types() -> None:
    model = model_of("bert")
    run = load_graph(build(model, Pooling()))
    inputs = pad([np.arange(1, 8)], [np.array([0, 0, 0, 1, 1, 1, 1])])
    read = encodings(np.random.default_rng(0), [7])[0]
    ids, types = inputs["input_ids"][0], inputs["token_type_ids"][0]
    read = type(read)(ids, types, read.offsets, [], [], False)
    np.testing.assert_allclose(run(inputs), Engine(model).rows([read], POOLINGS["mean"]), atol=1e-5)


def test_graph_fuses_nodes() -> None:
    model = model_of("bert")
    nodes = [node.op_type for node in build(model, Pooling("mean", True)).graph.node]
    assert nodes.count("Attention") == model.config.layers
    assert len(nodes) <= 11 * model.config.layers + 15
    assert "FastGelu" not in nodes  # FastGelu is an approximation; BERT uses the exact GELU.


@pytest.mark.parametrize(("name", "reason"), UNSUPPORTED.items())
def test_unsupported_family_reports_reason(name: str, reason: str) -> None:
    assert unsupported_reason(model_of(name)) == reason


def _calibrated_inputs(model: Model, lengths: list[int]) -> dict[str, Inputs]:
    from bertkit.batch import Batch

    read = encodings(np.random.default_rng(1), lengths)
    return calibrate(model, [Batch.of(sorted(read, key=lambda e: len(e.ids)))])


def test_int8_graph_weights_respect_largest_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("bert")
    inputs = _calibrated_inputs(model, [30] * 16)
    for largest in (63, 127):
        monkeypatch.setattr(quantize, "largest_weight", partial(int, largest))
        graph = build(model, Pooling(), int8=inputs).graph
        weights = [
            numpy_helper.to_array(w) for w in graph.initializer if w.data_type == TensorProto.INT8
        ]
        matrices = [w.astype(int) for w in weights if w.ndim == 2]
        assert {int(abs(w).max()) for w in matrices} == {largest}


def test_int8_graph_matches_int8_engine() -> None:
    model = model_of("bert")
    inputs = _calibrated_inputs(model, [30] * 16)
    texts = encodings(np.random.default_rng(2), [40, 3, 17, 9])
    graph_inputs = padded(texts)
    exact = Engine(model).rows(texts, POOLINGS["mean"])
    graph = build(model, Pooling(), int8=inputs)
    op_types = {node.op_type for node in graph.graph.node}
    assert {"QAttention", "MatMulIntegerToFloat"} <= op_types
    assert "MatMul" not in {n.op_type for n in graph.graph.node[:-6]}
    graph_rows = load_graph(graph)(graph_inputs)
    assert cosines(graph_rows, exact).min() > 0.99
    engine_rows = Engine(model, int8=calibrated(inputs)).rows(texts, POOLINGS["mean"])
    assert cosines(graph_rows, engine_rows).min() > 0.995
    wrong = {n: Inputs(i.factor * 3, i.scale / 3, i.zero) for n, i in inputs.items()}
    without_down = {name: i for name, i in inputs.items() if not name.endswith("down")}
    for int8, is_close in ((wrong, False), (without_down, True)):
        rows = load_graph(build(model, Pooling(), int8=int8))(graph_inputs)
        assert (cosines(rows, exact).min() > 0.99) == is_close


def _check_matches_engine(model: Model) -> None:
    texts = encodings(np.random.default_rng(0), [40, 3])
    expected = Engine(model).rows(texts, POOLINGS["mean"])
    graph_rows = load_graph(build(model, Pooling()))(padded(texts))
    np.testing.assert_allclose(graph_rows, expected, atol=1e-5)


def test_graph_omits_pruned_heads() -> None:
    model = without_heads(model_of("bert"), [(1, 1), (3, 2)])
    _check_matches_engine(model)
    first = next(n for n in build(model, Pooling()).graph.node if n.op_type == "Attention")
    assert {a.name: a.i for a in first.attribute}["num_heads"] == 1


def test_graph_merges_adapters() -> None:
    model = model_of("bert")
    add_lora(model, LoRA(rank=2), lambda name, rows: [rows], frozen_layers=0)
    with torch.no_grad():
        for part in adapters(model).values():
            for weight in (w for w in part.parameters() if w.requires_grad):
                weight.normal_(std=0.1)
    _check_matches_engine(model)


def test_graph_matches_pipeline_of_minilm(minilm: Path) -> None:
    embed = pipeline("embed", minilm)
    texts = ["A first sentence.", "One.", "Vectors are compared by their cosine, as a rule. " * 5]
    run = load_graph(build(embed.loaded.model, embed.pooling))
    encoded = embed.tokenizer.encode_batch(texts)
    embeddings = run(padded(encoded))
    np.testing.assert_allclose(embeddings, embed(texts), atol=1e-6)
