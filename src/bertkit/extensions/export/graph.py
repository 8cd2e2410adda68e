"""A BERT as a graph of few large operators, made of its weights: eleven nodes a layer.

Exporters write a hundred small nodes, which no optimizer puts together again. Tokens are rows of
one matrix outside of attention, since Gemm adds a bias at no cost. Of ONNX Runtime's own operators
(domain com.microsoft; docs/ContribOperators.md) are those that are faster than the standard's:
EmbedLayerNormalization, Attention, Gelu, and in integers QAttention and MatMulIntegerToFloat.
SkipLayerNormalization and BiasGelu take longer than Add, LayerNormalization and Gelu.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from bertkit.engine.pruned_heads import without_pruned_heads
from bertkit.extensions.export.exported import GRAPHS, INPUTS, LOGITS, STATES, VECTORS
from bertkit.extensions.export.int8_layers import Inputs, quantized
from bertkit.models.block import Block
from bertkit.models.config import LearnedPositions, SinusoidalPositions, TransformerConfig
from bertkit.models.heads import Classifier, SpanHead, Tagger, Transform
from bertkit.models.lora import merged
from bertkit.models.model import Model
from bertkit.models.transformer import Transformer
from bertkit.nn.embedding import sinusoids
from bertkit.nn.norm import LayerNorm
from bertkit.nn.pooling import Mode, Pooling
from bertkit.storage import NEW_FILE

FUSED = "com.microsoft"

ACTIVATIONS = {"gelu": "Gelu", "gelu_tanh": "FastGelu"}

MASKED = -1e30
"""What is added to the scores of padding."""

OPSET, IR = 17, 8
"""Old enough for every ONNX Runtime that bertkit opens graphs with."""


def unfit(model: Model, head: nn.Module | None = None) -> str | None:
    """None, or why these operators cannot compute a model: they are those of BERT's layers."""
    if not isinstance(model.encoder, Transformer) or model.decoder is not None:
        return "it is no Transformer that reads alone"
    config = model.encoder.config
    others = {
        "positions": isinstance(config.positions, LearnedPositions | SinusoidalPositions),
        "norm": (config.norm.kind, config.norm.place) == ("layer", "post")
        and config.norm.embedding
        and not config.norm.final,
        "attention": not (config.attention.causal or config.attention.cross)
        and config.attention.window is None
        and config.kv_heads == config.heads,
        "feedforward": config.feedforward.activation in ACTIVATIONS
        and not config.feedforward.gated,
        "convolution": config.convolution is None,
    }
    for name, fits in others.items():
        if not fits:
            return f"its {name} is not BERT's"
    if head is not None and not isinstance(head, Classifier | Tagger | SpanHead):
        return f"its head is a {type(head).__name__}"
    return None


def build(
    model: Model,
    pooling: Pooling,
    head: nn.Module | None = None,
    int8: Mapping[str, Inputs] | None = None,
) -> onnx.ModelProto:
    """The graph of a model that is not `unfit`, with its vectors, and with the logits of a head.

    Inputs are those of `exported.padded`, of any batch and length; what the mask leaves out changes
    nothing. `int8` names the layers that compute in integers, and how their inputs are rounded.
    Shapes: (B, T) each -> (B, T, D) states, (B, W) vectors, (B, L) or (B, T, L) logits.
    """
    nodes = _Nodes(without_pruned_heads(merged(model)).transformer, int8 or {})
    with torch.inference_mode():
        rows = nodes.encoder()
        states = nodes.texts(rows, model.config.hidden, STATES)
        nodes.vectors(states, pooling)
        outputs: dict[str, list[str | int]] = {
            STATES: ["batch", "length", model.config.hidden],
            VECTORS: ["batch", pooling.width(model.config.hidden)],
        }
        if head is not None:
            labels = nodes.logits(rows, states, head)
            alone = isinstance(head, Classifier)
            outputs[LOGITS] = ["batch", labels] if alone else ["batch", "length", labels]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes.nodes,
        "bertkit",
        [info(name, TensorProto.INT64, ["batch", "length"]) for name in INPUTS],
        [info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(values, name) for name, values in nodes.weights.items()],
    )
    operators = [helper.make_opsetid("", OPSET), helper.make_opsetid(FUSED, 1)]
    return helper.make_model(graph, opset_imports=operators, ir_version=IR)


def write(graph: onnx.ModelProto, folder: Path) -> None:
    """Write a graph beside its weights, which whoever opens it maps into memory: twice as fast as
    to read them, and they are held once in place of twice.
    """
    path, weights = (folder / name for name in GRAPHS["onnx"])
    onnx.save_model(graph, path, save_as_external_data=True, location=weights.name)
    if weights.exists():  # all may be so few that they lie in the graph
        weights.chmod(NEW_FILE)  # the library lets nobody else read them


