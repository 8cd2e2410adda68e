"""A model that makes vectors, as a graph that runs without torch: ONNX, and OpenVINO's own."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertkit.engine.exported import GRAPHS, RECORD, Graph, Record, hashes, padded
from bertkit.errors import CheckpointError
from bertkit.models.model import Model
from bertkit.models.transformer import Transformer
from bertkit.nn.attention import Attention
from bertkit.nn.pool import Pooling
from bertkit.nn.rotary import angles
from bertkit.storage import write_json

TOLERANCE = 1e-4
"""How far a graph's vectors may be from the model's, in any of their numbers."""

SHAPES = ((1, 5), (3, 17), (8, 40))
"""Texts and tokens at which a graph is held against the model."""


Sight = tuple[Tensor, Tensor | None]
"""What is added to scores, (B, 1, 1 or T, T), and rotary angles (T, K / 2)."""


class Rectangle(nn.Module):
    """The same model on rows of equal length, for graphs have no packed layout.

    Shapes: input_ids, attention_mask and token_type_ids (B, T) -> (B, T, D) states and (B, D)
    vectors.
    """

    def __init__(self, encoder: Transformer, pooling: Pooling) -> None:
        super().__init__()
        self.encoder, self.pooling = encoder, pooling
        self.dense = pooling.dense  # so that its weights are the graph's

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        config = self.encoder.config
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        seen: Any = SimpleNamespace(
            ids=input_ids, types=token_type_ids, layout=SimpleNamespace(positions=places[None])
        )
        x: Tensor = self.encoder.embedding(seen)
        whole, local = self._sights(places, attention_mask, x)
        for layer, place in enumerate(config.depths):
            block: Any = self.encoder.blocks[place]
            sight = whole if config.windows[layer] is None else local
            if block.norm == "pre":
                x = x + _attend(block.attention, block.attention_norm(x), sight)
                x = x + block.feedforward(block.feedforward_norm(x))
            else:
                x = block.attention_norm(x + _attend(block.attention, x, sight))
                x = block.feedforward_norm(x + block.feedforward(x))
        if self.encoder.norm is not None:
            x = self.encoder.norm(x)
        return x, self._pooled(x, attention_mask)

    def _sights(self, places: Tensor, attention_mask: Tensor, x: Tensor) -> tuple[Sight, Sight]:
        """Of layers that see the whole text, and of the others, as `Transformer` has them."""
        config = self.encoder.config

        def sight(seen: Tensor, base: float | None) -> Sight:
            bias = (~seen).to(x.dtype) * -1e9  # softmax gives nothing to what is not seen
            width = config.hidden // config.heads
            return bias, None if base is None else angles(places, base, width)

        mask = attention_mask[:, None, None, :].to(torch.bool)  # (B, 1, 1, T)
        whole = sight(mask, config.rotary)
        if config.window is None:
            return whole, whole
        near = (places[:, None] - places).abs() <= config.window
        base = None if config.rotary is None else config.window_rotary
        return whole, sight(mask & near, base)

    def _pooled(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        real = attention_mask[:, :, None].to(x.dtype)
        match self.pooling.mode:
            case "cls":
                found = x[:, 0]
            case "max":
                found = (x - (1.0 - real) * 1e9).amax(1)
            case _:
                found = (x * real).sum(1) / real.sum(1)
        if self.pooling.dense is not None:
            found = self.pooling.dense(found)
        return F.normalize(found, dim=-1) if self.pooling.normalize else found


def _attend(part: Attention, x: Tensor, sight: Sight) -> Tensor:
    bias, turn = sight
    q, k, v = part.qkv(x).unflatten(-1, (3, part.heads, -1)).permute(2, 0, 3, 1, 4)
    if turn is not None:
        q, k = _turned(q, turn), _turned(k, turn)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + bias
    mixed = torch.softmax(scores, -1) @ v
    out: Tensor = part.out(mixed.transpose(1, 2).flatten(2))
    return out


def _turned(x: Tensor, turn: Tensor) -> Tensor:
    (a, b), cos, sin = x.chunk(2, -1), turn.cos(), turn.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def export(
    model: Model,
    pooling: Pooling,
    folder: Path,
    *,
    length: int,
    kind: Literal["onnx", "openvino"],
) -> float:
    """Write the graph of a model into an empty folder; how far its vectors are from the model's.

    Batch and length are free, up to `length` tokens. It is checked at three shapes.
    Raises: CheckpointError when the graph gives other vectors.
    """
    graph = Rectangle(model.encoder, pooling).eval().requires_grad_(False)
    ids, mask, types = (torch.full((2, 7), n) for n in (1, 1, 0))  # apart: each is an input
    names = ["input_ids", "attention_mask", "token_type_ids"]
    free = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=length)}
    path = folder / GRAPHS["onnx"][0]
    with _quiet(), torch.inference_mode():
        torch.onnx.export(
            graph,
            (ids, mask, types),
            str(path),
            input_names=names,
            output_names=["last_hidden_state", "sentence_embedding"],
            dynamic_shapes=dict.fromkeys(names, free),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    if kind == "openvino":
        import openvino

        openvino.save_model(
            openvino.convert_model(path), folder / GRAPHS[kind][0], compress_to_fp16=False
        )
        path.unlink()
    width = pooling.width(model.config.hidden)
    record = Record(
        kind, hashes(folder, kind), dimension=width, length=length, prompts=pooling.prompts
    )
    write_json(folder / RECORD, msgspec.to_builtins(record))
    apart = _distance(graph, folder)
    if not apart <= TOLERANCE:
        raise CheckpointError(
            f"{folder}: the graph's vectors are {apart:.1e} from the model's, and {TOLERANCE:.0e} "
            "is the most; the model cannot be exported"
        )
    return apart


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
def _distance(graph: Rectangle, folder: Path) -> float:
    """The largest difference of any number, over texts of several lengths in each shape."""
    ready, rng = Graph(folder), np.random.default_rng(0)
    found = []
    for rows, length in SHAPES:
        length = min(length, ready.record.length)
        lengths = [max(1, length - 2 * row) for row in range(rows)]
        ids = [rng.integers(0, graph.encoder.config.vocab, n) for n in lengths]
        inputs = padded(ids, [np.zeros(n, np.int64) for n in lengths])
        theirs = ready.run(inputs)
        _, ours = graph(*(torch.from_numpy(inputs[name]) for name in inputs))
        found.append(float(np.abs(theirs - ours.numpy()).max()))
    return max(found)
