"""Linear layers that compute in int8, with quantization that is calibrated on texts.

The weights have one scale per output. Each dimension of the input is first divided by its smoothing
factor (SmoothQuant: Xiao et al. 2023, equation 4), and then one scale is used for the whole input.
Sums of products are exact. The output has the dtype of the model, or is quantized if the next layer
is also in int8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from bertkit.batch import Batch
from bertkit.engine.packed_linear import NAMES, Replace, fused_activation, linear_layers, trial
from bertkit.errors import DeviceError
from bertkit.models.heads import CausalLM
from bertkit.models.model import Model
from bertkit.models.transformer import Transformer
from bertkit.nn.precision import has_amx

SMOOTHING = 0.5
"""Migration strength α of SmoothQuant: how much of the difficulty of quantization is moved from the
inputs to the weights."""

CLIPPED_FRACTION = 1e-5
"""Fraction of an activation function's outputs that are clipped at each end of the range."""

ZERO_POINT = 128
"""Zero point of int8 values that are shifted to the range 0 to 255."""

SAMPLED_ROWS = 512
"""Number of rows that are sampled per batch to find the range of values."""


@dataclass(frozen=True)
class Inputs:
    """How to quantize a layer's input: round(x * factor) + zero, from 0 to 255.

    `scale` is the size of a quantization step before smoothing.

    Shapes:
        factor: (D,).
    """

    factor: Tensor
    scale: float
    zero: int

    @property
    def smoothing(self) -> Tensor:
        """Factors by which inputs are divided and weights are multiplied. Shapes: (D,)."""
        return 1.0 / (self.factor * self.scale)


def faster(inputs: Mapping[str, Inputs], dtype: torch.dtype) -> Mapping[str, Inputs]:
    """Select the layers that are faster in int8 than in `dtype`.

    If the processor has tile instructions for bf16 (AMX), the layers in attention are not faster in
    int8. Quantizing their inputs takes more time than int8 saves (notes/2026-11.md).

    Args:
        inputs: Quantization of the input of each layer, by layer name.
        dtype: Dtype of the model.
    """
    if dtype != torch.bfloat16 or not has_amx():
        return inputs
    return {name: item for name, item in inputs.items() if name.endswith((".up", ".down"))}


