"""Graph layers return the model's hidden states in the order of the packed batch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.extensions.export.test_graph_export import encodings, model_of

from bertkit.batch import Batch
from bertkit.engine.engine import Engine
from bertkit.extensions.export import exported
from bertkit.extensions.export.exported import Graph, GraphPrecision, Runtime
from bertkit.extensions.export.graph_layers import GraphLayers
from bertkit.nn.pooling import Pooling

for _name in ("onnx", "onnxruntime", "openvino"):
    pytest.importorskip(_name, reason="pip install 'bertkit[export]'")

from bertkit.extensions.export.graph_export import export  # noqa: E402  # needs onnx


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("graph")
    export(model_of("bert"), Pooling(), out, length=64, kind="onnx", operators="fused")
    return out


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
@given(lengths=st.lists(st.integers(1, 64), min_size=1, max_size=6), seed=st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_graph_states_match_model(
    runtime: Runtime, folder: Path, lengths: list[int], seed: int
) -> None:
    graph = Graph(folder, runtime=runtime)
    layers = GraphLayers(lambda _: graph, lambda _: runtime, "mean")
    engine = Engine(model_of("bert"))
    batch = Batch.of(encodings(np.random.default_rng(seed), sorted(lengths)))
    with torch.inference_mode():
        expected = engine.model.states(batch)
        found = engine.with_faster_layers(layers).model.states(batch)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert engine.model.faster_layers is None


def test_graph_layers_load_graph_only_if_selected(folder: Path) -> None:
    loads: list[tuple[int, ...]] = []

    def load_graph(runtime: Runtime) -> Graph:
        loads.append((0,))
        return Graph(folder, runtime=runtime)

    layers = GraphLayers(
        load_graph, lambda lengths: "onnxruntime" if len(lengths) == 1 else None, "mean"
    )
    texts = encodings(np.random.default_rng(0), [3, 5])
    assert layers(Batch.of(texts)) is None
    assert loads == []
    assert layers(Batch.of(texts[:1])).shape == (3, model_of("bert").config.hidden)


def test_long_texts_do_not_pad_short_texts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exported, "MAX_BATCH_TOKENS", 128)
    graph = Graph(folder, runtime="onnxruntime")
    shapes: list[tuple[int, int]] = []
    states = graph.states

    def record_inputs(inputs: dict[str, Any]) -> Any:
        shapes.append(inputs["input_ids"].shape)
        return states(inputs)

    monkeypatch.setattr(graph, "states", record_inputs)
    layers = GraphLayers(lambda _: graph, lambda _: "onnxruntime", "mean")
    engine = Engine(model_of("bert"))
    batch = Batch.of(encodings(np.random.default_rng(0), [5] * 60 + [64] * 3))
    with torch.inference_mode():
        found = engine.with_faster_layers(layers).model.states(batch)
        torch.testing.assert_close(found, engine.model.states(batch), atol=1e-5, rtol=0)
    assert max(rows * length for rows, length in shapes) == 128
    assert sum(rows for rows, _ in shapes) == 63


@pytest.mark.parametrize(
    ("precision", "amx", "lengths"),
    [("auto", True, {32, 40}), ("auto", False, {3, 30, 35}), ("fp32", True, {3, 30, 35})],
)
def test_openvino_pads_to_tiles_if_amx_is_used(
    precision: GraphPrecision,
    amx: bool,
    lengths: set[int],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exported, "has_amx", lambda: amx)
    graph = Graph(folder, precision, runtime="openvino")
    # Padding must not exceed the maximum length.
    graph.record = msgspec.structs.replace(graph.record, length=40)
    input_lengths: list[int] = []
    checked = graph._checked  # Computes both states and vectors.

    def record_inputs(inputs: dict[str, Any], *rest: Any) -> Any:
        input_lengths.append(inputs["input_ids"].shape[1])
        return checked(inputs, *rest)

    monkeypatch.setattr(graph, "_checked", record_inputs)
    layers, exact = (
        GraphLayers(lambda _: graph, lambda _: "openvino", "mean"),
        Engine(model_of("bert")),
    )
    for length in (3, 30, 35):
        texts = encodings(np.random.default_rng(length), [length])
        found, batch = layers(Batch.of(texts)), Batch.of(texts)
        # The tolerance allows bf16, which OpenVINO uses if the processor supports it.
        with torch.inference_mode():
            torch.testing.assert_close(found, exact.model.states(batch), atol=0.05, rtol=0)
        assert graph.rows(texts).shape == (1, graph.width)
    assert set(input_lengths) == lengths
    assert len(input_lengths) == 6


@pytest.mark.parametrize(("tile", "sizes"), [(1, [20, 6, 1]), (32, [2] * 13 + [1])])
def test_split_by_width_counts_tile_padding(
    tile: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exported, "MAX_BATCH_TOKENS", 64)
    parts = list(exported.split_by_width([3] * 20 + [10] * 6 + [70], tile))
    assert [part.stop - part.start for part in parts] == sizes
    assert [part.start for part in parts] == [sum(sizes[:index]) for index in range(len(sizes))]


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_graph_is_thread_safe(runtime: Runtime, folder: Path) -> None:
    graph = Graph(folder, runtime=runtime)
    batches = [encodings(np.random.default_rng(seed), [9, 30]) for seed in range(40)]
    sequential = [graph.rows(batch) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        for found, expected in zip(pool.map(graph.rows, batches), sequential, strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-6)
