"""Linear layers in 8-bit integers: how their inputs are rounded, found on real texts.

Weights have a scale for each output, inputs one for the layer, after each input number was divided
by its share of the difficulty (SmoothQuant: Xiao et al. 2023, equation 4). Sums are exact; what
comes out is of the model's precision, or what the next layer reads where that is of integers too.
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
"""How much of a large input number's difficulty moves into its weights."""

CLIPPED_FRACTION = 1e-5
"""Share of the values behind an activation that may be cut at either end."""

ZERO_POINT = 128
"""Of the integers from 0 to 255."""

SAMPLED_ROWS = 512
"""Rows of a batch that are kept to find the ends by."""


@dataclass(frozen=True)
class Inputs:
    """How a layer's input becomes 8 bits: round(x * factor) + zero, from 0 to 255.

    Shapes: factor (D,). `scale` is a step's size once the smoothing is taken out.
    """

    factor: Tensor
    scale: float
    zero: int

    @property
    def smoothing(self) -> Tensor:
        """What each number was divided by, and its weights multiplied. Shapes: (D,)."""
        return 1.0 / (self.factor * self.scale)


def faster(inputs: Mapping[str, Inputs], dtype: torch.dtype) -> Mapping[str, Inputs]:
    """Those of the layers that integers make faster than `dtype` does: where a processor multiplies
    bf16 by tiles, attention's take longer to have their inputs rounded than they gain
    (notes/2026-11.md).
    """
    if dtype != torch.bfloat16 or not has_amx():
        return inputs
    return {name: one for name, one in inputs.items() if name.endswith((".up", ".down"))}