class Int8RowsLinear(nn.Module):
    """A linear layer that computes in int8 with one scale per input row, for inference on the CPU.

    The layer needs no calibration. The result for a row is bit-identical in every batch, because
    integer sums are exact.

    Args:
        linear: Layer to convert.
        dtype: Dtype of the output.

    Source:
        Dettmers et al. 2022, section 2.1, vector-wise quantization.
    """

    def __init__(self, linear: nn.Linear | CausalLM, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.scales, weight = quantize_weight(linear.weight.detach().float())
        self.weight = torch.ops.onednn.qlinear_prepack(weight, None)
        self.bias = None if linear.bias is None else linear.bias.detach().float()
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        step = x.abs().amax(-1, keepdim=True).float().clamp_(min=1e-8).div_(127)
        integers = (x / step).round_().to(torch.int8)
        out = _linear(integers, self.weight, self.scales, torch.float32)
        out = out.mul_(step) if self.bias is None else torch.addcmul(self.bias, out, step)
        result: Tensor = out.to(self.dtype)
        return result


class Int8Linear(nn.Module):
    """A linear layer with an activation function that computes in int8, for inference on the CPU.

    Args:
        linear: Layer to convert.
        inputs: Quantization of the layer's input.
        activation: Name and algorithm of the activation function in oneDNN.
        following: Quantization of the next layer's input, if that layer is also in int8.
        dtype: Dtype of inputs, and of outputs that are not quantized.
    """

    def __init__(
        self,
        linear: nn.Linear,
        inputs: Inputs,
        activation: tuple[str, str] = ("none", ""),
        following: Inputs | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.inputs, self.following, self.dtype = inputs, following, dtype
        self.activation, self.algorithm = activation
        self.scales, weight = quantize_weight(linear.weight.detach().float() * inputs.smoothing)
        self.weight = torch.ops.onednn.qlinear_prepack(weight, None)
        self.bias = None if linear.bias is None else linear.bias.detach().float()
        self.factor = inputs.factor.to(dtype)
        self.zero = torch.tensor(float(inputs.zero - ZERO_POINT), dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.uint8:
            x = quantize_input(x, self.factor, self.zero)
        after = self.following
        return _linear(
            x,
            self.weight,
            self.scales,
            self.dtype if after is None else torch.uint8,
            (self.inputs.scale, self.inputs.zero),
            self.bias,
            (1.0, 0) if after is None else (after.scale, after.zero),
            self.activation,
            self.algorithm,
        )


def quantize_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize weights, and return the scale of each output and the quantized weights.

    Args:
        weight: Weight matrix of a linear layer.

    Shapes:
        weight: (O, D); returns (O,) and (O, D).
    """
    limit = largest_weight()
    scales = weight.abs().amax(1).clamp(min=1e-8) / limit
    return scales, (weight / scales[:, None]).round().clamp(-limit, limit).to(torch.int8)


@cache
def largest_weight() -> int:
    """Return the largest quantized weight for which sums are exact: 127, or 63 without VNNI.

    Processors without VNNI add two products in 16 bits, where the maximum is 32,767. With weights
    up to 63, the sum is at most 2 · 255 · 63 = 32,130.
    """
    weight, x = torch.full((16, 64), 127, dtype=torch.int8), torch.full((1, 64), 255).byte()
    try:
        packed = torch.ops.onednn.qlinear_prepack(weight, None)
        sums = _linear(x, packed, torch.ones(16), torch.float32)
    except (AttributeError, RuntimeError):
        # `unavailable` reports this error later.
        return 127
    return 127 if bool((sums == 64 * 255 * 127).all()) else 63


def _linear(
    x: Tensor,
    weight: Tensor,
    scales: Tensor,
    dtype: torch.dtype,
    inputs: tuple[float, int] = (1.0, 0),
    bias: Tensor | None = None,
    outputs: tuple[float, int] = (1.0, 0),
    activation: str = "none",
    algorithm: str = "",
) -> Tensor:
    """Run oneDNN's int8 linear layer.

    `inputs` and `outputs` contain the scale and zero point of the inputs and outputs.

    Shapes:
        x: (N, D); returns (N, O).
    """
    arguments = x, *inputs, weight, scales, _zeros(len(scales)), bias, *outputs, dtype, activation
    out: Tensor = torch.ops.onednn.qlinear_pointwise(*arguments, [], algorithm)
    return out


@cache
def _zeros(count: int) -> Tensor:
    """Return zero points of 0 for the weights, whose quantization is symmetric."""
    return torch.zeros(count, dtype=torch.int)


def quantize_input(x: Tensor, factor: Tensor, zero: Tensor) -> Tensor:
    """Quantize the input of a layer to uint8.

    The values are first converted to int8. PyTorch does this four times faster than converting to
    uint8, and bf16 is most precise around 0.

    Args:
        x: Input of the layer.
        factor: Factor of each dimension, in the dtype of `x`.
        zero: Zero point minus `ZERO_POINT`, in the dtype of `x`.

    Shapes:
        x: (N, D); returns (N, D).
    """
    signed = (
        torch.addcmul(zero, x, factor).round_().clamp_(-ZERO_POINT, ZERO_POINT - 1).to(torch.int8)
    )
    # Inverting the first bit adds `ZERO_POINT`.
    return signed.view(torch.uint8).bitwise_xor_(ZERO_POINT)


@cache
def unavailable() -> str | None:
    """Return why PyTorch cannot run int8 layers on this machine, or None if it can.

    The result is tested, because these layers are not part of PyTorch's public API.
    """
    linear, x = trial()
    step = float(x.max() - x.min()) / 255
    inputs = Inputs(torch.full((32,), 1 / step), step, round(-float(x.min()) / step))
    try:
        with torch.no_grad():
            near = torch.allclose(Int8Linear(linear, inputs)(x), linear(x), atol=0.1)
    except (AttributeError, RuntimeError) as error:
        return f"the int8 layers of oneDNN failed ({error})"
    return None if near else "the int8 layers of oneDNN return wrong results"


def unsupported_reason(model: Model) -> str | None:
    """Return why a model cannot run in int8, or None if it can.

    Args:
        model: The model.
    """
    if isinstance(model.encoder, Transformer):
        return None
    return f"not supported by {type(model.encoder).__name__}"


# ---- Replacing layers


def replace_by_rows(model: Model, exact: Model) -> None:
    """Replace all linear layers in a copy of a model with int8 layers that have one scale per row.

    Args:
        model: Copy of the model, whose layers are replaced.
        exact: Model with the original weights.

    Raises:
        DeviceError: If the model or the machine does not support int8.
    """
    _check(model)
    dtype, weights = next(model.parameters()).dtype, dict(exact.named_modules())
    for name, part, attribute in linear_layers(model):
        setattr(part, attribute, Int8RowsLinear(cast(nn.Linear, weights[name]), dtype))
    for name, head in model.heads.items():
        if isinstance(head, CausalLM):
            head.output_layer = Int8RowsLinear(cast(CausalLM, exact.heads[name]), dtype)


def calibrated(inputs: Mapping[str, Inputs]) -> Replace:
    """Return a function that replaces the calibrated linear layers with int8 layers.

    The function raises DeviceError if the model or the machine does not support int8.

    Args:
        inputs: Quantization of the input of each layer, by layer name.
    """

    def replace(model: Model, exact: Model) -> None:
        _check(model)
        dtype, weights = next(model.parameters()).dtype, layers_of(exact)
        for name, part, attribute in linear_layers(model.encoder):
            if name in inputs:
                activation = fused_activation(part, attribute)
                following = inputs.get(f"{name[:-2]}down") if activation else None
                kind = NAMES[activation] if activation else ("none", "")
                layer = Int8Linear(weights[name], inputs[name], kind, following, dtype)
                setattr(part, attribute, layer)
                if activation is not None:
                    part.activation = nn.Identity()

    return replace


def _check(model: Model) -> None:
    """Raise DeviceError if the model or the machine does not support int8."""
    if reason := unsupported_reason(model) or unavailable():
        raise DeviceError(f"int8: {reason}; use another --precision")


# ---- Calibration


def layers_of(model: Model) -> dict[str, nn.Linear]:
    """Return the linear layers that can be quantized, by layer name.

    Args:
        model: The model.
    """
    return {name: getattr(part, key) for name, part, key in linear_layers(model.transformer)}


@torch.inference_mode()
def calibrate(model: Model, batches: Sequence[Batch]) -> dict[str, Inputs]:
    """Determine how to quantize the input of each layer, by running the model in fp32.

    Args:
        model: The model.
        batches: Batches of typical texts.

    Returns:
        The quantization of each layer's input, by layer name.
    """
    layers = layers_of(model)
    largest: dict[str, Tensor] = {}
    samples: dict[str, list[Tensor]] = {name: [] for name in layers}

    def record(name: str, x: Tensor) -> None:
        peak = x.abs().amax(0)
        largest[name] = torch.maximum(largest[name], peak) if name in largest else peak
        rows = torch.linspace(0, len(x) - 1, min(SAMPLED_ROWS, len(x))).long()
        samples[name].append(x[rows].clone())

    with record_inputs(layers, record):
        for batch in batches:
            model.encoder(batch)
    inputs = {}
    for name, linear in layers.items():
        # The previous layer computes this input, and its outputs have one scale for all values.
        if name.endswith(".down"):
            smoothing = torch.ones_like(largest[name])
        else:
            weights = linear.weight.detach().abs().amax(0).clamp(min=1e-5)
            smoothing = largest[name].clamp(min=1e-5) ** SMOOTHING / weights ** (1 - SMOOTHING)
            smoothing = smoothing.clamp(min=1e-3)
        low, high = _value_range(torch.cat(samples[name]) / smoothing, clip=name.endswith(".down"))
        scale = max(high - low, 1e-8) / 255
        # Round to bf16, as the computation does.
        factor = (1.0 / (smoothing * scale)).bfloat16().float()
        inputs[name] = Inputs(factor, scale, round(-low / scale))
    return inputs


def _value_range(x: Tensor, *, clip: bool) -> tuple[float, float]:
    """Return the lowest and highest value to quantize. The range always includes 0."""
    values = x.flatten().sort().values
    tail = int(CLIPPED_FRACTION * len(values)) if clip else 0
    return min(float(values[tail]), 0.0), max(float(values[-1 - tail]), 0.0)


@contextmanager
def record_inputs(
    layers: Mapping[str, nn.Linear], record: Callable[[str, Tensor], None]
) -> Iterator[None]:
    """Call `record` with the name and input of each layer that runs while the context is open.

    Args:
        layers: Layers to record, by name.
        record: Function that receives the name and input of a layer.
    """

    def hook(name: str) -> Any:
        return lambda _, arguments: record(name, arguments[0])

    handles = [linear.register_forward_pre_hook(hook(name)) for name, linear in layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
