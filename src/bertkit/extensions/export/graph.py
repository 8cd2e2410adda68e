"""ONNX graphs of BERT models that use few large operators: eleven nodes per layer.

General exporters write about a hundred small nodes per layer, which no optimizer fuses into large
ones. Outside of attention, all tokens are rows of one matrix, so that Gemm can be used, which adds
a bias at no cost. The graphs use those operators of ONNX Runtime (domain com.microsoft;
docs/ContribOperators.md) that are faster than standard operators: EmbedLayerNormalization,
Attention and Gelu, and for int8 QAttention and MatMulIntegerToFloat. SkipLayerNormalization and
BiasGelu are not used, because they are slower than Add, LayerNormalization and Gelu.
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
from bertkit.extensions.export.int8_layers import Inputs, quantize_weight
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
"""Value that is added to the attention scores of padding tokens."""

OPSET, IR = 17, 8
"""Versions of the operator set and of the file format that every supported ONNX Runtime can
load."""


def unsupported_reason(model: Model, head: nn.Module | None = None) -> str | None:
    """Return why a model cannot be built from these operators, or None if it can.

    The operators support only layers like BERT's.

    Args:
        model: The model.
        head: Head whose logits the graph should output.
    """
    if not isinstance(model.encoder, Transformer) or model.decoder is not None:
        return "the model is not a Transformer encoder"
    config = model.encoder.config
    checks = {
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
    for name, fits in checks.items():
        if not fits:
            return f"its {name} setting differs from BERT"
    if head is not None and not isinstance(head, Classifier | Tagger | SpanHead):
        return f"its head {type(head).__name__} is not supported"
    return None


def build(
    model: Model,
    pooling: Pooling,
    head: nn.Module | None = None,
    int8: Mapping[str, Inputs] | None = None,
) -> onnx.ModelProto:
    """Build the graph of a model for which `unsupported_reason` returns None.

    The graph takes inputs that `exported.pad` returns, with any batch size and length. Padding does
    not change the outputs.

    Args:
        model: The model.
        pooling: Pooling of the embeddings.
        head: Head whose logits the graph should output. Default: no logits.
        int8: Quantization of the inputs of those layers that compute in int8, by layer name.

    Returns:
        The graph. Its outputs are hidden states, embeddings and, if `head` is given, logits.

    Shapes:
        inputs: (B, T) each; states: (B, T, D); embeddings: (B, W); logits: (B, L) or (B, T, L).
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
            per_text = isinstance(head, Classifier)
            outputs[LOGITS] = ["batch", labels] if per_text else ["batch", "length", labels]
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
    """Write a graph to a directory, with its weights in a separate file.

    Runtimes memory-map the separate file. This makes loading twice as fast, and keeps only one copy
    of the weights in memory.

    Args:
        graph: The graph.
        folder: Output directory.
    """
    path, weights = (folder / name for name in GRAPHS["onnx"])
    onnx.save_model(graph, path, save_as_external_data=True, location=weights.name)
    # If all weights are small, they are stored in the graph. Otherwise, the library writes a file
    # that only its owner can read.
    if weights.exists():
        weights.chmod(NEW_FILE)