class _Nodes:
    """Nodes and weights as they come; what adds some returns the name of their output."""

    def __init__(self, stack: Transformer, int8: Mapping[str, Inputs]) -> None:
        self.stack, self.int8 = stack, int8
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray[Any, Any]] = {}
        self.ids, self.mask, self.types = (
            self.add("Cast", name, to=TensorProto.INT32) for name in INPUTS
        )
        self.shape, self.shapes = self.add("Shape", INPUTS[0]), dict[int, str]()

    def add(
        self, kind: str, *inputs: str, domain: str = "", out: str = "", **attributes: Any
    ) -> str:
        out = out or f"{kind}.{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [out], domain=domain, **attributes))
        return out

    def weight(self, name: str, values: Tensor | np.ndarray[Any, Any]) -> str:
        """A constant by its name; tensors are fp32."""
        if isinstance(values, Tensor):
            values = values.detach().float().cpu().contiguous().numpy()
        self.weights[name] = values
        return name

    def norm(self, name: str, norm: nn.Module) -> tuple[str, str]:
        """Its weights."""
        part = cast(LayerNorm, norm)
        bias = torch.zeros_like(part.weight) if part.bias is None else part.bias
        return self.weight(f"{name}.weight", part.weight), self.weight(f"{name}.bias", bias)

    def normed(self, name: str, norm: nn.Module, x: str) -> str:
        weights, eps = self.norm(name, norm), self.stack.config.norm.eps
        return self.add("LayerNormalization", x, *weights, epsilon=eps)

    def bias(self, name: str, linear: nn.Linear) -> str:
        bias = linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias
        return self.weight(f"{name}.bias", bias)

    def rows(self, x: str, width: int) -> str:
        """Shapes: (B, T, W) -> (B·T, W)."""
        shape = self.weight(f"rows.{width}", np.array([-1, width], np.int64))
        return self.add("Reshape", x, shape)

    def texts(self, x: str, width: int, out: str = "") -> str:
        """Shapes: (B·T, W) -> (B, T, W)."""
        if width not in self.shapes:
            last = self.weight(f"texts.{width}", np.array([width], np.int64))
            self.shapes[width] = self.add("Concat", self.shape, last, axis=0)
        return self.add("Reshape", x, self.shapes[width], out=out)

    def linear(self, name: str, linear: nn.Linear, x: str, out: str = "") -> str:
        """X Wᵀ + b. Shapes: (N, D) -> (N, O)."""
        if name not in self.int8:
            weight = self.weight(f"{name}.weight", linear.weight.T)
            return self.add("Gemm", x, weight, self.bias(name, linear), out=out)
        x, step, zero = self.rounded(name, x)
        weight, steps, zeros = self.integers(name, linear)
        given = (x, weight, step, steps, zero, zeros, self.bias(name, linear))
        return self.add("MatMulIntegerToFloat", *given, domain=FUSED, out=out)

    # ---- the encoder

    def encoder(self) -> str:
        """The states of all tokens. Shapes: (B·T, D)."""
        x = self.embedding(self.stack.config)
        for place in self.stack.config.depths:
            x = self.block(f"blocks.{place}", cast(Block, self.stack.blocks[place]), x)
        return x

    def embedding(self, config: TransformerConfig) -> str:
        part = self.stack.embedding
        words = part.tokens.weight * (part.scale or 1.0)
        if part.sinusoidal:
            positions = sinusoids(torch.arange(config.max_positions), config.width)
        else:
            assert part.positions is not None
            positions = part.positions.weight
        segments = ""
        if part.types is not None and part.types.num_embeddings > 1:
            segments = self.weight("embedding.types", part.types.weight)
        elif part.types is not None:  # the same for all tokens (RoBERTa)
            positions = positions + part.types.weight[0]
        x = f"EmbedLayerNormalization.{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(
                "EmbedLayerNormalization",
                [
                    self.ids,
                    self.types if segments else "",
                    self.weight("embedding.words", words),
                    self.weight("embedding.positions", positions),
                    segments,
                    *self.norm("embedding.norm", part.norm),
                ],
                [x, f"{x}.counts"],  # which the operator wants to be named
                domain=FUSED,
                epsilon=config.norm.eps,
            )
        )
        x = self.rows(x, config.width)
        return x if part.widen is None else self.linear("embedding.widen", part.widen, x)

    def block(self, where: str, block: Block, x: str) -> str:
        """Shapes: (B·T, D) -> (B·T, D)."""
        attention, feedforward = block.attention, block.feedforward
        mixed = self.attention(f"{where}.attention", block, x)
        out = self.linear(f"{where}.attention.out", attention.out, mixed)
        x = self.normed(f"{where}.attention_norm", block.attention_norm, self.add("Add", out, x))
        up = self.linear(f"{where}.feedforward.up", feedforward.up, x)
        inner = self.add(ACTIVATIONS[self.stack.config.feedforward.activation], up, domain=FUSED)
        down = self.linear(f"{where}.feedforward.down", feedforward.down, inner)
        return self.normed(
            f"{where}.feedforward_norm", block.feedforward_norm, self.add("Add", down, x)
        )

    def attention(self, where: str, block: Block, x: str) -> str:
        """What attention mixes, before its linear layer. Shapes: (B·T, D) -> (B·T, D)."""
        config, part, name = self.stack.config, block.attention, f"{where}.qkv"
        width, bias = part.qkv.out_features // 3, self.bias(name, part.qkv)
        settings: dict[str, Any] = {
            "num_heads": part.heads,
            "mask_filter_value": MASKED,
            "scale": config.head_width**-0.5 if config.attention.scaled else 1.0,
        }
        x = self.texts(x, config.hidden)
        if name in self.int8:
            x, step, zero = self.rounded(name, x)
            weight, steps, zeros = self.integers(name, part.qkv)
            kind, given = "QAttention", [x, weight, bias, step, steps, self.mask, zero, zeros]
        else:
            weight = self.weight(f"{name}.weight", part.qkv.weight.T)
            kind, given = "Attention", [x, weight, bias, self.mask]
            settings["qkv_hidden_sizes"] = [width] * 3
        return self.rows(self.add(kind, *given, domain=FUSED, **settings), width)

    # ---- integers

    def rounded(self, name: str, x: str) -> tuple[str, str, str]:
        """The input of a layer in 8 bits, with the size of a step and what stands for zero."""
        inputs = self.int8[name]
        scale = inputs.scale
        if _even(inputs):  # one scale for all numbers
            scale = 1 / float(inputs.factor[0])
        else:
            x = self.add("Mul", x, self.weight(f"{name}.factor", inputs.factor * scale))
        step = self.weight(f"{name}.step", np.array(scale, np.float32))
        zero = self.weight(f"{name}.zero", np.array(inputs.zero, np.uint8))
        return self.add("QuantizeLinear", x, step, zero), step, zero

    def integers(self, name: str, linear: nn.Linear) -> tuple[str, str, str]:
        """Its weights in 8 bits, with a scale for each output. Shapes: (D, O), (O,), (O,)."""
        weight, inputs = linear.weight.detach().float().cpu(), self.int8[name]
        if not _even(inputs):
            weight = weight * inputs.smoothing
        steps, integers = quantized(weight)
        return (
            self.weight(f"{name}.weight", np.ascontiguousarray(integers.T.numpy())),
            self.weight(f"{name}.steps", steps),
            self.weight(f"{name}.zeros", np.zeros(len(steps), np.int8)),
        )

    # ---- what reads the states

    def vectors(self, states: str, pooling: Pooling) -> None:
        x = self.pooled(states, pooling.mode)
        if pooling.dense is not None:
            x = self.linear("dense", pooling.dense.linear, x)
            x = self.activated(x, pooling.dense.activation)
        if pooling.normalize:
            self.add("LpNormalization", x, out=VECTORS, axis=-1, p=2)
        else:
            self.add("Identity", x, out=VECTORS)

    def pooled(self, states: str, mode: Mode) -> str:
        """Shapes: (B, T, D) -> (B, D)."""
        if mode == "cls":
            first = self.weight("first", np.array(0, np.int64))
            return self.add("Gather", states, first, axis=1)
        axis = self.weight("axis", np.array([1], np.int64))
        if mode == "max":
            last = self.weight("last", np.array([2], np.int64))
            real = self.add("Cast", self.mask, to=TensorProto.BOOL)
            least = self.weight("least", np.array(np.finfo(np.float32).min, np.float32))
            kept = self.add("Where", self.add("Unsqueeze", real, last), states, least)
            return self.add("ReduceMax", kept, axes=[1], keepdims=0)
        real = self.add("Cast", self.mask, to=TensorProto.FLOAT)
        sums = self.add("MatMul", self.add("Unsqueeze", real, axis), states)
        counts = self.add("ReduceSum", real, axis, keepdims=1)
        return self.add("Div", self.add("Squeeze", sums, axis), counts)

    def activated(self, x: str, activation: str) -> str:
        if activation == "none":
            return x
        kind = {"tanh": "Tanh", "relu": "Relu", "gelu": "Gelu"}[activation]
        return self.add(kind, x, domain=FUSED if kind == "Gelu" else "")

    def logits(self, rows: str, states: str, head: nn.Module) -> int:
        """The logits of a head, for each text or for each token; how many it gives."""
        part = cast(Classifier | Tagger | SpanHead, head)
        config, alone = self.stack.config, isinstance(part, Classifier)
        x = self.pooled(states, config.head.pooling) if alone else rows
        transform = part.pooler.transform if isinstance(part, Classifier) else part.transform
        if isinstance(transform, Transform):
            x = self.linear("head.dense", transform.dense, x)
            x = self.activated(x, config.head.activation)
            if config.head.norm:
                x = self.normed("head.norm", transform.norm, x)
        count = part.out.out_features
        x = self.linear("head.out", part.out, x, LOGITS if alone else "")
        if not alone:
            self.texts(x, count, LOGITS)
        return count


def _even(inputs: Inputs) -> bool:
    """Whether one scale is that of all numbers of a layer's input."""
    return bool((inputs.factor == inputs.factor[0]).all())
