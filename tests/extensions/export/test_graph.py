"""The graph of fused operators computes what the packed model computes, for families it knows."""

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

for _name in ("onnx", "onnxruntime"):
    pytest.importorskip(_name, reason="pip install 'bertkit[export]'")

from onnx import TensorProto, numpy_helper  # noqa: E402

from bertkit.extensions.export.graph import build, unsupported_reason  # noqa: E402  # needs onnx

OTHERS = {
    "gte": "its positions setting differs from BERT",
    "deberta-v2": "its positions setting differs from BERT",
    "modernbert": "its positions setting differs from BERT",
    "mpnet": "its positions setting differs from BERT",
    "nomic_bert": "its positions setting differs from BERT",
}
KNOWN = sorted(set(ENCODERS) - set(OTHERS))


def run_of(model: Any, output: str = VECTORS) -> GraphOutput:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        run = load_onnx(path)
    return lambda inputs, _="": run(inputs, output)


@cache
def family(name: str) -> tuple[Engine, GraphOutput]:
    model = model_of(name)
    return Engine(model), run_of(build(model, Pooling()))


@pytest.mark.parametrize("name", KNOWN)
@given(lengths=st.lists(st.integers(1, 64), min_size=1, max_size=6), seed=st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_padding_changes_nothing(name: str, lengths: list[int], seed: int) -> None:
    engine, run = family(name)
    read = encodings(np.random.default_rng(seed), lengths)
    inputs = pad([e.ids for e in read], [e.types for e in read])
    ours = engine.rows(read, POOLINGS["mean"])
    np.testing.assert_allclose(run(inputs), ours, atol=1e-5)
    for place, one in enumerate(read):
        np.testing.assert_allclose(run(pad([one.ids], [one.types]))[0], ours[place], atol=1e-5)


@pytest.mark.parametrize("name", KNOWN)
def test_without_the_mask_it_would(name: str) -> None:
    engine, run = family(name)
    read = encodings(np.random.default_rng(0), [40, 3])
    inputs = pad([e.ids for e in read], [e.types for e in read])
    blind = {**inputs, "attention_mask": np.ones_like(inputs["attention_mask"])}
    assert np.abs(run(blind) - engine.rows(read, POOLINGS["mean"])).max() > 1e-2


@pytest.mark.parametrize("mode", POOLINGS)
def test_pooling_dense_and_length(mode: Any) -> None:
    model = model_of("bert")
    pooling = Pooling(mode, True, Dense(32, 5, "gelu"))
    read = encodings(np.random.default_rng(0), [40, 3, 17])
    with torch.inference_mode():
        ours = torch.nn.functional.normalize(torch.from_numpy(Engine(model).rows(read, pooling)))
    found = run_of(build(model, pooling))(pad([e.ids for e in read], [e.types for e in read]))
    np.testing.assert_allclose(found, ours.numpy(), atol=1e-5)


@pytest.mark.parametrize("name", ["bert", "roberta", "electra", "albert"])
@pytest.mark.parametrize("head", ["classify", "tag", "answer"])
def test_the_heads_logits(name: str, head: str) -> None:
    labels = ("O", "B-x", "I-x")
    model = tiny_model(60, head, family=ENCODERS[name], labels=labels, spread=0.1, **SHAPE).eval()
    part = model.heads[head]
    assert unsupported_reason(model, part) is None
    found = run_of(build(model, Pooling(), part), LOGITS)
    read = encodings(np.random.default_rng(0), [40, 3])
    ours = Engine(model).run(read, lambda m, batch: m.heads[head](m.states(batch), batch))
    logits = found(pad([e.ids for e in read], [e.types for e in read]))
    for one, other in zip(logits, ours, strict=True):
        rows = one[: len(other)] if one.ndim == 2 else one[None]
        np.testing.assert_allclose(rows, other, atol=1e-5)


def test_segments_are_read() -> None:
    model = model_of("bert")
    run = run_of(build(model, Pooling()))
    inputs = pad([np.arange(1, 8)], [np.array([0, 0, 0, 1, 1, 1, 1])])
    read = encodings(np.random.default_rng(0), [7])[0]
    ids, types = inputs["input_ids"][0], inputs["token_type_ids"][0]
    read = type(read)(ids, types, read.offsets, [], [], False)
    np.testing.assert_allclose(run(inputs), Engine(model).rows([read], POOLINGS["mean"]), atol=1e-5)


def test_few_nodes() -> None:
    model = model_of("bert")
    nodes = [node.op_type for node in build(model, Pooling("mean", True)).graph.node]
    assert nodes.count("Attention") == model.config.layers
    assert len(nodes) <= 11 * model.config.layers + 15
    assert "FastGelu" not in nodes  # which is another function than BERT's


@pytest.mark.parametrize(("name", "why"), OTHERS.items())
def test_other_families_are_told(name: str, why: str) -> None:
    assert unsupported_reason(model_of(name)) == why


def _integers(model: Model, lengths: list[int]) -> dict[str, Inputs]:
    from bertkit.batch import Batch

    read = encodings(np.random.default_rng(1), lengths)
    return calibrate(model, [Batch.of(sorted(read, key=lambda e: len(e.ids)))])


def test_integers_are_no_larger_than_the_processor_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("bert")
    inputs = _integers(model, [30] * 16)
    for largest in (63, 127):
        monkeypatch.setattr(quantize, "largest_weight", partial(int, largest))
        graph = build(model, Pooling(), int8=inputs).graph
        weights = [
            numpy_helper.to_array(w) for w in graph.initializer if w.data_type == TensorProto.INT8
        ]
        matrices = [w.astype(int) for w in weights if w.ndim == 2]
        assert {int(abs(w).max()) for w in matrices} == {largest}


def test_integers_by_the_scales_of_ours() -> None:
    model = model_of("bert")
    inputs = _integers(model, [30] * 16)
    read = encodings(np.random.default_rng(2), [40, 3, 17, 9])
    given = pad([e.ids for e in read], [e.types for e in read])
    exact = Engine(model).rows(read, POOLINGS["mean"])
    graph = build(model, Pooling(), int8=inputs)
    kinds = {node.op_type for node in graph.graph.node}
    assert {"QAttention", "MatMulIntegerToFloat"} <= kinds
    assert "MatMul" not in {n.op_type for n in graph.graph.node[:-6]}
    found = run_of(graph)(given)
    assert cosines(found, exact).min() > 0.99
    ours = Engine(model, int8=calibrated(inputs)).rows(read, POOLINGS["mean"])
    assert cosines(found, ours).min() > 0.995
    wrong = {n: Inputs(i.factor * 3, i.scale / 3, i.zero) for n, i in inputs.items()}
    assert cosines(run_of(build(model, Pooling(), int8=wrong))(given), exact).min() < 0.99
    some = {name: i for name, i in inputs.items() if not name.endswith("down")}
    assert cosines(run_of(build(model, Pooling(), int8=some))(given), exact).min() > 0.99


def _agrees(model: Model) -> None:
    read = encodings(np.random.default_rng(0), [40, 3])
    ours = Engine(model).rows(read, POOLINGS["mean"])
    found = run_of(build(model, Pooling()))(pad([e.ids for e in read], [e.types for e in read]))
    np.testing.assert_allclose(found, ours, atol=1e-5)


def test_pruned_heads_are_left_out() -> None:
    model = without_heads(model_of("bert"), [(1, 1), (3, 2)])
    _agrees(model)
    first = next(n for n in build(model, Pooling()).graph.node if n.op_type == "Attention")
    assert {a.name: a.i for a in first.attribute}["num_heads"] == 1


def test_adapters_are_in_the_weights() -> None:
    model = model_of("bert")
    add_lora(model, LoRA(rank=2), lambda name, rows: [rows], frozen_layers=0)
    with torch.no_grad():
        for part in adapters(model).values():
            for weight in (w for w in part.parameters() if w.requires_grad):
                weight.normal_(std=0.1)
    _agrees(model)


def test_minilm(minilm: Path) -> None:
    embed = pipeline("embed", minilm)
    texts = ["A first sentence.", "One.", "Vectors are compared by their cosine, as a rule. " * 5]
    run = run_of(build(embed.loaded.model, embed.pooling))
    read = embed.tokenizer.encode_batch(texts)
    found = run(pad([e.ids for e in read], [e.types for e in read]))
    np.testing.assert_allclose(found, embed(texts), atol=1e-6)
