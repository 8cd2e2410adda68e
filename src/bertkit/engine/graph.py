"""A BERT as a graph of ONNX Runtime's fused operators, made of its weights: seven nodes a layer.

Exporters write a hundred small nodes, which no optimizer puts together again. The operators are
those of the domain com.microsoft (onnxruntime, docs/ContribOperators.md): EmbedLayerNormalization,
Attention, SkipLayerNormalization, BiasGelu, and in integers QAttention and MatMulIntegerToFloat.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from bertkit.engine.exported import INPUTS, LOGITS, STATES, VECTORS
from bertkit.engine.heads import without_dead_heads
from bertkit.engine.quantize import Inputs
from bertkit.models.block import Block
from bertkit.models.config import LearnedPositions, SinusoidalPositions, TransformerConfig
from bertkit.models.heads import Classifier, Span, Tagger, Transform
from bertkit.models.lora import merged
from bertkit.models.model import Model
from bertkit.models.transformer import Transformer
from bertkit.nn.embedding import sinusoids
from bertkit.nn.norm import LayerNorm
from bertkit.nn.pool import Mode, Pooling

FUSED = "com.microsoft"

ACTIVATIONS = {"gelu": "BiasGelu", "gelu_tanh": "FastGelu"}
"""What adds a bias and computes an activation."""

MASKED = -1e30
"""What is added to the scores of padding."""

OPSET, IR = 17, 8
"""Old enough for every ONNX Runtime that bertkit opens graphs with."""


def unfit(model: Model, head: nn.Module | None = None) -> str | None:
    """None, or why these operators cannot compute a model: they are those of BERT's layers."""
    if not isinstance(model.encoder, Transformer) or model.decoder is not None:
        return "it is no Transformer that reads alone"
    config = model.config
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
    if head is not None and not isinstance(head, Classifier | Tagger | Span):
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
    nodes = _Nodes(without_dead_heads(merged(model)).transformer, int8 or {})
    with torch.inference_mode():
        states = nodes.encoder()
        nodes.vectors(states, pooling)
        outputs: dict[str, list[str | int]] = {
            STATES: ["batch", "length", model.config.hidden],
            VECTORS: ["batch", pooling.width(model.config.hidden)],
        }
        if head is not None:
            labels = nodes.logits(states, head)
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


