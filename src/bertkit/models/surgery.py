"""Copies of a model with fewer layers or heads, a larger vocabulary, or more positions."""

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
"""Attention head, as the number of its layer and its number in the layer. Both start at 1."""


def keep_layers(model: Model, layers: Sequence[int]) -> Model:
    """Return a copy of a model that keeps only some of its layers.

    Args:
        model: The model.
        layers: Numbers of the layers to keep, in ascending order. The first layer is 1.

    Raises:
        ConfigError: If a layer does not exist, the layers share weights, the attention of the first
            layer has no norm, or the model is not a Transformer.
    """
    config = model.transformer.config
    if config.layer_sharing is not None or not config.norm.first:
        raise ConfigError(
            "layers cannot be selected if they share weights, or if the first layer has no norm; "
            "use another model"
        )
    if sorted(set(layers)) != list(layers) or not all(0 < n <= config.layers for n in layers):
        raise ConfigError(
            f"layers must be ascending numbers from 1 to {config.layers}, got {list(layers)}"
        )
    names = {f"encoder.blocks.{layer - 1}.": index for index, layer in enumerate(layers)}
    selected = {
        f"encoder.blocks.{names[block]}.{name.removeprefix(block)}": weight
        for name, weight in model.state_dict().items()
        for block in names
        if name.startswith(block)
    }
    return _rebuilt(model, structs.replace(config, layers=len(layers)), selected)


def with_vocabulary(model: Model, size: int, parts: Mapping[int, Sequence[int]]) -> Model:
    """Return a copy of a model with a larger vocabulary.

    The embedding of a new token is the mean of the embeddings of its `parts`. If a token has no
    parts, its embedding is sampled with torch's generator from a normal distribution that has the
    mean and the standard deviation of the old embeddings.

    Args:
        model: The model.
        size: Vocabulary size of the copy.
        parts: Ids of new tokens -> ids of the old tokens that they consist of.
    """

    def resize(rows: Tensor) -> Tensor:
        out = rows.new_zeros(size, *rows.shape[1:])
        # The default initialization is not used, because trained vectors are larger.
        if rows.ndim > 1:
            new = torch.randn(size - len(rows), *rows.shape[1:])
            out[len(rows) :] = rows.mean(0) + rows.std(0) * new
        out[: len(rows)] = rows
        for index, token_ids in parts.items():
            out[index] = rows[list(token_ids)].mean(0)
        return out

    weights = dict(model.named_parameters())  # A shared matrix is listed once.
    rows = {name: resize(weights[name].detach()) for name in VOCABULARY if name in weights}
    if model.decoder is not None:
        rows["decoder.embedding.tokens.weight"] = rows["encoder.embedding.tokens.weight"]
    return _resized(model, rows, vocab=size)


VOCABULARY = (
    "encoder.embedding.tokens.weight",
    "heads.mlm.bias",
    "heads.lm.bias",
    "heads.lm.output",
)
"""Names of the weights that have one row per token of the vocabulary."""


def with_positions(model: Model, length: int, how: Literal["tile", "interpolate"]) -> Model:
    """Return a copy of a model with more learned positions, also in the decoder if there is one.

    Args:
        model: The model.
        length: Number of positions of the copy.
        how: Whether to repeat the learned positions (`tile`) or to interpolate between them.

    Raises:
        ConfigError: If the model has no learned positions, or already has `length` or more.
    """
    weights = model.state_dict()
    tables = {name: weights[name] for name in POSITIONS if name in weights}
    if not tables:
        raise ConfigError("length is not supported: the model has no learned positions to extend")
    current = max(map(len, tables.values()))
    if length <= current:
        raise ConfigError(f"length must be greater than {current} (current length), got {length}")
    extend = tile if how == "tile" else interpolate
    longer = {name: extend(rows, length) for name, rows in tables.items()}
    return _resized(model, longer, max_positions=length)


POSITIONS = tuple(f"{stack}.embedding.positions.weight" for stack in ("encoder", "decoder"))
"""Names of the weights that have one row per position."""


def tile(rows: Tensor, length: int) -> Tensor:
    """Repeat the rows of a table up to the given length. Shapes: (T, E) -> (length, E)."""
    return rows[torch.arange(length) % rows.shape[0]]


def interpolate(rows: Tensor, length: int) -> Tensor:
    """Stretch a table to the given length by interpolation. Shapes: (T, E) -> (length, E)."""
    stretched = F.interpolate(rows.T[None], size=length, mode="linear", align_corners=True)
    return stretched[0].T.contiguous()