class _Nodes:
    """A builder of the nodes and weights of a graph.

    Methods that add nodes return the name of the last node's output.
    """

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
        """Add a constant, and return its name. Tensors are converted to fp32."""
        if isinstance(values, Tensor):
            values = values.detach().float().cpu().contiguous().numpy()
        self.weights[name] = values
        return name

    def norm(self, name: str, norm: nn.Module) -> tuple[str, str]:
        """Add the weight and bias of a layer norm, and return their names."""
        part = cast(LayerNorm, norm)
        bias = torch.zeros_like(part.weight) if part.bias is None else part.bias
        return self.weight(f"{name}.weight", part.weight), self.weight(f"{name}.bias", bias)

    def apply_norm(self, name: str, norm: nn.Module, x: str) -> str:
        weights, eps = self.norm(name, norm), self.stack.config.norm.eps
        return self.add("LayerNormalization", x, *weights, epsilon=eps)

    def bias(self, name: str, linear: nn.Linear) -> str:
        bias = linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias
        return self.weight(f"{name}.bias", bias)

    def rows(self, x: str, width: int) -> str:
        """Flatten the batch and length dimensions. Shapes: (B, T, W) -> (B·T, W)."""
        shape = self.weight(f"rows.{width}", np.array([-1, width], np.int64))
        return self.add("Reshape", x, shape)

    def texts(self, x: str, width: int, out: str = "") -> str:
        """Restore the batch and length dimensions. Shapes: (B·T, W) -> (B, T, W)."""
        if width not in self.shapes:
            last = self.weight(f"texts.{width}", np.array([width], np.int64))
            self.shapes[width] = self.add("Concat", self.shape, last, axis=0)
        return self.add("Reshape", x, self.shapes[width], out=out)

    def linear(self, name: str, linear: nn.Linear, x: str, out: str = "") -> str:
        """Compute x Wᵀ + b. Shapes: (N, D) -> (N, O)."""
        if name not in self.int8:
            weight = self.weight(f"{name}.weight", linear.weight.T)
            return self.add("Gemm", x, weight, self.bias(name, linear), out=out)
        x, step, zero = self.quantize(name, x)
        weight, steps, zeros = self.int8_weights(name, linear)
        arguments = (x, weight, step, steps, zero, zeros, self.bias(name, linear))
        return self.add("MatMulIntegerToFloat", *arguments, domain=FUSED, out=out)

    # ---- Encoder

    def encoder(self) -> str:
        """Compute the hidden states of all tokens. Shapes: (B·T, D)."""
        x = self.embedding(self.stack.config)
        for depth in self.stack.config.depths:
            x = self.block(f"blocks.{depth}", cast(Block, self.stack.blocks[depth]), x)
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
        elif part.types is not None:
            # All tokens have the same type, as in RoBERTa.
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
                # The operator requires a name for its second output.
                [x, f"{x}.counts"],
                domain=FUSED,
                epsilon=config.norm.eps,
            )
        )
        x = self.rows(x, config.width)
        return x if part.widen is None else self.linear("embedding.widen", part.widen, x)

    def block(self, name: str, block: Block, x: str) -> str:
        """Compute a Transformer layer. Shapes: (B·T, D) -> (B·T, D)."""
        attention, feedforward = block.attention, block.feedforward
        mixed = self.attention(f"{name}.attention", block, x)
        out = self.linear(f"{name}.attention.out", attention.out, mixed)
        x = self.apply_norm(f"{name}.attention_norm", block.attention_norm, self.add("Add", out, x))
        up = self.linear(f"{name}.feedforward.up", feedforward.up, x)
        inner = self.add(ACTIVATIONS[self.stack.config.feedforward.activation], up, domain=FUSED)
        down = self.linear(f"{name}.feedforward.down", feedforward.down, inner)
        return self.apply_norm(
            f"{name}.feedforward_norm", block.feedforward_norm, self.add("Add", down, x)
        )

    def attention(self, prefix: str, block: Block, x: str) -> str:
        """Compute attention without the output projection. Shapes: (B·T, D) -> (B·T, D)."""
        config, part, name = self.stack.config, block.attention, f"{prefix}.qkv"
        width, bias = part.qkv.out_features // 3, self.bias(name, part.qkv)
        settings: dict[str, Any] = {
            "num_heads": part.heads,
            "mask_filter_value": MASKED,
            "scale": config.head_width**-0.5 if config.attention.scaled else 1.0,
        }
        x = self.texts(x, config.hidden)
        if name in self.int8:
            x, step, zero = self.quantize(name, x)
            weight, steps, zeros = self.int8_weights(name, part.qkv)
            kind, arguments = "QAttention", [x, weight, bias, step, steps, self.mask, zero, zeros]
        else:
            weight = self.weight(f"{name}.weight", part.qkv.weight.T)
            kind, arguments = "Attention", [x, weight, bias, self.mask]
            settings["qkv_hidden_sizes"] = [width] * 3
        return self.rows(self.add(kind, *arguments, domain=FUSED, **settings), width)

    # ---- Quantization

    def quantize(self, name: str, x: str) -> tuple[str, str, str]:
        """Quantize the input of a layer, and return the names of input, scale and zero point."""
        inputs = self.int8[name]
        scale = inputs.scale
        if _is_uniform(inputs):
            scale = 1 / float(inputs.factor[0])
        else:
            x = self.add("Mul", x, self.weight(f"{name}.factor", inputs.factor * scale))
        step = self.weight(f"{name}.step", np.array(scale, np.float32))
        zero = self.weight(f"{name}.zero", np.array(inputs.zero, np.uint8))
        return self.add("QuantizeLinear", x, step, zero), step, zero

    def int8_weights(self, name: str, linear: nn.Linear) -> tuple[str, str, str]:
        """Add int8 weights, scales and zero points. Shapes: (D, O), (O,), (O,)."""
        weight, inputs = linear.weight.detach().float().cpu(), self.int8[name]
        if not _is_uniform(inputs):
            weight = weight * inputs.smoothing
        steps, integers = quantize_weight(weight)
        return (
            self.weight(f"{name}.weight", np.ascontiguousarray(integers.T.numpy())),
            self.weight(f"{name}.steps", steps),
            self.weight(f"{name}.zeros", np.zeros(len(steps), np.int8)),
        )

    # ---- Pooling and heads

    def vectors(self, states: str, pooling: Pooling) -> None:
        x = self.pool(states, pooling.mode)
        if pooling.dense is not None:
            x = self.linear("dense", pooling.dense.linear, x)
            x = self.activate(x, pooling.dense.activation)
        if pooling.normalize:
            self.add("LpNormalization", x, out=VECTORS, axis=-1, p=2)
        else:
            self.add("Identity", x, out=VECTORS)

    def pool(self, states: str, mode: Mode) -> str:
        """Pool hidden states. Shapes: (B, T, D) -> (B, D)."""
        if mode == "cls":
            first = self.weight("first", np.array(0, np.int64))
            return self.add("Gather", states, first, axis=1)
        axis = self.weight("axis", np.array([1], np.int64))
        if mode == "max":
            last = self.weight("last", np.array([2], np.int64))
            real = self.add("Cast", self.mask, to=TensorProto.BOOL)
            least = self.weight("least", np.array(np.finfo(np.float32).min, np.float32))
            masked = self.add("Where", self.add("Unsqueeze", real, last), states, least)
            return self.add("ReduceMax", masked, axes=[1], keepdims=0)
        real = self.add("Cast", self.mask, to=TensorProto.FLOAT)
        sums = self.add("MatMul", self.add("Unsqueeze", real, axis), states)
        counts = self.add("ReduceSum", real, axis, keepdims=1)
        return self.add("Div", self.add("Squeeze", sums, axis), counts)

    def activate(self, x: str, activation: str) -> str:
        if activation == "none":
            return x
        kind = {"tanh": "Tanh", "relu": "Relu", "gelu": "Gelu"}[activation]
        return self.add(kind, x, domain=FUSED if kind == "Gelu" else "")

    def logits(self, rows: str, states: str, head: nn.Module) -> int:
        """Compute the logits of a head for each text or token, and return the number of logits."""
        part = cast(Classifier | Tagger | SpanHead, head)
        config, per_text = self.stack.config, isinstance(part, Classifier)
        x = self.pool(states, cast(Mode, config.head.pooling)) if per_text else rows
        transform = part.pooler.transform if isinstance(part, Classifier) else part.transform
        if isinstance(transform, Transform):
            x = self.linear("head.dense", transform.dense, x)
            x = self.activate(x, config.head.activation)
            if config.head.norm:
                x = self.apply_norm("head.norm", transform.norm, x)
        count = part.out.out_features
        x = self.linear("head.out", part.out, x, LOGITS if per_text else "")
        if not per_text:
            self.texts(x, count, LOGITS)
        return count


def _is_uniform(inputs: Inputs) -> bool:
    """Return whether all dimensions of a layer's input have the same scale."""
    return bool((inputs.factor == inputs.factor[0]).all())
