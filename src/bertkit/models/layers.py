"""A model with fewer layers, or heads."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from msgspec import structs
from torch import Tensor, nn

from bertkit.errors import ConfigError
from bertkit.models.model import Model
from bertkit.nn.attention import Attention

Head = tuple[int, int]
"""A layer and a head of it, from 1."""


def keep_layers(model: Model, layers: Sequence[int]) -> Model:
    """A copy with these layers alone, numbered from 1, in their order.

    Raises: ConfigError for layers that are not there, or cannot stand alone.
    """
    config = model.config
    if config.layer_sharing is not None or not config.norm.first:
        raise ConfigError(
            "layers: the model's layers share weights, or the first is unlike the others, so that "
            "none can be taken alone"
        )
    if sorted(set(layers)) != list(layers) or not all(0 < n <= config.layers for n in layers):
        raise ConfigError(
            f"layers: {list(layers)}; name layers from 1 to {config.layers}, ascending, each once"
        )
    model = copy.deepcopy(model)
    model.encoder.blocks = nn.ModuleList(model.encoder.blocks[layer - 1] for layer in layers)
    model.encoder.config = structs.replace(config, layers=len(layers))
    return model


def without_heads(model: Model, heads: Sequence[Head]) -> Model:
    """A copy with these heads pruned: their value and output weights are zero, so that they output
    zero and get no gradient. Where layers share weights, the first that has them counts.

    Raises: ConfigError as `check_heads` does.
    """
    check_heads(model, heads)
    model = copy.deepcopy(model)
    for number, attention in enumerate(attentions(model), 1):
        with torch.no_grad():
            for head in sorted({head for layer, head in heads if layer == number}):
                for weight in _of_head(attention, head - 1):
                    weight.zero_()
    return model


def check_heads(model: Model, heads: Sequence[Head]) -> None:
    """Raises: ConfigError for a head that is not there, and for all of a layer."""
    most, layers = model.config.heads, len(model.encoder.blocks)
    for layer, head in heads:
        if not (0 < layer <= layers and 0 < head <= most):
            raise ConfigError(
                f"heads: {layer}.{head}; name LAYER.HEAD, from 1.1 to {layers}.{most}"
            )
    for layer, _ in heads:
        if len({head for one, head in heads if one == layer}) == most:
            raise ConfigError(f"heads: all of layer {layer}; a layer keeps one at least")


def _of_head(attention: Attention, head: int) -> list[Tensor]:
    """What makes the values of a head, and what reads them: views."""
    heads = attention.heads
    found = [
        attention.qkv.weight.unflatten(0, (3, heads, -1))[2, head],
        attention.out.weight.unflatten(1, (heads, -1))[:, head],
    ]
    if attention.qkv.bias is not None:
        found.append(attention.qkv.bias.unflatten(0, (3, heads, -1))[2, head])
    return found


def attentions(model: Model) -> list[Attention]:
    """One for each set of weights."""
    return [part for part in model.encoder.blocks.modules() if isinstance(part, Attention)]


def read_head(name: str) -> Head:
    """What "2.11" names. Raises: ConfigError for anything else."""
    layer, _, head = name.partition(".")
    if not (layer.isdecimal() and head.isdecimal()):
        raise ConfigError(f"heads: {name[:40]!r}; write LAYER.HEAD, such as 2.11")
    return int(layer), int(head)
