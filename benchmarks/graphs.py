"""Baselines that run a graph: models of transformers, exported as users of each runtime do.

ONNX Runtime has three graphs: `torch.onnx.export` of transformers' model, the same graph fused by
ONNX Runtime's optimizer for transformers, and bertkit's export. OpenVINO has two graphs: its
conversion of transformers' model, and bertkit's export. The fastest graph of each runtime is the
baseline, and is quantized for int8.
"""

from __future__ import annotations

import json
import logging
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from bertkit.console import quietly
from bertkit.extensions.export.export import export
from bertkit.extensions.export.exported import (
    GRAPHS,
    MAX_BATCH_TOKENS,
    GraphPrecision,
    load_onnx,
    load_openvino,
    pad,
)
from bertkit.nn.precision import Inference
from bertkit.storage import write_json
from bertkit.text.tokenizer import Tokenizer

Vectors = npt.NDArray[np.float32]
Runtime = Literal["onnx", "openvino"]
NAMES: dict[Runtime, str] = {"onnx": "ONNX Runtime", "openvino": "OpenVINO"}

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
CHOICE = "fastest.json"
BERTKIT = "bertkit's export"
STANDARD = "bertkit's export, standard operators"
TRIAL_TEXTS = 64
"""Number of texts with which the fastest graph is determined."""


class Graph:
    """Computation of embeddings with a graph: the normalized mean of the last hidden states.

    Batches are sorted by length and have at most 4,096 tokens. All cores are used.
    """

    def __init__(self, folder: Path, path: Path, precision: GraphPrecision) -> None:
        self.tokenizer = Tokenizer.load(folder)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.length = min(config["max_position_embeddings"], _max_length(folder))
        self.run = load_onnx(path) if path.suffix == ".onnx" else load_openvino(path, precision)
        self.real = self.all = 0

    def __call__(self, texts: Sequence[str]) -> Vectors:
        encodings = self.tokenizer.encode_batch(texts, max_length=self.length, truncate="longest")
        order = sorted(range(len(encodings)), key=lambda index: len(encodings[index].ids))
        parts: list[Vectors] = []
        start = 0
        while start < len(order):
            end = start + 1
            while end < len(order) and (end + 1 - start) * len(encodings[order[end]].ids) <= (
                MAX_BATCH_TOKENS
            ):
                end += 1
            batch = [encodings[index] for index in order[start:end]]
            inputs = pad([e.ids for e in batch], [e.types for e in batch])
            self.real += int(inputs["attention_mask"].sum())
            self.all += inputs["attention_mask"].size
            parts.append(_pooled(self.run(inputs), inputs["attention_mask"]))
            start = end
        found = np.empty((len(order), parts[0].shape[1]), np.float32)
        found[order] = np.concatenate(parts)
        return found

    @property
    def fill(self) -> float:
        return self.real / self.all


def make(
    folder: Path, directory: Path, runtime: Runtime, calibration: list[str], *, single: bool
) -> None:
    """Write the graphs of a runtime, and record the fastest one.

    Args:
        folder: Model directory.
        directory: Output directory.
        runtime: The runtime.
        calibration: Texts for the time measurement and for the calibration of int8.
        single: Whether to embed the texts one at a time, instead of in batches.
    """
    paths = {BERTKIT: directory / runtime / GRAPHS[runtime][0]}
    with quietly():
        export(folder, out=directory / runtime, format=runtime)
        if runtime == "onnx":  # Dynamic quantization supports only standard operators.
            export(folder, out=directory / "standard", operators="standard")
            paths[STANDARD] = directory / "standard" / GRAPHS[runtime][0]
    paths |= _export_transformers(folder, directory, runtime)
    seconds = {
        name: _measure(Graph(folder, path, "fp32"), calibration, single)
        for name, path in paths.items()
    }
    name = min(seconds, key=lambda name: seconds[name])
    graph, integers = paths[name], directory / f"{runtime}-int8{paths[name].suffix}"
    if runtime == "onnx":
        _quantize_onnx(paths[STANDARD] if name == BERTKIT else graph, integers)
    else:
        _quantize_openvino(folder, graph, integers, calibration)
    choice = {"name": name, "fp32": str(graph), "int8": str(integers)}
    write_json(directory / f"{runtime}-{CHOICE}", choice)


