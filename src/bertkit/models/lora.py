"""What of a model learns: all but its lowest layers, a layer more in each epoch, or adapters in
their place (LoRA).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Literal

from msgspec import Meta

from bertkit.config import Positive, Rate, Settings
from bertkit.errors import ConfigError
from bertkit.models.heads import LanguageModelHead
from bertkit.models.model import Model
from bertkit.models.transformer import Transformer
from bertkit.nn.attention import Attention, CrossAttention
from bertkit.nn.feedforward import FeedForward
from bertkit.nn.lora import LoRALinear

PLACES = {"qkv": ("qkv", "q", "kv"), "out": ("out",), "up": ("up",), "down": ("down",)}
"""The linear layers that a setting names; those of queries, keys and values may be apart."""


class LoRA(Settings, frozen=True):
    """Adapters that learn in place of the weights: Hu et al. 2021."""

    rank: Annotated[int, Meta(ge=0)] = 0
    """Rank of the adapters (LoRA) that learn in place of the model's weights; 0 for none."""
    alpha: Positive = 16.0
    """Scaling: the output of an adapter is multiplied by alpha / rank."""
    dropout: Rate = 0.0
    """Dropout of the input of the adapters."""
    layers: tuple[Literal["qkv", "out", "up", "down"], ...] = ("qkv", "out", "up", "down")
    """Linear layers with adapters: of attention and of feed-forward networks."""


LORA_RATE = 10.0
"""How many times faster adapters learn than a whole model (notes/2026-11.md, 2026-11-28)."""


def rate_factor(rank: int, *, head: str, batching: str) -> float:
    """`LORA_RATE` for adapters of a task that has such a head; 1 without, and where it was not
    tried: in tasks that write, or compare the texts of a step.
    """
    return LORA_RATE if rank and head != "lm" and batching != "step" else 1.0


def freeze(model: Model, layers: int) -> None:
    """Stop the lowest layers, and the embedding with them, from learning.

    Raises: ConfigError where there are not so many, or they share weights.
    """
    if layers > model.config.layers:
        raise ConfigError(f"frozen_layers: {layers}; the model has {model.config.layers} layers")
    if layers == 0:
        return
    if len(set(model.config.depths)) < model.config.layers:
        raise ConfigError(
            f"frozen_layers: {layers}; the model's layers share their weights, so that none "
            "can be frozen alone; leave it out"
        )
    place = depths([name for name, _ in model.named_parameters()])
    for name, weight in model.named_parameters():
        weight.requires_grad_(place[name] > layers)


def unfreeze(model: Model, learned: Collection[str], epoch: int) -> int:
    """Let those of the `learned` weights learn that an epoch is for, from 0: heads, and as many
    layers from the top, behind the last the embedding. Returns how many of these do not learn yet.

    Source: Howard & Ruder 2018, section 3.3, gradual unfreezing.
    """
    place = depths(learned)
    lowest = max(place.values()) - epoch
    for name, weight in model.named_parameters():
        if name in place:
            weight.requires_grad_(place[name] >= lowest)
    return len({depth for depth in place.values() if depth < lowest})


LOWEST = ("encoder.embedding.", "encoder.relative.", "encoder.distances.", "encoder.convolution.")
_LAYER = re.compile(r"encoder\.(?:blocks\.(\d+)\.|lstm\.\w+_l(\d+))")


def depths(names: Collection[str]) -> dict[str, int]:
    """Return the depth of each weight by its name.

    The embedding has depth 0, like all weights that the first layer uses, too. The layers follow,
    the last of which includes the final norm. Heads and a decoder are above them.

    Raises:
        ValueError: If an encoder weight has no depth.
    """
    layers = {n: int(m[1] or m[2]) + 1 for n in names if (m := _LAYER.match(n))}
    last = max(layers.values(), default=0)
    place = {}
    for name in names:
        if name in layers:
            place[name] = layers[name]
        elif name.startswith(LOWEST):
            place[name] = 0
        elif name.startswith("encoder.norm."):
            place[name] = last
        elif name.startswith("encoder."):
            raise ValueError(f"{name}: encoder weight without a depth")
        else:
            place[name] = last + 1
    return place


def add_lora(
    model: Model, lora: LoRA, sizes: Callable[[str, int], Sequence[int]], *, frozen_layers: int
) -> None:
    """Add adapters to the layers of a model; only they and the heads are trained.

    Args:
        model: The model. Its language model head is not trained.
        lora: Settings of the adapters.
        sizes: Returns the sizes of the parts of a weight, from its name and number of rows.
        frozen_layers: Number of the lowest layers of the encoder without adapters.

    Raises:
        ConfigError: If no layer is left, or the model is not a Transformer.
    """
    if not isinstance(model.encoder, Transformer):
        raise ConfigError(f"lora.rank requires a Transformer, got {type(model.encoder).__name__}")
    model.requires_grad_(False)
    for head in model.heads.values():
        head.requires_grad_(not isinstance(head, LanguageModelHead))
    names = [name for place in lora.layers for name in PLACES[place]]
    still = tuple(f"encoder.blocks.{layer}." for layer in range(frozen_layers))
    for where, part in list(model.named_modules()):
        if not isinstance(part, Attention | CrossAttention | FeedForward) or where.startswith(
            still
        ):
            continue
        for name in (name for name in names if hasattr(part, name)):
            linear = getattr(part, name)
            parts = sizes(f"{where}.{name}.weight", linear.out_features)
            adapted = LoRALinear(
                linear, parts, rank=lora.rank, alpha=lora.alpha, dropout=lora.dropout
            )
            setattr(part, name, adapted)
    if not adapters(model):
        raise ConfigError("lora.layers: no layer is left to have an adapter; name one")


def adapters(model: Model) -> dict[str, LoRALinear]:
    """The layers with adapters, by their names."""
    return {name: part for name, part in model.named_modules() if isinstance(part, LoRALinear)}


def merged(model: Model) -> Model:
    """A copy in which adapters are part of the weights; the model itself where it has none."""
    return merge(copy.deepcopy(model)) if adapters(model) else model


def merge(model: Model) -> Model:
    """The same in place."""
    for name, layer in adapters(model).items():
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, layer.merged())
    return model
