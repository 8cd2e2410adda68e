"""Linear layers whose weights oneDNN has packed for the CPU.

In fp32 on AMD CPUs, they are twice as fast as torch's linear layers, and the outputs differ by
3e-7. In bf16, oneDNN computes the layer and its activation in one call (notes/2026-11.md).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from bertkit import memory
from bertkit.errors import DeviceError
from bertkit.models.heads import CausalLM
from bertkit.models.lora import merged
from bertkit.models.model import Model
from bertkit.models.transformer import Transformer
from bertkit.nn.attention import Attention, CrossAttention
from bertkit.nn.feedforward import ACTIVATIONS, FeedForward

NAMES = {"gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh"), "relu": ("relu", "")}
"""bertkit's name of an activation -> oneDNN's name and algorithm."""


class PackedLinear(nn.Module):
    """Linear layer that also computes the activation in the same call, for inference only."""

    def __init__(self, linear: nn.Linear | CausalLM, activation: str | None = None) -> None:
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self.bias = None if linear.bias is None else linear.bias.detach()
        self.activation, self.algorithm = NAMES[activation] if activation else ("none", "")
        self.operator = torch.ops.mkldnn._linear_pointwise.default

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.operator(x, self.weight, self.bias, self.activation, [], self.algorithm)
        return out


LAYERS: Mapping[type[nn.Module], tuple[str, ...]] = {
    CrossAttention: ("q", "kv", "out"),
    Attention: ("qkv", "out"),
    FeedForward: ("up", "down"),
}
"""Type of a module in a Transformer block -> the attributes that contain its linear layers."""

Replace = Callable[[Model, Model], None]
"""Function that replaces layers in a copy of a model. Its arguments are the copy and the original.
"""


def linear_layers(stack: nn.Module) -> list[tuple[str, nn.Module, str]]:
    """Return the name of each linear layer in all blocks, with its parent module and attribute."""
    return [
        (f"{name}.{attribute}", part, attribute)
        for name, part in stack.named_modules()
        for attribute in LAYERS.get(type(part), ())
    ]


def fused_activation(part: nn.Module, attribute: str) -> str | None:
    """Return the activation that oneDNN can compute in the same call as a layer, or None."""
    if attribute != "up" or part.gated:
        return None
    names = {function: name for name, function in ACTIVATIONS.items() if name in NAMES}
    return names.get(cast(Any, part.activation))


def trial() -> tuple[nn.Linear, Tensor]:
    """Return a linear layer and an input for testing operators. All calls return the same values.

    The state of torch's random generator does not change, so the results of a seed do not depend on
    whether this function was called.
    """
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(0)
        return nn.Linear(32, 64), torch.randn(8, 32)


@cache
def unavailable(dtype: torch.dtype) -> str | None:
    """Return why this build of torch cannot pack weights, or None if it can.

    The operators are not a public API of torch, so they may be missing or behave differently.

    Args:
        dtype: Data type of the weights.
    """
    if not torch.backends.mkldnn.is_available():
        return "torch was built without oneDNN"
    linear, x = trial()
    linear, x = linear.to(dtype), x.to(dtype)
    try:
        with torch.no_grad():
            is_close = torch.allclose(PackedLinear(linear)(x), linear(x), atol=0.05)
    except (AttributeError, RuntimeError) as error:
        return f"oneDNN's packed linear failed ({error})"
    return None if is_close else "oneDNN's packed linear returns different values than torch"


def packed(
    model: Model,
    dtype: torch.dtype,
    int8: Replace | None = None,
    device: torch.device | None = None,
) -> Model:
    """Return a copy of a model for inference. On CPUs, its linear layers are packed if possible.

    Args:
        model: The model.
        dtype: Data type of the copy's weights.
        int8: Function that replaces linear layers by int8 layers.
        device: Device of the copy. Default: the device of the model.

    Raises:
        DeviceError: If int8 is not available, or the device does not have enough free memory.
    """
    memory.retain_freed()
    exact = merged(model)
    device = device or next(model.parameters()).device
    try:
        model = copy.deepcopy(exact).to(device, dtype).eval().requires_grad_(False)
    except torch.OutOfMemoryError:
        raise DeviceError(
            f"device: the model does not fit into the free memory of {device}; use another device "
            "such as --device cpu"
        ) from None
    _precompute_distances(model.encoder)
    on_cpu = device.type == "cpu"
    reason = unavailable(dtype) if on_cpu else f"requires the CPU, but the device is {device.type}"
    if reason is not None:
        if int8 is not None:
            raise DeviceError(f"int8: {reason}; choose another --precision")
        return model
    if int8 is not None:
        int8(model, exact)
    for stack in filter(None, (model.encoder, model.decoder)):
        _pack(stack)
    for head in model.heads.values():
        # A CausalLM head runs for every generated token, so packing makes it faster. A MaskedLM
        # head runs at a few positions only.
        if isinstance(head, CausalLM) and head.output_layer is None:
            head.output_layer = PackedLinear(head)
    return model


@torch.no_grad()
def _precompute_distances(stack: nn.Module) -> None:
    """Compute each layer's projections of distances once, because all texts use the same ones."""
    if not isinstance(stack, Transformer) or stack.distances is None:
        return
    vectors = stack.distances().vectors
    for part in stack.modules():
        if isinstance(part, Attention):
            part.distance_projections = part.project_distances(vectors)


def _pack(stack: nn.Module) -> None:
    """Pack the linear layers that were not replaced by int8 layers. `stack` is changed in place."""
    for _, part, attribute in linear_layers(stack):
        layer = getattr(part, attribute)
        if isinstance(layer, nn.Linear):
            activation = fused_activation(part, attribute)
            setattr(part, attribute, PackedLinear(layer, activation))
            if activation is not None:
                part.activation = nn.Identity()