def load(
    folder: Path, directory: Path, runtime: Runtime, precision: Inference
) -> tuple[Graph, str]:
    """Load the fastest graph that `make` found; also return the name of its export."""
    choice = json.loads((directory / f"{runtime}-{CHOICE}").read_text(encoding="utf-8"))
    if precision == "int8":
        return Graph(folder, Path(choice["int8"]), "auto"), choice["name"]
    return Graph(folder, Path(choice["fp32"]), precision), choice["name"]


def _export_transformers(folder: Path, directory: Path, runtime: Runtime) -> dict[str, Path]:
    """Export transformers' model; return the graphs by the name of the method."""
    import torch
    from transformers import AutoModel

    # The graph of SDPA attention has extra operators for sequences without tokens.
    model = AutoModel.from_pretrained(str(folder), attn_implementation="eager").eval()

    class States(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any, mask: Any, types: Any) -> Any:
            found = self.model(input_ids=ids, attention_mask=mask, token_type_ids=types)
            return found.last_hidden_state

    tokens = Tokenizer.load(folder).encode_batch(["one text", "another, longer text"])
    inputs = pad([e.ids for e in tokens], [e.types for e in tokens])
    example = tuple(torch.from_numpy(inputs[name]) for name in INPUTS)
    states = States().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if runtime == "openvino":
            import openvino

            path = directory / "converted.xml"
            found = openvino.convert_model(states, example_input=example)
            for put, name in zip(found.inputs, INPUTS, strict=True):
                put.set_names({name})
            openvino.save_model(found, path, compress_to_fp16=False)
            return {"OpenVINO's conversion": path}
        plain, fused = directory / "plain.onnx", directory / "fused.onnx"
        rows, columns = torch.export.Dim("rows", max=4096), torch.export.Dim("columns", max=512)
        torch.onnx.export(
            states,
            example,
            plain,
            input_names=INPUTS,
            output_names=["states"],
            dynamic_shapes=({0: rows, 1: columns},) * 3,
            external_data=False,
            verbose=False,
        )
        from onnxruntime.transformers.optimizer import optimize_model

        shape = model.config
        optimized = optimize_model(
            str(plain),
            model_type="bert",
            num_heads=shape.num_attention_heads,
            hidden_size=shape.hidden_size,
        )
        optimized.save_model_to_file(str(fused))
    return {"torch.onnx.export": plain, "torch.onnx.export, fused": fused}


def _measure(graph: Graph, texts: list[str], single: bool) -> float:
    """Return the median time of three runs in seconds, after a warmup run."""
    batches = [[text] for text in texts[:TRIAL_TEXTS]] if single else [texts[:TRIAL_TEXTS]]
    times = []
    for _ in range(4):
        start = time.perf_counter()
        for batch in batches:
            graph(batch)
        times.append(time.perf_counter() - start)
    return median(times[1:])


def _quantize_onnx(graph: Path, out: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(graph, out, per_channel=True, weight_type=QuantType.QInt8)


def _quantize_openvino(folder: Path, graph: Path, out: Path, texts: list[str]) -> None:
    import nncf
    import openvino

    model = openvino.Core().read_model(graph)
    names = {name for put in model.inputs for name in put.names}
    tokenizer, length = Tokenizer.load(folder), _max_length(folder)
    inputs = [
        {n: value for n, value in pad([e.ids], [e.types]).items() if n in names}
        for e in tokenizer.encode_batch(texts, max_length=length, truncate="longest")
    ]
    nncf.set_log_level(logging.ERROR)
    quantized = nncf.quantize(
        model, nncf.Dataset(inputs), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(inputs)
    )
    openvino.save_model(quantized, out, compress_to_fp16=False)


def _max_length(folder: Path) -> int:
    """Return the maximum length of sentence-transformers in tokens."""
    config = json.loads((folder / "sentence_bert_config.json").read_text(encoding="utf-8"))
    return int(config["max_seq_length"])


def _pooled(found: Vectors, mask: npt.NDArray[np.int64]) -> Vectors:
    """Return normalized embeddings; pool the hidden states if the graph does not."""
    if found.ndim == 2:
        return found
    sums = np.einsum("btd,bt->bd", found, mask.astype(np.float32))
    return np.asarray(sums / np.linalg.norm(sums, axis=1, keepdims=True), np.float32)
