"""Linear layers with weights packed for the CPU by oneDNN.

In fp32 twice the rate of torch's own on AMD processors, at a difference of 3e-7; in bf16 the
activation is computed on the way out (docs/log.md).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from bertkit import memory
from bertkit.engine.quantize import Inputs, Int8Linear, trial
from bertkit.errors import DeviceError
from bertkit.models.model import Model
from bertkit.nn.attention import Attention, CrossAttention
from bertkit.nn.feedforward import ACTIVATIONS, FeedForward

NAMES = {"gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh"), "relu": ("relu", "")}
"""Our activation -> oneDNN's, and its algorithm."""


class PackedLinear(nn.Module):
    """x Wᵀ + b and an activation in one call. Inference only."""

    def __init__(self, linear: nn.Linear, activation: str | None = None) -> None:
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self.bias = None if linear.bias is None else linear.bias.detach()
        self.activation, self.algorithm = NAMES[activation] if activation else ("none", "")

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self.weight, self.bias, self.activation, [], self.algorithm
        )
        return out


@cache
def unavailable(dtype: torch.dtype) -> str | None:
    """None, or why this build of torch cannot pack (the operators are not public API)."""
    if not torch.backends.mkldnn.is_available():
        return "torch was built without oneDNN"
    linear, x = trial()
    linear, x = linear.to(dtype), x.to(dtype)
    try:
        with torch.no_grad():
            near = torch.allclose(PackedLinear(linear)(x), linear(x), atol=0.05)
    except (AttributeError, RuntimeError) as error:
        return f"oneDNN's packed linear is not usable: {error}"
    return None if near else "oneDNN's packed linear gives other numbers than torch's"


def packed(model: Model, dtype: torch.dtype, int8: Mapping[str, Inputs] | None = None) -> Model:
    """A copy of the model for inference, its large linear layers packed where that is possible.

    `int8` names those that compute in integers, and how their inputs are rounded.
    Raises: DeviceError where they cannot.
    """
    memory.retain_freed()
    exact = dict(model.encoder.named_modules())
    model = copy.deepcopy(model).to(dtype).eval().requires_grad_(False)
    device = next(model.parameters()).device.type
    reason = unavailable(dtype) if device == "cpu" else f"layers are not packed on {device}"
    if reason is not None:
        if int8:
            raise DeviceError(f"int8: {reason}; choose another --precision")
        return model
    names = {function: name for name, function in ACTIVATIONS.items()}
    int8 = int8 or {}

    def place(
        part: nn.Module, where: str, name: str, activation: str | None, after: str = ""
    ) -> None:
        path = f"{where}.{name}"
        if path in int8:
            linear: Any = getattr(exact[where], name)
            kind = NAMES[activation] if activation else ("none", "")
            setattr(part, name, Int8Linear(linear, int8[path], kind, int8.get(after), dtype))
        else:
            setattr(part, name, PackedLinear(getattr(part, name), activation))

    stacks = list(model.encoder.named_modules())
    if model.decoder is not None:
        stacks += model.decoder.named_modules(prefix="decoder")
    for where, part in stacks:
        if isinstance(part, CrossAttention):
            for name in ("q", "kv", "out"):
                place(part, where, name, None)
        elif isinstance(part, Attention):
            place(part, where, "qkv", None)
            place(part, where, "out", None)
        elif isinstance(part, FeedForward):
            name = names[part.activation]
            fused = name if name in NAMES and not part.gated else None
            place(part, where, "up", fused, f"{where}.down" if fused else "")
            place(part, where, "down", None)
            if fused:
                part.activation = nn.Identity()
    return model
