"""Peers that run a graph: a model of transformers, exported as each runtime's users do it.

Three graphs are made for ONNX Runtime: `torch.onnx.export` of transformers' model, the same fused
by ONNX Runtime's own optimizer for transformers, and bertkit's export; two for OpenVINO: its own
conversion of transformers' model, and bertkit's export. The fastest of a runtime is the peer, and
what computes in integers is made of it.
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
    Numbers,
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
OURS = "bertkit's export"
STANDARD = "bertkit's export, standard operators"
TRIED = 64
"""Texts by which the fastest is found."""


class Graph:
    """Texts -> vectors of length 1, the mean of their last states. Batches are sorted by length,
    at most 4,096 tokens each, on all cores.
    """

    def __init__(self, folder: Path, path: Path, precision: Numbers) -> None:
        self.tokenizer = Tokenizer.load(folder)
        known = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.length = min(known["max_position_embeddings"], _cut(folder))
        self.run = load_onnx(path) if path.suffix == ".onnx" else load_openvino(path, precision)
        self.real = self.all = 0

    def __call__(self, texts: Sequence[str]) -> Vectors:
        read = self.tokenizer.encode_batch(texts, max_length=self.length, truncate="longest")
        order = sorted(range(len(read)), key=lambda place: len(read[place].ids))
        parts: list[Vectors] = []
        start = 0
        while start < len(order):
            end = start + 1
            while end < len(order) and (end + 1 - start) * len(read[order[end]].ids) <= (
                MAX_BATCH_TOKENS
            ):
                end += 1
            places = order[start:end]
            inputs = pad([read[p].ids for p in places], [read[p].types for p in places])
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


def make(folder: Path, place: Path, runtime: Runtime, seen: list[str], *, alone: bool) -> None:
    """Write a runtime's graphs into `place`, and which is the fastest with the first of `seen`:
    by themselves if `alone`, else together.
    """
    paths = {OURS: place / runtime / GRAPHS[runtime][0]}
    with quietly():
        export(folder, out=place / runtime, format=runtime)
        if runtime == "onnx":  # dynamic quantization reads the standard's operators alone
            export(folder, out=place / "standard", operators="standard")
            paths[STANDARD] = place / "standard" / GRAPHS[runtime][0]
    paths |= _theirs(folder, place, runtime)
    took = {name: _took(Graph(folder, path, "fp32"), seen, alone) for name, path in paths.items()}
    name = min(took, key=lambda each: took[each])
    graph, integers = paths[name], place / f"{runtime}-int8{paths[name].suffix}"
    if runtime == "onnx":
        _onnx_integers(paths[STANDARD] if name == OURS else graph, integers)
    else:
        _openvino_integers(folder, graph, integers, seen)
    made = {"name": name, "fp32": str(graph), "int8": str(integers)}
    write_json(place / f"{runtime}-{CHOICE}", made)


def opened(folder: Path, place: Path, runtime: Runtime, precision: Inference) -> tuple[Graph, str]:
    """The fastest graph that `make` found, and whose export it is."""
    known = json.loads((place / f"{runtime}-{CHOICE}").read_text(encoding="utf-8"))
    if precision == "int8":
        return Graph(folder, Path(known["int8"]), "auto"), known["name"]
    return Graph(folder, Path(known["fp32"]), precision), known["name"]


def _theirs(folder: Path, place: Path, runtime: Runtime) -> dict[str, Path]:
    """Graphs of transformers' model, by how they were made."""
    import torch
    from transformers import AutoModel

    # its plain attention: the other one's graph guards against rows without a token
    model = AutoModel.from_pretrained(str(folder), attn_implementation="eager").eval()

    class States(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any, mask: Any, types: Any) -> Any:
            found = self.model(input_ids=ids, attention_mask=mask, token_type_ids=types)
            return found.last_hidden_state

    tokens = Tokenizer.load(folder).encode_batch(["one text", "another, longer text"])
    given = pad([e.ids for e in tokens], [e.types for e in tokens])
    example = tuple(torch.from_numpy(given[name]) for name in INPUTS)
    states = States().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if runtime == "openvino":
            import openvino

            path = place / "converted.xml"
            found = openvino.convert_model(states, example_input=example)
            for put, name in zip(found.inputs, INPUTS, strict=True):
                put.set_names({name})
            openvino.save_model(found, path, compress_to_fp16=False)
            return {"OpenVINO's conversion": path}
        plain, fused = place / "plain.onnx", place / "fused.onnx"
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
        better = optimize_model(
            str(plain),
            model_type="bert",
            num_heads=shape.num_attention_heads,
            hidden_size=shape.hidden_size,
        )
        better.save_model_to_file(str(fused))
    return {"torch.onnx.export": plain, "torch.onnx.export, fused": fused}


def _took(graph: Graph, seen: list[str], alone: bool) -> float:
    """Seconds with some texts, the median of three after one that does not count."""
    asked = [[text] for text in seen[:TRIED]] if alone else [seen[:TRIED]]
    times = []
    for _ in range(4):
        start = time.perf_counter()
        for texts in asked:
            graph(texts)
        times.append(time.perf_counter() - start)
    return median(times[1:])


def _onnx_integers(graph: Path, out: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(graph, out, per_channel=True, weight_type=QuantType.QInt8)


def _openvino_integers(folder: Path, graph: Path, out: Path, seen: list[str]) -> None:
    import nncf
    import openvino

    model = openvino.Core().read_model(graph)
    wanted = {name for put in model.inputs for name in put.names}
    read = Tokenizer.load(folder).encode_batch(seen, max_length=_cut(folder), truncate="longest")
    inputs = [
        {n: value for n, value in pad([one.ids], [one.types]).items() if n in wanted}
        for one in read
    ]
    nncf.set_log_level(logging.ERROR)
    made = nncf.quantize(
        model,
        nncf.Dataset(inputs),
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=len(inputs),
    )
    openvino.save_model(made, out, compress_to_fp16=False)


def _cut(folder: Path) -> int:
    """Tokens that sentence-transformers reads of a text."""
    known = json.loads((folder / "sentence_bert_config.json").read_text(encoding="utf-8"))
    return int(known["max_seq_length"])


def _pooled(found: Vectors, mask: npt.NDArray[np.int64]) -> Vectors:
    """Vectors of length 1 from last states, where the graph has not made them."""
    if found.ndim == 2:
        return found
    sums = np.einsum("btd,bt->bd", found, mask.astype(np.float32))
    return np.asarray(sums / np.linalg.norm(sums, axis=1, keepdims=True), np.float32)
