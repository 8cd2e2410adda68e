"""Copies of a model with fewer layers or heads, or with more pieces or positions."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from msgspec import structs
from torch import Tensor, nn
from torch.nn import functional as F

from bertkit.errors import ConfigError
from bertkit.models import model as models
from bertkit.models.config import EncoderConfig
from bertkit.models.heads import LanguageModelHead
from bertkit.models.model import HeadMaker, Model, empty
from bertkit.nn.attention import Attention

Head = tuple[int, int]
"""A layer and a head of it, from 1."""


def keep_layers(model: Model, layers: Sequence[int]) -> Model:
    """Return a copy with only these layers, numbered from 1, in their order.

    Raises:
        ConfigError: If a layer does not exist or cannot be removed from the others, or the model
            is not a Transformer.
    """
    config = model.transformer.config
    if config.layer_sharing is not None or not config.norm.first:
        raise ConfigError(
            "layers: the model's layers share weights, or the first is unlike the others, so that "
            "none can be taken alone"
        )
    if sorted(set(layers)) != list(layers) or not all(0 < n <= config.layers for n in layers):
        raise ConfigError(
            f"layers: {list(layers)}; name layers from 1 to {config.layers}, ascending, each once"
        )
    names = {f"encoder.blocks.{layer - 1}.": place for place, layer in enumerate(layers)}
    taken = {
        f"encoder.blocks.{names[block]}.{name.removeprefix(block)}": weight
        for name, weight in model.state_dict().items()
        for block in names
        if name.startswith(block)
    }
    return _rebuilt(model, structs.replace(config, layers=len(layers)), taken)


def with_vocabulary(model: Model, size: int, parts: Mapping[int, Sequence[int]]) -> Model:
    """A copy with rows for `size` pieces; a new one is the mean of its old `parts`, or drawn like
    the others where it has none, by torch's generator: with their mean and spread.
    """

    def grown(rows: Tensor) -> Tensor:
        out = rows.new_zeros(size, *rows.shape[1:])
        if rows.ndim > 1:  # a fixed spread would be lost among vectors that have grown
            new = torch.randn(size - len(rows), *rows.shape[1:])
            out[len(rows) :] = rows.mean(0) + rows.std(0) * new
        out[: len(rows)] = rows
        for place, old in parts.items():
            out[place] = rows[list(old)].mean(0)
        return out

    weights = dict(model.named_parameters())  # A shared matrix has one name.
    rows = {name: grown(weights[name].detach()) for name in VOCABULARY if name in weights}
    if model.decoder is not None:
        rows["decoder.embedding.tokens.weight"] = rows["encoder.embedding.tokens.weight"]
    return _resized(model, rows, vocab=size)


VOCABULARY = (
    "encoder.embedding.tokens.weight",
    "heads.mlm.bias",
    "heads.lm.bias",
    "heads.lm.output",
)
"""Weights with a row for each piece."""


def with_positions(model: Model, length: int, how: Literal["tile", "interpolate"]) -> Model:
    """Return a copy with `length` learned positions, in the encoder and in a decoder.

    Args:
        model: The model.
        length: Number of positions of the copy.
        how: Whether to repeat the learned positions or to interpolate between them.

    Raises:
        ConfigError: If the model has no learned positions, or at least `length` of them.
    """
    weights = model.state_dict()
    tables = {name: weights[name] for name in POSITIONS if name in weights}
    if not tables:
        raise ConfigError("length: the model has no learned positions, and so none to extend")
    most = max(map(len, tables.values()))
    if length <= most:
        raise ConfigError(f"length: {length}; the model has {most} positions already")
    extend = tiled if how == "tile" else interpolated
    longer = {name: extend(rows, length) for name, rows in tables.items()}
    return _resized(model, longer, max_positions=length)


POSITIONS = tuple(f"{stack}.embedding.positions.weight" for stack in ("encoder", "decoder"))
"""Weights with a row for each position."""


def tiled(rows: Tensor, length: int) -> Tensor:
    """The rows again and again. Shapes: (T, E) -> (length, E)."""
    return rows[torch.arange(length) % rows.shape[0]]


def interpolated(rows: Tensor, length: int) -> Tensor:
    """The rows stretched, first and last where they were. Shapes: (T, E) -> (length, E)."""
    stretched = F.interpolate(rows.T[None], size=length, mode="linear", align_corners=True)
    return stretched[0].T.contiguous()


def _resized(model: Model, changed: Mapping[str, Tensor], **sizes: int) -> Model:
    """Return a copy with other sizes in the encoder and in a decoder, and `changed` weights."""
    decoder = None if model.decoder is None else structs.replace(model.decoder.config, **sizes)
    return _rebuilt(model, structs.replace(model.config, **sizes), changed, decoder)


def _rebuilt(
    model: Model,
    config: EncoderConfig,
    changed: Mapping[str, Tensor],
    decoder: EncoderConfig | None = None,
) -> Model:
    """Return a copy of the model with another configuration and with `changed` weights.

    `decoder` is the configuration of the decoder if it changes.
    """
    if decoder is None and model.decoder is not None:
        decoder = model.decoder.config

    def remade(name: str, part: nn.Module) -> HeadMaker:
        if isinstance(part, LanguageModelHead):  # it shares the embedding
            return lambda encoder: models.head(name, encoder)
        return lambda encoder: copy.deepcopy(part)

    makers = {name: remade(name, part) for name, part in model.heads.items()}
    built = empty(config, makers, labels=(), decoder=decoder).to_empty(device="cpu")
    weights = {**model.state_dict(), **changed}
    built.load_state_dict({name: weights[name] for name in built.state_dict()})
    return built.train(model.training)


# ---- heads


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
    """Raises: ConfigError for a head that is not there or shares its values, and for all of a
    layer.
    """
    config = model.transformer.config
    if config.kv_heads != config.heads:
        raise ConfigError("heads: the model's heads share keys and values; none goes alone")
    most, layers = config.heads, len(model.transformer.blocks)
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
    views = [
        attention.qkv.weight.unflatten(0, (3, heads, -1))[2, head],
        attention.out.weight.unflatten(1, (heads, -1))[:, head],
    ]
    if attention.qkv.bias is not None:
        views.append(attention.qkv.bias.unflatten(0, (3, heads, -1))[2, head])
    return views


def spare(model: Model) -> int:
    """How many heads can go."""
    return len(model.transformer.blocks) * (model.config.heads - 1) - len(dead(model))


def dead(model: Model) -> list[Head]:
    """The heads that are gone already."""
    heads = range(model.config.heads)
    return [
        (number, head + 1)
        for number, part in enumerate(attentions(model), 1)
        for head in sorted({*heads} - {*alive(part)})
    ]


def alive(part: Attention) -> list[int]:
    """The heads that something is made of; the first, where there is none."""
    columns = part.out.weight.detach().unflatten(1, (part.heads, -1))
    indices: list[int] = columns.ne(0).any(-1).any(0).nonzero().squeeze(1).tolist()
    return indices or [0]


def attentions(model: Model) -> list[Attention]:
    """One for each set of weights."""
    return [part for part in model.transformer.modules() if isinstance(part, Attention)]


def read_head(name: str) -> Head:
    """What "2.11" names. Raises: ConfigError for anything else."""
    layer, _, head = name.partition(".")
    if not (layer.isdecimal() and head.isdecimal() and len(name) <= 40):
        raise ConfigError(f"heads: {name[:40]!r}; write LAYER.HEAD, such as 2.11")
    return int(layer), int(head)