class Int8RowsLinear(nn.Module):
    """x Wᵀ + b in integers, each row of x rounded by its own largest number. Inference only, on a
    CPU.

    A row's result is the same to the bit in any company, as sums of integers are exact. Without a
    look at texts: Dettmers et al. 2022, section 2.1, vector-wise quantization.
    """

    def __init__(self, linear: nn.Linear | CausalLM, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.scales, weight = quantized(linear.weight.detach().float())
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
    """x Wᵀ + b and an activation, in integers. Inference only, on a CPU."""

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
        self.scales, weight = quantized(linear.weight.detach().float() * inputs.smoothing)
        self.weight = torch.ops.onednn.qlinear_prepack(weight, None)
        self.bias = None if linear.bias is None else linear.bias.detach().float()
        self.factor = inputs.factor.to(dtype)
        self.zero = torch.tensor(float(inputs.zero - ZERO_POINT), dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.uint8:
            x = rounded(x, self.factor, self.zero)
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


def quantized(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The scale of each output, and the weights in 8 bits. Shapes: (O, D) -> (O,), (O, D)."""
    most = largest_weight()
    scales = weight.abs().amax(1).clamp(min=1e-8) / most
    return scales, (weight / scales[:, None]).round().clamp(-most, most).to(torch.int8)


@cache
def largest_weight() -> int:
    """The largest weight that sums are exact with: 127, or 63 on processors without VNNI.

    Those add two products in 16 bits, which end at 32,767: 2 · 255 · 63 = 32,130 fits.
    """
    weight, x = torch.full((16, 64), 127, dtype=torch.int8), torch.full((1, 64), 255).byte()
    try:
        packed = torch.ops.onednn.qlinear_prepack(weight, None)
        sums = _linear(x, packed, torch.ones(16), torch.float32)
    except (AttributeError, RuntimeError):  # `unavailable` says so
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
    """OneDNN's linear layer of integers; the sizes of a step, and what stands for zero, of inputs
    and outputs. Shapes: (N, D) -> (N, O).
    """
    given = x, *inputs, weight, scales, _zeros(len(scales)), bias, *outputs, dtype, activation
    out: Tensor = torch.ops.onednn.qlinear_pointwise(*given, [], algorithm)
    return out


@cache
def _zeros(count: int) -> Tensor:
    """What stands for zero among the weights of each output."""
    return torch.zeros(count, dtype=torch.int)


def rounded(x: Tensor, factor: Tensor, zero: Tensor) -> Tensor:
    """The input as integers, all of one dtype; `zero` is what stands for zero, less `ZERO_POINT`.
    Shapes: (N, D) -> (N, D) of uint8.

    By way of int8: torch converts to it four times as fast, and bf16 is finest around 0.
    """
    signed = (
        torch.addcmul(zero, x, factor).round_().clamp_(-ZERO_POINT, ZERO_POINT - 1).to(torch.int8)
    )
    return signed.view(torch.uint8).bitwise_xor_(ZERO_POINT)  # its first bit: `ZERO_POINT` more


@cache
def unavailable() -> str | None:
    """None, or why this build of torch cannot (the operators are not public API)."""
    linear, x = trial()
    step = float(x.max() - x.min()) / 255
    inputs = Inputs(torch.full((32,), 1 / step), step, round(-float(x.min()) / step))
    try:
        with torch.no_grad():
            near = torch.allclose(Int8Linear(linear, inputs)(x), linear(x), atol=0.1)
    except (AttributeError, RuntimeError) as error:
        return f"oneDNN's integer layers are not usable: {error}"
    return None if near else "oneDNN's integer layers give other numbers than torch's"


def unfit(model: Model) -> str | None:
    """Return why int8 is not supported by a model, or None if it is."""
    if isinstance(model.encoder, Transformer):
        return None
    return f"not supported by {type(model.encoder).__name__}"


# ---- replacement of layers


def replace_by_rows(model: Model, exact: Model) -> None:
    """Replace all linear layers of a copy of a model by layers whose rows have their own scales.

    Raises:
        DeviceError: If the model or the machine does not support them.
    """
    _check(model)
    dtype, weights = next(model.parameters()).dtype, dict(exact.named_modules())
    for name, part, attribute in linear_layers(model):
        setattr(part, attribute, Int8RowsLinear(cast(nn.Linear, weights[name]), dtype))
    for name, head in model.heads.items():
        if isinstance(head, CausalLM):
            head.output_layer = Int8RowsLinear(cast(CausalLM, exact.heads[name]), dtype)


def calibrated(inputs: Mapping[str, Inputs]) -> Replace:
    """Return a function that replaces the linear layers whose inputs are calibrated.

    It raises DeviceError if the model or the machine does not support layers in integers.
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
    """Check that a model can have layers in integers on this machine."""
    if reason := unfit(model) or unavailable():
        raise DeviceError(f"int8: {reason}; choose another --precision")


# ---- calibration


def layers_of(model: Model) -> dict[str, nn.Linear]:
    """Return the linear layers that may become integers, by name."""
    return {name: getattr(part, key) for name, part, key in linear_layers(model.transformer)}


@torch.inference_mode()
def calibrate(model: Model, batches: Sequence[Batch]) -> dict[str, Inputs]:
    """How the input of each layer is rounded, by what it is on these batches, in fp32."""
    layers = layers_of(model)
    largest: dict[str, Tensor] = {}
    samples: dict[str, list[Tensor]] = {name: [] for name in layers}

    def see(name: str, x: Tensor) -> None:
        most = x.abs().amax(0)
        largest[name] = torch.maximum(largest[name], most) if name in largest else most
        rows = torch.linspace(0, len(x) - 1, min(SAMPLED_ROWS, len(x))).long()
        samples[name].append(x[rows].clone())

    with watched(layers, see):
        for batch in batches:
            model.encoder(batch)
    inputs = {}
    for name, linear in layers.items():
        if name.endswith(".down"):  # what the layer before writes has one scale for all numbers
            smoothing = torch.ones_like(largest[name])
        else:
            weights = linear.weight.detach().abs().amax(0).clamp(min=1e-5)
            smoothing = largest[name].clamp(min=1e-5) ** SMOOTHING / weights ** (1 - SMOOTHING)
            smoothing = smoothing.clamp(min=1e-3)
        low, high = _ends(torch.cat(samples[name]) / smoothing, cut=name.endswith(".down"))
        scale = max(high - low, 1e-8) / 255
        factor = (1.0 / (smoothing * scale)).bfloat16().float()  # as it is when it is used
        inputs[name] = Inputs(factor, scale, round(-low / scale))
    return inputs


def _ends(x: Tensor, *, cut: bool) -> tuple[float, float]:
    """The range that 8 bits are to cover; 0 is always in it."""
    values = x.flatten().sort().values
    tail = int(CLIPPED_FRACTION * len(values)) if cut else 0
    return min(float(values[tail]), 0.0), max(float(values[-1 - tail]), 0.0)


@contextmanager
def watched(layers: Mapping[str, nn.Linear], see: Callable[[str, Tensor], None]) -> Iterator[None]:
    """Meanwhile `see` is called with the input of each layer."""

    def hook(name: str) -> Any:
        return lambda _, arguments: see(name, arguments[0])

    handles = [linear.register_forward_pre_hook(hook(name)) for name, linear in layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
