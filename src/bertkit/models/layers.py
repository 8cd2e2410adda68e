"""A model with fewer layers."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from msgspec import structs
from torch import nn

from bertkit.errors import ConfigError
from bertkit.models.model import Model


def keep_layers(model: Model, layers: Sequence[int]) -> Model:
    """A copy with these layers alone, numbered from 1, in their order.

    Raises: ConfigError for layers that are not there, or cannot stand alone.
    """
    config = model.config
    if config.order is not None or config.norm == "pre":
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
