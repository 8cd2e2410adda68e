"""A model that makes vectors, as a graph that runs without torch: ONNX, and OpenVINO's own."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertkit.batch import Batch, Packed, Padded
from bertkit.errors import CheckpointError
from bertkit.extensions.export.exported import (
    GRAPHS,
    INPUTS,
    LOGITS,
    RECORD,
    STATES,
    VECTORS,
    ExportRecord,
    Graph,
    hashes,
    onnx_graph,
    openvino_graph,
    padded,
)
from bertkit.models.model import Model
from bertkit.models.transformer import Transformer
from bertkit.nn.pooling import Pooling
from bertkit.storage import write_json

TOLERANCE = 1e-4
"""How far a graph's outputs may be from the model's, in any of their numbers."""

MAX_WEIGHT_BYTES = 2_000_000_000
"""Bytes of weights of the largest model that graphs are made of."""

Operators = Literal["fused", "standard"]
"""Those of ONNX Runtime where the model is made of layers like BERT's, or ONNX's own."""

SHAPES = ((1, 5), (3, 17), (8, 40))
"""Texts and tokens at which a graph is held against the model."""


def too_large(model: Model) -> str | None:
    """None, or why no graph is made of a model, whose weights are in fp32 there."""
    size = sum(weight.numel() * 4 for weight in model.encoder.parameters())
    if size <= MAX_WEIGHT_BYTES:
        return None
    return (
        f"the model has {size / 1e9:.1f} GB of weights, and graphs are made of at most "
        f"{MAX_WEIGHT_BYTES / 1e9:.0f}"
    )


class GraphModel(nn.Module):
    """A model on rows of one length, for graphs have no packed layout.

    Shapes: input_ids, attention_mask and token_type_ids (B, T) -> (B, T, D) states, (B, D)
    vectors and, with a head, its (B, L) or (B, T, L) logits.
    """

    def __init__(
        self, encoder: Transformer, pooling: Pooling, head: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.encoder, self.pooling, self.head = encoder, pooling, head
        self.dense = pooling.dense  # so that its weights are the graph's
        if head is not None:  # a graph cannot ask how many rows there are
            trial = _batch(*(torch.full((2, 3), n) for n in (1, 1, 0)))
            self.per_token = len(head(encoder(trial), trial)) == trial.layout.total

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> tuple[Tensor, ...]:
        batch = _batch(input_ids, attention_mask, token_type_ids)
        states = self.encoder(batch)
        vectors = self.pooling(states, batch)
        if self.pooling.normalize:
            vectors = F.normalize(vectors, dim=-1)
        outputs = states.view(*input_ids.shape, -1), vectors
        if self.head is None:
            return outputs
        logits = self.head(states, batch)
        return *outputs, logits.view(*input_ids.shape, -1) if self.per_token else logits


def _batch(ids: Tensor, mask: Tensor, types: Tensor) -> Batch:
    """Rows of one length as a batch. Shapes: (B, T) each."""
    layout = cast(Packed, Padded(mask.to(torch.bool)))  # has what is read of it
    return Batch(ids=ids.flatten(), types=types.flatten(), layout=layout)


def export(
    model: Model,
    pooling: Pooling,
    folder: Path,
    *,
    length: int,
    kind: Literal["onnx", "openvino"],
    head: str | None = None,
    operators: Operators = "standard",
    about: Mapping[str, Any] | None = None,
) -> float:
    """Write the graph of a model into an empty folder; how far its outputs are from the model's.

    Batch and length are free, up to `length` tokens. The logits of a `head` are a third output.
    Of `operators` fused are for models that `graph.build` knows; the record says what is `about`
    it. It is checked at three shapes.
    Raises: CheckpointError when the graph gives other vectors or logits, or is too large.
    """
    part = None if head is None else model.heads[head]
    if reason := too_large(model):
        raise CheckpointError(f"{reason}; it cannot be exported")
    graph = GraphModel(model.transformer, pooling, part).eval().requires_grad_(False)
    path = folder / GRAPHS["onnx"][0]
    if operators == "fused":
        from bertkit.extensions.export.graph import build, write  # needs onnx

        write(build(model, pooling, part), folder)
    else:
        _translated(graph, path, length)
    if kind == "openvino":
        import openvino

        openvino.save_model(
            openvino.convert_model(path), folder / GRAPHS[kind][0], compress_to_fp16=False
        )
        for name in GRAPHS["onnx"]:
            (folder / name).unlink(missing_ok=True)
    write_record(folder, kind, pooling, pooling.width(model.config.hidden), length, about or {})
    distance = _distance(graph, folder, kind)
    if not distance <= TOLERANCE:
        raise CheckpointError(
            f"{folder}: the graph's outputs are {distance:.1e} from the model's, and "
            f"{TOLERANCE:.0e} is the most; the model cannot be exported"
        )
    return distance


def write_record(
    folder: Path,
    kind: Literal["onnx", "openvino"],
    pooling: Pooling,
    width: int,
    length: int,
    about: Mapping[str, Any],
) -> None:
    """Say what a folder's graph is, beside it."""
    record = ExportRecord(
        kind,
        hashes(folder, kind),
        dimension=width,
        length=length,
        prompts=pooling.prompts,
        **about,
    )
    write_json(folder / RECORD, msgspec.to_builtins(record))


def _translated(graph: GraphModel, path: Path, length: int) -> None:
    """Write a model in ONNX's own operators, by torch's exporter."""
    ids, mask, types = (torch.full((2, 7), n) for n in (1, 1, 0))  # apart: each is an input
    names = list(INPUTS)
    free = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=length)}
    outputs = [STATES, VECTORS, *([LOGITS] if graph.head is not None else [])]
    with _quiet(), torch.inference_mode():
        torch.onnx.export(
            graph,
            (ids, mask, types),
            str(path),
            input_names=names,
            output_names=outputs,
            dynamic_shapes=dict.fromkeys(names, free),
            dynamo=True,
            external_data=True,
            verbose=False,
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter says of itself."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


@torch.inference_mode()
def _distance(graph: GraphModel, folder: Path, kind: str) -> float:
    """The largest difference of any number, over texts of several lengths in each shape."""
    exported, rng = Graph(folder), np.random.default_rng(0)
    path = folder / GRAPHS[kind][0]
    run = onnx_graph(path) if kind == "onnx" else openvino_graph(path, "fp32")
    distances = []
    for rows, length in SHAPES:
        length = min(length, exported.record.length)
        lengths = [max(1, length - 2 * row) for row in range(rows)]
        ids = [rng.integers(0, graph.encoder.config.vocab, n) for n in lengths]
        inputs = padded(ids, [np.zeros(n, np.int64) for n in lengths])
        _, *ours = graph(*(torch.from_numpy(inputs[name]) for name in inputs))
        exports = [exported.run(inputs), *([] if graph.head is None else [run(inputs, LOGITS)])]
        real = inputs["attention_mask"].astype(bool)
        for one, other in zip(exports, ours, strict=True):
            difference = np.abs(one - other.numpy())
            distances.append(float((difference[real] if one.ndim == 3 else difference).max()))
    return max(distances)
