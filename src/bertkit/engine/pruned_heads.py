"""Removal of pruned attention heads for inference."""

from __future__ import annotations

import copy

import torch
from torch import nn

from bertkit.models.lora import adapters
from bertkit.models.model import Model
from bertkit.models.surgery import active_heads
from bertkit.models.transformer import Transformer
from bertkit.nn.attention import Attention


def without_pruned_heads(model: Model) -> Model:
    """Return a copy of a model without its pruned heads, or the model if none can be removed.

    A head is pruned if all its output weights are zero.

    Args:
        model: The model.
    """
    if not isinstance(model.encoder, Transformer):
        return model
    # The relative position bias has one column per head, so that heads cannot be removed.
    if model.encoder.relative is not None:
        return model
    # Merging LoRA adapters can make a pruned head active again.
    if adapters(model):
        return model
    parts = [part for part in model.encoder.modules() if isinstance(part, Attention)]
    if not any(len(active_heads(part)) < part.heads for part in parts):
        return model
    model = copy.deepcopy(model)
    for part in (part for part in model.encoder.modules() if isinstance(part, Attention)):
        active = active_heads(part)
        if len(active) < part.heads:
            qkv = part.qkv
            part.qkv = _linear(
                qkv.weight.unflatten(0, (3, part.heads, -1))[:, active].flatten(0, 2),
                None
                if qkv.bias is None
                else qkv.bias.unflatten(0, (3, part.heads, -1))[:, active].flatten(),
            )
            output_weight = part.out.weight.unflatten(1, (part.heads, -1))[:, active].flatten(1)
            part.out = _linear(output_weight, part.out.bias)
            part.heads = part.kv_heads = len(active)
    return model


def _linear(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    linear.weight = nn.Parameter(weight.detach().clone())
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach().clone())
    return linear
