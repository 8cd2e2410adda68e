"""Trainable parts of a model: adapters (LoRA), freezing, and gradual unfreezing."""

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

ATTRIBUTES = {"qkv": ("qkv", "q", "kv"), "out": ("out",), "up": ("up",), "down": ("down",)}
"""Value in `LoRA.layers` -> attributes of the linear layers that get an adapter. Queries, keys, and
values may have separate layers.
"""


class LoRA(Settings, frozen=True):
    """Settings of low-rank adapters, which are trained instead of weights. Hu et al. 2021."""

    rank: Annotated[int, Meta(ge=0)] = 0
    """Rank of the adapters (LoRA), which are trained instead of the model's weights. 0 disables
    them.
    """
    alpha: Positive = 16.0
    """Scale of the adapters. The output of an adapter is multiplied by alpha / rank."""
    dropout: Rate = 0.0
    """Dropout probability of the adapters' input."""
    layers: tuple[Literal["qkv", "out", "up", "down"], ...] = ("qkv", "out", "up", "down")
    """Linear layers of attention (qkv, out) and of feed-forward networks (up, down) that get an
    adapter.
    """


LORA_RATE = 10.0
"""Factor by which the default learning rate is higher for adapters than for a complete model
(notes/2026-11.md, 2026-11-28).
"""


def rate_factor(rank: int, *, head: str, batching: str) -> float:
    """Return the factor by which the default learning rate is multiplied.

    It is `LORA_RATE` if adapters are trained, and 1 otherwise. It is also 1 for tasks for which
    `LORA_RATE` was not tested: generation, and losses that compare all texts of a training step.

    Args:
        rank: Rank of the adapters, or 0 without adapters.
        head: Name of the task's head.
        batching: How the task forms batches.
    """
    return LORA_RATE if rank and head != "lm" and batching != "step" else 1.0


def freeze(model: Model, layers: int) -> None:
    """Freeze the embedding and the lowest layers, so that training does not change them.

    Args:
        model: The model.
        layers: Number of layers to freeze. 0 freezes nothing.

    Raises:
        ConfigError: If the model has fewer layers, or its layers share weights.
    """
    if layers > model.config.layers:
        raise ConfigError(f"frozen_layers must be at most {model.config.layers}, got {layers}")
    if layers == 0:
        return
    if len(set(model.config.depths)) < model.config.layers:
        raise ConfigError(
            "frozen_layers is not supported by models whose layers share weights; set it to 0"
        )
    depth_of = depths([name for name, _ in model.named_parameters()])
    for name, weight in model.named_parameters():
        weight.requires_grad_(depth_of[name] > layers)


def unfreeze(model: Model, learned: Collection[str], epoch: int) -> int:
    """Select the layers to train in an epoch (gradual unfreezing).

    Epoch 0 trains only the heads. Each later epoch also trains the next layer from the top, and
    finally the embedding. Source: Howard & Ruder 2018, section 3.3.

    Args:
        model: The model.
        learned: Names of all weights that the whole training includes.
        epoch: Number of the epoch, starting at 0.

    Returns:
        The number of layers that are still frozen.
    """
    depth_of = depths(learned)
    lowest = max(depth_of.values()) - epoch
    for name, weight in model.named_parameters():
        if name in depth_of:
            weight.requires_grad_(depth_of[name] >= lowest)
    return len({depth for depth in depth_of.values() if depth < lowest})


LOWEST = ("encoder.embedding.", "encoder.relative.", "encoder.distances.", "encoder.convolution.")
"""Prefixes of the names of weights that the first layer uses, but that belong to no layer."""
_LAYER = re.compile(r"encoder\.(?:blocks\.(\d+)\.|lstm\.\w+_l(\d+))")


def depths(names: Collection[str]) -> dict[str, int]:
    """Return the depth of each weight, by name.

    The embedding and the other weights in `LOWEST` have depth 0. The layers have the depths 1, 2,
    and so on. The final norm has the depth of the last layer. Heads and the decoder have the next
    depth after it.

    Raises:
        ValueError: If an encoder weight has no depth.
    """
    layers = {n: int(m[1] or m[2]) + 1 for n in names if (m := _LAYER.match(n))}
    last = max(layers.values(), default=0)
    depth_of = {}
    for name in names:
        if name in layers:
            depth_of[name] = layers[name]
        elif name.startswith(LOWEST):
            depth_of[name] = 0
        elif name.startswith("encoder.norm."):
            depth_of[name] = last
        elif name.startswith("encoder."):
            raise ValueError(f"{name}: the depth of this encoder weight is unknown")
        else:
            depth_of[name] = last + 1
    return depth_of


def add_lora(
    model: Model, lora: LoRA, sizes: Callable[[str, int], Sequence[int]], *, frozen_layers: int
) -> None:
    """Add adapters to a model, and freeze all other weights except those of heads.

    Args:
        model: The model. If it has a language model head, the head is frozen as well.
        lora: Settings of the adapters.
        sizes: Function that takes the name and the number of rows of a weight, and returns the
            number of rows of each of its parts.
        frozen_layers: Number of layers of the encoder, from the lowest, that get no adapters.

    Raises:
        ConfigError: If no layer gets an adapter, or the model is not a Transformer.
    """
    if not isinstance(model.encoder, Transformer):
        raise ConfigError(f"lora.rank requires a Transformer, got {type(model.encoder).__name__}")
    model.requires_grad_(False)
    for head in model.heads.values():
        head.requires_grad_(not isinstance(head, LanguageModelHead))
    names = [name for setting in lora.layers for name in ATTRIBUTES[setting]]
    frozen = tuple(f"encoder.blocks.{layer}." for layer in range(frozen_layers))
    for path, part in list(model.named_modules()):
        if not isinstance(part, Attention | CrossAttention | FeedForward) or path.startswith(
            frozen
        ):
            continue
        for name in (name for name in names if hasattr(part, name)):
            linear = getattr(part, name)
            parts = sizes(f"{path}.{name}.weight", linear.out_features)
            adapted = LoRALinear(
                linear, parts, rank=lora.rank, alpha=lora.alpha, dropout=lora.dropout
            )
            setattr(part, name, adapted)
    if not adapters(model):
        raise ConfigError("lora.layers: no layer is left for an adapter; add a layer")


def adapters(model: Model) -> dict[str, LoRALinear]:
    """Return the linear layers that have an adapter, by name."""
    return {name: part for name, part in model.named_modules() if isinstance(part, LoRALinear)}


def merged(model: Model) -> Model:
    """Return a copy with merged adapters, or the model itself if it has no adapters."""
    return merge(copy.deepcopy(model)) if adapters(model) else model


def merge(model: Model) -> Model:
    """Merge adapters into the weights, in place."""
    for name, layer in adapters(model).items():
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, layer.merged())
    return model