class _Nodes:
    """Nodes and weights as they come; what adds some returns the name of their output."""

    def __init__(self, stack: Transformer, int8: Mapping[str, Inputs]) -> None:
        self.stack, self.int8 = stack, int8
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray[Any, Any]] = {}
        self.ids, self.mask, self.types = (
            self.add("Cast", name, to=TensorProto.INT32) for name in INPUTS
        )

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
        part = cast(LayerNorm, norm)
        bias = torch.zeros_like(part.weight) if part.bias is None else part.bias
        return self.weight(f"{name}.weight", part.weight), self.weight(f"{name}.bias", bias)

    def bias(self, name: str, linear: nn.Linear) -> str:
        bias = linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias
        return self.weight(f"{name}.bias", bias)

    # ---- the encoder

    def encoder(self) -> str:
        stack, config = self.stack, self.stack.config
        x = self.embedding(config)
        for layer, place in enumerate(config.depths):
            last = layer == config.layers - 1
            block = cast(Block, stack.blocks[place])
            x = self.block(f"blocks.{place}", block, x, STATES if last else "")
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
        if part.widen is None:
            return x
        product = self.product("embedding.widen", part.widen, x)
        return self.add("Add", product, self.bias("embedding.widen", part.widen))

    def block(self, where: str, block: Block, x: str, out: str) -> str:
        config, attention, feedforward = self.stack.config, block.attention, block.feedforward
        mixed = self.attention(f"{where}.attention", block, x)
        product = self.product(f"{where}.attention.out", attention.out, mixed)
        x = self.add(
            "SkipLayerNormalization",
            product,
            x,
            *self.norm(f"{where}.attention_norm", block.attention_norm),
            self.bias(f"{where}.attention.out", attention.out),
            domain=FUSED,
            epsilon=config.norm.eps,
        )
        up = self.product(f"{where}.feedforward.up", feedforward.up, x)
        inner = self.add(
            ACTIVATIONS[config.feedforward.activation],
            up,
            self.bias(f"{where}.feedforward.up", feedforward.up),
            domain=FUSED,
        )
        product = self.product(f"{where}.feedforward.down", feedforward.down, inner)
        return self.add(
            "SkipLayerNormalization",
            product,
            x,
            *self.norm(f"{where}.feedforward_norm", block.feedforward_norm),
            self.bias(f"{where}.feedforward.down", feedforward.down),
            domain=FUSED,
            out=out,
            epsilon=config.norm.eps,
        )

    def attention(self, where: str, block: Block, x: str) -> str:
        config, part, name = self.stack.config, block.attention, f"{where}.qkv"
        settings: dict[str, Any] = {
            "num_heads": part.heads,
            "mask_filter_value": MASKED,
            "scale": config.head_width**-0.5 if config.attention.scaled else 1.0,
        }
        bias = self.bias(name, part.qkv)
        if name in self.int8:
            x, step, zero = self.rounded(name, x)
            weight, steps, zeros = self.integers(name, part.qkv)
            given = (x, weight, bias, step, steps, self.mask, zero, zeros)
            return self.add("QAttention", *given, domain=FUSED, **settings)
        width = part.qkv.out_features // 3
        weight = self.weight(f"{name}.weight", part.qkv.weight.T)
        return self.add(
            "Attention",
            x,
            weight,
            bias,
            self.mask,
            domain=FUSED,
            qkv_hidden_sizes=[width] * 3,
            **settings,
        )

    def product(self, name: str, linear: nn.Linear, x: str) -> str:
        """x Wᵀ, without the bias, which the next operator adds."""
        if name not in self.int8:
            return self.add("MatMul", x, self.weight(f"{name}.weight", linear.weight.T))
        x, step, zero = self.rounded(name, x)
        weight, steps, zeros = self.integers(name, linear)
        given = (x, weight, step, steps, zero, zeros)
        return self.add("MatMulIntegerToFloat", *given, domain=FUSED)

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
        steps = weight.abs().amax(1).clamp(min=1e-8) / 127
        whole = (weight / steps[:, None]).round().clamp(-127, 127).to(torch.int8)
        return (
            self.weight(f"{name}.weight", np.ascontiguousarray(whole.T.numpy())),
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

    def linear(self, name: str, linear: nn.Linear, x: str, out: str = "") -> str:
        product = self.add("MatMul", x, self.weight(f"{name}.weight", linear.weight.T))
        return self.add("Add", product, self.bias(name, linear), out=out)

    def activated(self, x: str, activation: str) -> str:
        if activation == "none":
            return x
        kind = {"tanh": "Tanh", "relu": "Relu", "gelu": "Gelu"}[activation]
        return self.add(kind, x, domain=FUSED if kind == "Gelu" else "")

    def logits(self, states: str, head: nn.Module) -> int:
        """The logits of a head; how many it gives."""
        part = cast(Classifier | Tagger | Span, head)
        config, x = self.stack.config, states
        if isinstance(part, Classifier):
            x = self.pooled(states, config.head.pooling)
        transform = part.pooler.transform if isinstance(part, Classifier) else part.transform
        if isinstance(transform, Transform):
            x = self.linear("head.dense", transform.dense, x)
            x = self.activated(x, config.head.activation)
            if config.head.norm:
                weights = self.norm("head.norm", transform.norm)
                x = self.add("LayerNormalization", x, *weights, epsilon=config.norm.eps)
        self.linear("head.out", part.out, x, LOGITS)
        return part.out.out_features


def _even(inputs: Inputs) -> bool:
    """Whether one scale is that of all numbers of a layer's input."""
    return bool((inputs.factor == inputs.factor[0]).all())