def _resized(model: Model, changed: Mapping[str, Tensor], **sizes: int) -> Model:
    """Return a copy with `changed` weights, and with these sizes in all configurations."""
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

    def maker_of(name: str, part: nn.Module) -> HeadMaker:
        # A language model head is built again, so that it uses the embedding of the copy.
        if isinstance(part, LanguageModelHead):
            return lambda encoder: models.head(name, encoder)
        return lambda encoder: copy.deepcopy(part)

    makers = {name: maker_of(name, part) for name, part in model.heads.items()}
    copied = empty(config, makers, labels=(), decoder=decoder).to_empty(device="cpu")
    weights = {**model.state_dict(), **changed}
    copied.load_state_dict({name: weights[name] for name in copied.state_dict()})
    return copied.train(model.training)


# ---- Heads


def without_heads(model: Model, heads: Sequence[Head]) -> Model:
    """Return a copy of a model in which some attention heads are pruned.

    The value and output weights of a pruned head are set to zero, so that the head outputs zero and
    gets no gradient. All layers that share the same weights count as one layer.

    Args:
        model: The model.
        heads: The heads to prune.

    Raises:
        ConfigError: See `check_heads`.
    """
    check_heads(model, heads)
    model = copy.deepcopy(model)
    for number, attention in enumerate(attention_layers(model), 1):
        with torch.no_grad():
            for head in sorted({head for layer, head in heads if layer == number}):
                for weight in _value_weights(attention, head - 1):
                    weight.zero_()
    return model


def check_heads(model: Model, heads: Sequence[Head]) -> None:
    """Check that heads can be pruned.

    Args:
        model: The model.
        heads: The heads to prune.

    Raises:
        ConfigError: If a head does not exist or shares its keys and values with other heads, or if
            a layer would have no heads left.
    """
    config = model.transformer.config
    if config.kv_heads != config.heads:
        raise ConfigError("heads that share keys and values cannot be pruned; use another model")
    max_head, layers = config.heads, len(model.transformer.blocks)
    for layer, head in heads:
        if not (0 < layer <= layers and 0 < head <= max_head):
            raise ConfigError(
                f"heads must be LAYER.HEAD from 1.1 to {layers}.{max_head}, got {layer}.{head}"
            )
    for layer, _ in heads:
        if len({head for number, head in heads if number == layer}) == max_head:
            raise ConfigError(f"heads: layer {layer} must keep at least one head; prune fewer")


def _value_weights(attention: Attention, head: int) -> list[Tensor]:
    """Return views of the value and output weights of a head."""
    heads = attention.heads
    views = [
        attention.qkv.weight.unflatten(0, (3, heads, -1))[2, head],
        attention.out.weight.unflatten(1, (heads, -1))[:, head],
    ]
    if attention.qkv.bias is not None:
        views.append(attention.qkv.bias.unflatten(0, (3, heads, -1))[2, head])
    return views


def count_prunable_heads(model: Model) -> int:
    """Return the number of heads that can be pruned."""
    return len(model.transformer.blocks) * (model.config.heads - 1) - len(pruned_heads(model))


def pruned_heads(model: Model) -> list[Head]:
    """Return the heads that are already pruned."""
    heads = range(model.config.heads)
    return [
        (number, head + 1)
        for number, part in enumerate(attention_layers(model), 1)
        for head in sorted({*heads} - {*active_heads(part)})
    ]


def active_heads(part: Attention) -> list[int]:
    """Return the indices of the heads that are not pruned, or the first head if all are pruned."""
    columns = part.out.weight.detach().unflatten(1, (part.heads, -1))
    indices: list[int] = columns.ne(0).any(-1).any(0).nonzero().squeeze(1).tolist()
    return indices or [0]


def attention_layers(model: Model) -> list[Attention]:
    """Return the attention layers of a model. A layer that is used several times occurs once."""
    return [part for part in model.transformer.modules() if isinstance(part, Attention)]


def read_head(name: str) -> Head:
    """Parse the name of an attention head, such as "2.11" for head 11 of layer 2.

    Args:
        name: The name.

    Raises:
        ConfigError: If the format is wrong.
    """
    layer, _, head = name.partition(".")
    if not (layer.isdecimal() and head.isdecimal() and len(name) <= 40):
        raise ConfigError(f"heads must have the form LAYER.HEAD, such as 2.11, got {name[:40]!r}")
    return int(layer), int(head)
