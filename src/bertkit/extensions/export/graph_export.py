"""Export of models to graphs for ONNX Runtime and OpenVINO, which run without torch."""

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
    hash_files,
    load_onnx,
    load_openvino,
    pad,
)
from bertkit.models.model import Model
from bertkit.models.transformer import Transformer
from bertkit.nn.pooling import Pooling
from bertkit.storage import write_json

TOLERANCE = 1e-4
"""Maximum absolute difference between the outputs of a graph and of the model."""

MAX_WEIGHT_BYTES = 2_000_000_000
"""Maximum size of the weights of an exported model in bytes."""

Operators = Literal["fused", "standard"]
"""Which operators to use: those of ONNX Runtime, if the layers of the model are like BERT's
(fused), or standard ONNX operators."""

SHAPES = ((1, 5), (3, 17), (8, 40))
"""Batch sizes and lengths for which the outputs of the graph are compared with the model's."""


def too_large(model: Model) -> str | None:
    """Return why a model is too large for a graph with fp32 weights, or None if it is not.

    Args:
        model: The model.
    """
    size = sum(weight.numel() * 4 for weight in model.encoder.parameters())
    if size <= MAX_WEIGHT_BYTES:
        return None
    return (
        f"the model has {size / 1e9:.1f} GB of weights, but graphs support at most "
        f"{MAX_WEIGHT_BYTES / 1e9:.0f} GB"
    )


class GraphModel(nn.Module):
    """A model that takes padded inputs, because graphs do not support packed batches.

    Args:
        encoder: Encoder of the model.
        pooling: Pooling of the embeddings.
        head: Head whose logits are an output.

    Shapes:
        input_ids, attention_mask and token_type_ids: (B, T); states: (B, T, D); embeddings:
        (B, D); logits: (B, L) or (B, T, L).
    """

    def __init__(
        self, encoder: Transformer, pooling: Pooling, head: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.encoder, self.pooling, self.head = encoder, pooling, head
        # Register the dense layer as a submodule, so that the graph contains its weights.
        self.dense = pooling.dense
        # The graph cannot check the number of rows, so determine here whether logits are per token.
        if head is not None:
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
    """Convert padded sequences to a batch. Shapes: (B, T) each."""
    # `Padded` has all attributes of `Packed` that the model uses, so the cast is safe.
    layout = cast(Packed, Padded(mask.to(torch.bool)))
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
    metadata: Mapping[str, Any] | None = None,
) -> float:
    """Write the graph of a model, and check for three input shapes that it computes the same.

    The graph supports any batch size, and texts of up to `length` tokens.

    Args:
        model: The model.
        pooling: Pooling of the embeddings.
        folder: Empty output directory.
        length: Maximum number of tokens in a text.
        kind: Format of the graph.
        head: Name of a head whose logits become the third output.
        operators: Operators to use. fused requires a model that `graph.build` supports.
        metadata: Further fields to write to the record.

    Returns:
        The largest difference between the outputs of the graph and of the model.

    Raises:
        CheckpointError: If the outputs differ, or the model is too large.
    """
    part = None if head is None else model.heads[head]
    if reason := too_large(model):
        raise CheckpointError(f"{reason}; the model cannot be exported")
    graph = GraphModel(model.transformer, pooling, part).eval().requires_grad_(False)
    path = folder / GRAPHS["onnx"][0]
    if operators == "fused":
        # Imported here, because it requires onnx.
        from bertkit.extensions.export.graph import build, write

        write(build(model, pooling, part), folder)
    else:
        _export_standard(graph, path, length)
    if kind == "openvino":
        import openvino

        openvino.save_model(
            openvino.convert_model(path), folder / GRAPHS[kind][0], compress_to_fp16=False
        )
        for name in GRAPHS["onnx"]:
            (folder / name).unlink(missing_ok=True)
    write_record(folder, kind, pooling, pooling.width(model.config.hidden), length, metadata or {})
    distance = _distance(graph, folder, kind)
    if not distance <= TOLERANCE:
        raise CheckpointError(
            f"{folder}: the outputs of the graph and the model differ by {distance:.1e}, but the "
            f"maximum is {TOLERANCE:.0e}; the model cannot be exported"
        )
    return distance


def write_record(
    folder: Path,
    kind: Literal["onnx", "openvino"],
    pooling: Pooling,
    width: int,
    length: int,
    metadata: Mapping[str, Any],
) -> None:
    """Write the record of a graph into its directory.

    Args:
        folder: Directory of the graph.
        kind: Format of the graph.
        pooling: Pooling of the embeddings, with the prompts.
        width: Dimension of the embeddings.
        length: Maximum number of tokens in a text.
        metadata: Further fields to write to the record.
    """
    record = ExportRecord(
        kind,
        hash_files(folder, kind),
        dimension=width,
        length=length,
        prompts=pooling.prompts,
        **metadata,
    )
    write_json(folder / RECORD, msgspec.to_builtins(record))


def _export_standard(graph: GraphModel, path: Path, length: int) -> None:
    """Export a model with standard ONNX operators, using PyTorch's exporter."""
    # Create separate tensors, because each becomes an input of the graph.
    ids, mask, types = (torch.full((2, 7), n) for n in (1, 1, 0))
    names = list(INPUTS)
    dynamic = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=length)}
    outputs = [STATES, VECTORS, *([LOGITS] if graph.head is not None else [])]
    with _quiet(), torch.inference_mode():
        torch.onnx.export(
            graph,
            (ids, mask, types),
            str(path),
            input_names=names,
            output_names=outputs,
            dynamic_shapes=dict.fromkeys(names, dynamic),
            dynamo=True,
            external_data=True,
            verbose=False,
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings and log messages of PyTorch's exporter."""
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
    """Return the largest difference between outputs of the graph and the model for all `SHAPES`."""
    exported, rng = Graph(folder), np.random.default_rng(0)
    path = folder / GRAPHS[kind][0]
    run = load_onnx(path) if kind == "onnx" else load_openvino(path, "fp32")
    distances = []
    for rows, length in SHAPES:
        length = min(length, exported.record.length)
        lengths = [max(1, length - 2 * row) for row in range(rows)]
        ids = [rng.integers(0, graph.encoder.config.vocab, n) for n in lengths]
        inputs = pad(ids, [np.zeros(n, np.int64) for n in lengths])
        _, *expected = graph(*(torch.from_numpy(inputs[name]) for name in inputs))
        exports = [exported.run(inputs), *([] if graph.head is None else [run(inputs, LOGITS)])]
        real = inputs["attention_mask"].astype(bool)
        for output, target in zip(exports, expected, strict=True):
            difference = np.abs(output - target.numpy())
            distances.append(float((difference[real] if output.ndim == 3 else difference).max()))
    return max(distances)
