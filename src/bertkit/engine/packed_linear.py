"""Linear layers with weights packed for the CPU by oneDNN.

In fp32 twice the rate of torch's own on AMD processors, at a difference of 3e-7; in bf16 the
activation is computed on the way out (notes/2026-11.md).
"""

from __future__ import annotations

import copy
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from bertkit import memory
from bertkit.engine import quantize
from bertkit.engine.quantize import Int8, Int8Linear, Int8RowsLinear, trial
from bertkit.errors import DeviceError
from bertkit.models.heads import CausalLM
from bertkit.models.lora import merged
from bertkit.models.model import Model
from bertkit.models.transformer import Transformer
from bertkit.nn.attention import Attention, CrossAttention
from bertkit.nn.feedforward import ACTIVATIONS, FeedForward

NAMES = {"gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh"), "relu": ("relu", "")}
"""Our activation -> oneDNN's, and its algorithm."""


class PackedLinear(nn.Module):
    """x Wᵀ + b and an activation in one call. Inference only."""

    def __init__(self, linear: nn.Linear | CausalLM, activation: str | None = None) -> None:
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self.bias = None if linear.bias is None else linear.bias.detach()
        self.activation, self.algorithm = NAMES[activation] if activation else ("none", "")
        self.product = torch.ops.mkldnn._linear_pointwise.default

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.product(x, self.weight, self.bias, self.activation, [], self.algorithm)
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


def packed(
    model: Model,
    dtype: torch.dtype,
    int8: Int8 | None = None,
    device: torch.device | None = None,
) -> Model:
    """A copy of the model for inference, its large linear layers packed where that is possible.

    `int8` names those that compute in integers, and how their inputs are rounded, or says that all
    do by rows; `device` is where the copy lies, by default where the model does.
    Raises: DeviceError where they cannot, or where the device has too little memory.
    """
    memory.retain_freed()
    exact = merged(model)
    device = device or next(model.parameters()).device
    try:
        model = copy.deepcopy(exact).to(device, dtype).eval().requires_grad_(False)
    except torch.OutOfMemoryError:
        raise DeviceError(
            f"device: the model does not fit into what memory {device} has left; use another, "
            "such as --device cpu"
        ) from None
    _place(model.encoder)
    on_cpu = device.type == "cpu"
    reason = unavailable(dtype) if on_cpu else f"layers are not packed on {device.type}"
    if int8:
        reason = reason or quantize.unfit(model) or quantize.unavailable()
    if reason is not None:
        if int8:
            raise DeviceError(f"int8: {reason}; choose another --precision")
        return model
    _pack(model.encoder, exact.encoder, dtype, int8 or {})
    if model.decoder is not None:
        assert exact.decoder is not None
        _pack(model.decoder, exact.decoder, dtype, int8 if int8 == "rows" else {})
    for name, head in model.heads.items():
        if isinstance(head, CausalLM):  # it runs at every step, MaskedLM at a few places
            of: Any = exact.heads[name]
            by_rows = int8 == "rows"
            head.product = Int8RowsLinear(of, dtype) if by_rows else PackedLinear(head)
    return model


@torch.no_grad()
def _place(stack: nn.Module) -> None:
    """Compute what layers make of distances, which is the same for all texts."""
    if not isinstance(stack, Transformer) or stack.distances is None:
        return
    vectors = stack.distances().vectors
    for part in stack.modules():
        if isinstance(part, Attention):
            part.distant = part.of_distances(vectors)


def _pack(stack: nn.Module, exact: nn.Module, dtype: torch.dtype, int8: Int8) -> None:
    """Pack its layers in place; `exact` has the weights that are rounded."""
    names = {function: name for name, function in ACTIVATIONS.items()}
    weights = dict(exact.named_modules())

    def place(
        part: nn.Module, where: str, name: str, activation: str | None = None, after: str = ""
    ) -> None:
        path, linear = f"{where}.{name}", cast(nn.Linear, getattr(weights[where], name))
        if int8 == "rows":
            setattr(part, name, Int8RowsLinear(linear, dtype))
        elif path in int8:
            kind = NAMES[activation] if activation else ("none", "")
            setattr(part, name, Int8Linear(linear, int8[path], kind, int8.get(after), dtype))
        else:
            setattr(part, name, PackedLinear(getattr(part, name), activation))

    for where, part in list(stack.named_modules()):
        if isinstance(part, CrossAttention):
            for name in ("q", "kv", "out"):
                place(part, where, name)
        elif isinstance(part, Attention):
            place(part, where, "qkv")
            place(part, where, "out")
        elif isinstance(part, FeedForward):
            name = names[part.activation]
            fused = name in NAMES and not part.gated and int8 != "rows"
            place(part, where, "up", name if fused else None, f"{where}.down" if fused else "")
            place(part, where, "down")
            if fused:
                part.activation = nn.Identity()
