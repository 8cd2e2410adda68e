"""Attention heads that give nothing are not computed."""

from __future__ import annotations

import copy

import torch
from torch import nn

from bertkit.models.lora import adapters
from bertkit.models.model import Model
from bertkit.models.surgery import alive
from bertkit.models.transformer import Transformer
from bertkit.nn.attention import Attention


def without_pruned_heads(model: Model) -> Model:
    """The model without its pruned heads, as a copy; the model itself where it has none.

    The output weights of a pruned head are all zero.
    """
    if not isinstance(model.encoder, Transformer):
        return model
    if model.encoder.relative is not None:  # whose bias has a column for each head
        return model
    if adapters(model):  # which may give something again
        return model
    parts = [part for part in model.encoder.modules() if isinstance(part, Attention)]
    if not any(len(alive(part)) < part.heads for part in parts):
        return model
    model = copy.deepcopy(model)
    for part in (part for part in model.encoder.modules() if isinstance(part, Attention)):
        living = alive(part)
        if len(living) < part.heads:
            qkv = part.qkv
            part.qkv = _linear(
                qkv.weight.unflatten(0, (3, part.heads, -1))[:, living].flatten(0, 2),
                None
                if qkv.bias is None
                else qkv.bias.unflatten(0, (3, part.heads, -1))[:, living].flatten(),
            )
            mixing = part.out.weight.unflatten(1, (part.heads, -1))[:, living].flatten(1)
            part.out = _linear(mixing, part.out.bias)
            part.heads = part.kv_heads = len(living)
    return model


def _linear(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    made = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    made.weight = nn.Parameter(weight.detach().clone())
    if bias is not None:
        made.bias = nn.Parameter(bias.detach().clone())
    return made
