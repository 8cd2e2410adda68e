"""Model family: the data that defines how published checkpoints are converted to bertkit and back.

In this module, the prefix `hf_` marks names and values of Hugging Face checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from msgspec import to_builtins
from torch import Tensor
from torch.nn import functional as F

from bertkit.config import at, decode, nested, paths
from bertkit.errors import CheckpointError, ConfigError
from bertkit.families import keys
from bertkit.models.config import EncoderConfig, TransformerConfig
from bertkit.nn.lora import ADAPTERS
from bertkit.published_keys import KeyTable

Names = Mapping[str, str | tuple[str, ...]]
"""bertkit's name of a weight -> its name in Hugging Face checkpoints. If there are several names,
bertkit's weight is the concatenation of these tensors along the first axis. `{}` stands for the
layer.
"""

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "swish": "silu",
    "silu": "silu",
}
"""Hugging Face's name of an activation -> bertkit's name. If Hugging Face has several names for a
function, the last one is saved.
"""

DEFAULTS_TO = {"embedding": "hidden", "head.dropout": "dropout"}
"""Settings whose default is the value of another setting -> that other setting."""

ACTIVATION = "feedforward.activation"
POSITIONS = "encoder.embedding.positions.weight"
TABLES = (POSITIONS, "decoder.embedding.positions.weight")


@dataclass(frozen=True)
class Special:
    """Settings of a family that functions convert, because no single key has the same value."""

    settings: tuple[str, ...]
    """Paths of the settings in bertkit's configuration."""
    read: Callable[[Mapping[str, Any]], dict[str, Any]]
    """Function that converts the content of a `config.json` to these settings. It raises ValueError
    for unsupported values.
    """
    write: Callable[[Any], dict[str, Any]]
    """Function that converts these settings to keys of `config.json`. It raises ConfigError for
    values that `config.json` cannot represent.
    """
    keys: tuple[str, ...] = ()
    """Keys of `config.json` that `read` uses."""
    layer: Callable[[int, Any], str] = lambda weights, _: str(weights)
    """Function that returns the text that replaces `{}` in weight names, from the index of the
    layer's weights and the configuration.
    """


@dataclass(frozen=True, kw_only=True)
class Family:
    """Everything that is specific to a family: how to convert its checkpoints in both directions.

    Settings are named by their paths in `config_type`, such as `norm.eps`. In all models of the
    family, settings that are not listed here have their default values.
    """

    name: str
    """The `model_type` in `config.json`."""
    config_type: type[EncoderConfig] = TransformerConfig
    """Type of the configuration of the encoder or decoder."""
    code: tuple[str, ...] = ()
    """Prefixes of the names in `auto_map` whose published code bertkit reimplements. bertkit does
    not execute the published code.
    """
    vocab: int = 30_522
    """Vocabulary size of the published models."""
    settings: Mapping[str, str]
    """bertkit's settings -> the keys of `config.json` that have the same values."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Settings with the same value in all models of the family -> that value. Only values that
    differ from the defaults of `config_type` are listed.
    """
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values that settings have if `config.json` omits them. Only values that differ from the
    defaults of `config_type` are listed.
    """
    activation: str = "hidden_act"
    """Key of `config.json` for the activation. Empty if the family has no such key."""
    activations: Mapping[str, str] = field(default_factory=lambda: ACTIVATIONS)
    """Hugging Face's names of activations -> bertkit's names."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Alternative keys of `config.json` -> the key whose value they replace, as in transformers."""
    neutral: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Keys of `config.json` -> their supported values. The first value is saved, unless it is None.
    """
    irrelevant: Mapping[str, str] = field(default_factory=dict)
    """Additional keys that do not affect the outputs of bertkit -> the reason."""
    special: Special | None = None
    roles: tuple[str, ...] = ("pad", "unk", "cls", "sep")
    """Special tokens that the vocabularies of the family contain and its inputs use."""
    written_roles: tuple[str, ...] = ("pad",)
    """Special tokens whose ids are saved in `config.json` if the vocabulary contains them."""
    token_ids: Mapping[str, str] = field(default_factory=dict)
    """Keys of `config.json` -> the special token whose id is saved there. If the vocabulary lacks
    the token, null is saved, because transformers would replace a missing key by the id in its
    published vocabulary.
    """
    positions_after_pad: bool = False
    """Whether the number of the first position is the id of the padding token plus one. The rows of
    the position embedding before it are unused, but `max_position_embeddings` counts them.
    """
    unused_positions: int = 0
    """Number of unused rows at the start of the position embedding, if `max_position_embeddings`
    does not count them.
    """

    body: Names
    """Names of the encoder's weights. Hugging Face's names include `prefix`."""
    gated: Names = field(default_factory=dict)
    """Entries that replace entries of `body` if the feed-forward networks are gated."""
    prefix: str
    """Prefix of the encoder's weight names, such as `bert.`. Checkpoints without heads omit it."""
    heads: Mapping[str, Names]
    """Names of the weights of each supported head. Custom heads are saved with bertkit's names."""
    some: tuple[str, ...] = ()
    """Hugging Face's names of head weights that some models lack."""
    derived: Mapping[str, str]
    """Names of tensors that are copies of a weight -> the name of the original. When a checkpoint
    is loaded, both must be equal. Copies are not saved.
    """
    spellings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Regular expressions for alternative weight names -> the names in the tables above. If there
    are several names, the tensor is split into equal parts.
    """
    ignored: tuple[str, ...] = ()
    """Suffixes of the names of tensors that are not loaded, such as position ids."""
    sinusoids: tuple[str, ...] = ()
    """Suffixes of the names of tensors with sinusoidal positions. bertkit computes these tensors
    instead of loading them.
    """
    transposed: tuple[str, ...] = ()
    """Suffixes of the names of matrices that Hugging Face stores with the shape (in, out)."""
    rows: tuple[str, ...] = ()
    """Names of vectors that Hugging Face stores as a matrix with one row."""
    decoder: Family | None = None
    """Family that converts the settings of the decoder, if there is one. The names of the decoder's
    weights are in the tables of the encoder's family.
    """
    start: str = ""
    """Special token with which the input of a decoder starts."""
    zero_pad: bool = False
    """Whether the embedding of the padding token is zero, and stays zero in training."""
    architectures: Mapping[frozenset[str], str]
    """Sets of heads -> the class in transformers that has these heads."""

    # ---- Settings

    @property
    def keys(self) -> KeyTable:
        """Keys of `config.json` that the reference library reads, and how bertkit treats them."""
        special = () if self.special is None else self.special.keys
        applied = {*keys.APPLIED, *self.settings.values(), *special, *self.aliases}
        applied |= {self.activation} - {"", *self.neutral}
        applied |= {"eos_token_id"} if "eos" in self.written_roles else set()
        if self.decoder is not None:
            applied |= {*self.decoder.keys.applied, *keys.GENERATION}
        neutral = {**keys.NEUTRAL, **self.neutral}
        irrelevant = {**keys.IRRELEVANT, **self.irrelevant}
        return KeyTable(
            applied=sorted(applied),
            irrelevant={k: v for k, v in irrelevant.items() if k not in {*applied, *self.neutral}},
            neutral={k: v for k, v in neutral.items() if k not in {*applied, *self.irrelevant}},
        )

    @property
    def constants(self) -> dict[str, Any]:
        """Settings that have the same value in all models of the family, by path."""
        converted = {*self.settings, *(self.special.settings if self.special else ()), ACTIVATION}
        defaults = {p: value for p, value in paths(self.config_type).items() if p not in converted}
        return {**defaults, **self.fixed}

    @property
    def usual(self) -> dict[str, Any]:
        """Settings of the family that a run file may omit, as a nested table."""
        return nested({**self.defaults, **self.fixed})

    def config(self, settings: Mapping[str, Any]) -> EncoderConfig:
        """Return the configuration of a model of the family.

        Args:
            settings: Settings by their paths. They override the defaults of the family.
        """
        return decode(self.config_type, nested({**self.defaults, **self.fixed, **settings}))

    def read_config(self, hf_config: Mapping[str, Any]) -> EncoderConfig:
        """Convert the content of a `config.json` to the configuration of the encoder.

        Args:
            hf_config: The content of the file.

        Raises:
            ConfigError: If the configuration is invalid.
            ValueError: If bertkit does not support the value of a key.
        """
        self.keys.check(hf_config)
        return self._read(hf_config)

    def _read(self, hf_config: Mapping[str, Any]) -> EncoderConfig:
        replaced = {name: hf_config[a] for a, name in self.aliases.items() if a in hf_config}
        hf_config = {**hf_config, **replaced}
        given = {
            path: hf_config[name]
            for path, name in self.settings.items()
            if hf_config.get(name) is not None
        }
        values: dict[str, Any] = {**self.defaults, **given}
        if self.activation in hf_config:
            activation = hf_config[self.activation]
            if not isinstance(activation, str) or activation not in self.activations:
                raise ValueError(
                    f"{self.activation} must be one of {', '.join(self.activations)}, "
                    f"got {activation!r}"
                )
            values[ACTIVATION] = self.activations[activation]
        if self.special is not None:
            values |= self.special.read(hf_config)
        positions = values.get("max_positions")
        pad = values.get("pad_id", self.fixed.get("pad_id", 0))
        if self.positions_after_pad and isinstance(positions, int) and isinstance(pad, int):
            values["max_positions"] = positions - pad - 1
        return self.config(values)

    def read_decoder(self, hf_config: Mapping[str, Any]) -> EncoderConfig | None:
        """Convert the content of a `config.json` to the configuration of the decoder.

        Args:
            hf_config: The content of the file.

        Returns:
            The configuration, or None if models of the family have no decoder.

        Raises:
            ConfigError: If the configuration is invalid.
            ValueError: If bertkit does not support the value of a key.
        """
        return None if self.decoder is None else self.decoder._read(hf_config)

    def write_config(
        self, config: EncoderConfig, decoder: EncoderConfig | None = None
    ) -> dict[str, Any]:
        """Convert a configuration to the content of a `config.json`.

        Args:
            config: Configuration of the encoder, or of a decoder without an encoder.
            decoder: Configuration of the decoder, if the model also has an encoder.

        Raises:
            ConfigError: If a setting has a value that models of the family cannot have.
        """
        for path, only in self.constants.items():
            value = at(config, path)
            if value != only:
                raise ConfigError(
                    f"model.{path} must be {to_builtins(only)!r} for {self.name}, "
                    f"got {to_builtins(value)!r}; change it or use another family"
                )
        written: dict[str, Any] = {}
        for path, key in self.settings.items():
            value = at(config, path)
            # The value is always written, because transformers would replace a missing key by its
            # own default. A string is the path of another setting.
            if value is None and path in self.defaults:
                value = at(config, DEFAULTS_TO[path])
            elif isinstance(value, str) and value in self.settings:
                value = config.rate(path)
            written[key] = value
        if self.special is not None:
            written |= self.special.write(config)
        if self.positions_after_pad:
            written[self.settings["max_positions"]] += config.pad_id + 1
        if self.decoder is not None and decoder is not None:
            written |= self.decoder.write_config(decoder)
        if self.activation:
            activation = at(config, ACTIVATION)
            names = {name: key for key, name in self.activations.items()}
            if activation not in names:
                raise ConfigError(
                    f"model.{ACTIVATION} must be one of {', '.join(names)} for {self.name}, "
                    f"got {activation!r}; change it or use another family"
                )
            written[self.activation] = names[activation]
        return {
            "model_type": self.name,
            **written,
            "initializer_range": 0.02,
            **{key: values[0] for key, values in self.neutral.items() if values[0] is not None},
        }

    # ---- Weights

    def names(self, weights: Iterable[str], config: EncoderConfig) -> dict[str, tuple[str, ...]]:
        """Return the names that each of bertkit's weights has in Hugging Face checkpoints.

        Args:
            weights: bertkit's names of the weights.
            config: Configuration of the encoder.
        """
        return {name: self._hf_names(name, config) for name in weights}

    def _hf_names(self, name: str, config: EncoderConfig) -> tuple[str, ...]:
        parts = name.split(".")
        layer = ""
        # Only the checkpoints of training runs contain adapters, and they use bertkit's names.
        if name.endswith(ADAPTERS):
            return (name,)
        if parts[0] == "heads":
            # The head belongs to a third-party task, so its weights keep bertkit's names.
            if parts[1] not in self.heads:
                return (name,)
            hf_name: str | tuple[str, ...] = self.heads[parts[1]][".".join(parts[2:])]
        else:
            if parts[1] == "blocks":
                layer, parts[2] = parts[2], "{}"
                if self.special is not None:
                    layer = self.special.layer(int(layer), config)
            key = ".".join(parts)
            gated = self.gated.get(key) if self.gated and at(config, "feedforward.gated") else None
            hf_name = gated or self.body[key]
        return tuple(t.format(layer) for t in ((hf_name,) if isinstance(hf_name, str) else hf_name))

    def head_weights(self, head: str) -> frozenset[str]:
        """Return the Hugging Face names of a head's weights."""
        names = self.heads[head].values()
        return frozenset(t for row in names for t in ((row,) if isinstance(row, str) else row))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Hugging Face names of the weights that have one row per label."""
        heads = (head for head in ("classify", "tag") if head in self.heads)
        rows = (self.heads[head]["out.weight"] for head in heads)
        return tuple(row for row in rows if isinstance(row, str))

    def read(
        self, names: Iterable[str], hf_weights: Mapping[str, Tensor], config: EncoderConfig
    ) -> dict[str, Tensor]:
        """Convert the weights of a Hugging Face checkpoint to bertkit's weights.

        A weight is skipped if one of its parts is missing. The caller reports skipped weights.

        Args:
            names: bertkit's names of the weights.
            hf_weights: Weights of the checkpoint, by their Hugging Face names.
            config: Configuration of the encoder.

        Returns:
            The weights by bertkit's names.

        Raises:
            CheckpointError: If the parts of a weight have shapes that cannot be concatenated.
        """
        weights: dict[str, Tensor] = {}
        for name, hf_names in self.names(names, config).items():
            if all(key in hf_weights for key in hf_names):
                tensors = [self._convert(key, hf_weights[key]) for key in hf_names]
                try:
                    weights[name] = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
                except RuntimeError:
                    shapes = ", ".join(f"{key} {list(hf_weights[key].shape)}" for key in hf_names)
                    raise CheckpointError(
                        f"{shapes}: weights have incompatible shapes; download the model again"
                    ) from None
        unused = self._unused(config)
        for table in TABLES:
            if unused and table in weights and weights[table].ndim:
                weights[table] = weights[table][unused:].clone()
        return weights

    def write(self, weights: Mapping[str, Tensor], config: EncoderConfig) -> dict[str, Tensor]:
        """Convert bertkit's weights to the weights of a Hugging Face checkpoint.

        Args:
            weights: Weights by bertkit's names.
            config: Configuration of the encoder.

        Returns:
            The weights by their Hugging Face names.
        """
        unused = self._unused(config)
        if unused:
            weights = {
                name: F.pad(tensor, (0, 0, unused, 0)) if name in TABLES else tensor
                for name, tensor in weights.items()
            }
        hf_weights = {}
        for name, hf_names in self.names(weights, config).items():
            sizes = self.sizes(name, len(weights[name]), config)
            for hf_name, part in zip(hf_names, weights[name].split(sizes), strict=True):
                hf_weights[hf_name] = self._convert(hf_name, part).contiguous()
        return hf_weights

    def sizes(self, name: str, rows: int, config: EncoderConfig) -> list[int]:
        """Return how many rows of a weight belong to each Hugging Face tensor.

        Args:
            name: bertkit's name of the weight.
            rows: Number of rows of the weight.
            config: Configuration of the encoder.
        """
        parts = len(self._hf_names(name, config))
        ratios = [config.heads, *[at(config, "kv_heads")] * 2] if parts == 3 else [1] * parts
        return [rows // sum(ratios) * ratio for ratio in ratios]

    def _unused(self, config: EncoderConfig) -> int:
        """Return how many rows at the start of Hugging Face's position embedding are unused."""
        return config.pad_id + 1 if self.positions_after_pad else self.unused_positions

    def _convert(self, hf_name: str, weight: Tensor) -> Tensor:
        """Convert a tensor from Hugging Face's layout to bertkit's, or back (same operation)."""
        if hf_name in self.rows:
            return weight.squeeze(0) if weight.ndim == 2 else weight[None]
        return weight.T if weight.ndim == 2 and hf_name.endswith(self.transposed) else weight


def module(name: str, *hf_names: str) -> dict[str, str | tuple[str, ...]]:
    """Return the table entries for the weight and the bias of a module.

    Args:
        name: bertkit's name of the module.
        *hf_names: Hugging Face's names of the module, or of the modules whose weights and biases
            are concatenated.
    """
    table: dict[str, str | tuple[str, ...]] = {}
    for part in ("weight", "bias"):
        names = tuple(f"{hf_name}.{part}" for hf_name in hf_names)
        key = f"{name}.{part}" if name else part
        table[key] = names[0] if len(names) == 1 else names
    return table


def masked_lm(dense: str, norm: str, bias: str) -> dict[str, str | tuple[str, ...]]:
    """Return the names of the weights of a masked-LM head.

    Args:
        dense: Name of the linear layer in the file.
        norm: Name of the norm in the file.
        bias: Name of the bias of the output in the file.
    """
    return {**module("dense", dense), **module("norm", norm), "bias": bias}


def pooled(dense: str, out: str) -> dict[str, str | tuple[str, ...]]:
    """Return the names of the weights of a classifier on a pooled state.

    Args:
        dense: Name of the linear layer of the pooler in the file.
        out: Name of the output layer in the file.
    """
    return {**module("pooler.transform.dense", dense), **module("out", out)}


def embeddings(
    prefix: str, *, positions: bool = True, types: bool = True
) -> dict[str, str | tuple[str, ...]]:
    """Return the table entries for an embedding layer, with the names that most families use.

    Args:
        prefix: Prefix of Hugging Face's names.
        positions: Whether the layer has a learned position embedding.
        types: Whether the layer has a token type embedding.
    """
    return {
        "encoder.embedding.tokens.weight": f"{prefix}word_embeddings.weight",
        **({POSITIONS: f"{prefix}position_embeddings.weight"} if positions else {}),
        **(
            {"encoder.embedding.types.weight": f"{prefix}token_type_embeddings.weight"}
            if types
            else {}
        ),
        **module("encoder.embedding.norm", f"{prefix}LayerNorm"),
    }


def bert_layers(prefix: str, suffix: str = "") -> dict[str, str | tuple[str, ...]]:
    """Return the table entries for Transformer layers whose weights are named as in BERT.

    Args:
        prefix: Prefix of Hugging Face's names.
        suffix: Suffix of the names of the query, key, and value projections.
    """
    qkv = (f"{prefix}attention.self.{part}{suffix}" for part in ("query", "key", "value"))
    return {
        **module("encoder.blocks.{}.attention.qkv", *qkv),
        **module("encoder.blocks.{}.attention.out", f"{prefix}attention.output.dense"),
        **module("encoder.blocks.{}.attention_norm", f"{prefix}attention.output.LayerNorm"),
        **module("encoder.blocks.{}.feedforward.up", f"{prefix}intermediate.dense"),
        **module("encoder.blocks.{}.feedforward.down", f"{prefix}output.dense"),
        **module("encoder.blocks.{}.feedforward_norm", f"{prefix}output.LayerNorm"),
    }


def roberta_heads(prefix: str) -> dict[str, Names]:
    """Return the tables for heads whose weights are named as in RoBERTa.

    Args:
        prefix: Prefix of the names of the encoder's weights.
    """
    return {
        "mlm": masked_lm("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
        "pooler": module("transform.dense", f"{prefix}pooler.dense"),
        "classify": pooled("classifier.dense", "classifier.out_proj"),
        "choose": pooled(f"{prefix}pooler.dense", "classifier"),
        **TOKEN_HEADS,
    }


def roberta_derived(prefix: str) -> dict[str, str]:
    """Return the tensors of RoBERTa's MLM head that are copies -> their originals.

    Args:
        prefix: Prefix of the names of the encoder's weights.
    """
    return {
        "lm_head.decoder.weight": f"{prefix}embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    }


BERT_SETTINGS = {
    "vocab": "vocab_size",
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "intermediate": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "token_types": "type_vocab_size",
    "pad_id": "pad_token_id",
    "norm.eps": "layer_norm_eps",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}
"""bertkit's settings -> the keys of `config.json` that most families similar to BERT use."""


def architectures(
    name: str, *more: tuple[frozenset[str], str], missing: Collection[str] = ()
) -> dict[frozenset[str], str]:
    """Return the class in transformers for each head that most families have.

    Args:
        name: Prefix of the class names.
        *more: Additional pairs of a set of heads and its class.
        missing: Heads that have no class in transformers.
    """
    classes = {
        frozenset({"mlm"}): "MaskedLM",
        frozenset({"classify"}): "SequenceClassification",
        frozenset({"choose"}): "MultipleChoice",
        frozenset({"answer"}): "QuestionAnswering",
        frozenset({"tag"}): "TokenClassification",
        frozenset({"crf"}): "TokenClassification",
    }
    known = {heads: suffix for heads, suffix in classes.items() if heads.isdisjoint(missing)}
    defaults = {heads: f"{name}For{suffix}" for heads, suffix in known.items()}
    return {frozenset(): f"{name}Model", **defaults, **dict(more)}


def causal_architectures(name: str, generative: str) -> dict[frozenset[str], str]:
    """Return the class in transformers for each head of a causal model.

    Args:
        name: Prefix of the class names.
        generative: Name of the class that generates text.
    """
    classifier = f"{name}ForSequenceClassification"
    classifiers = {frozenset({head}): classifier for head in ("classify", "choose")}
    return {frozenset(): f"{name}Model", frozenset({"lm"}): generative, **classifiers}


SCORES: dict[str, Names] = {head: {"out.weight": "score.weight"} for head in ("classify", "choose")}
"""Names of the weights of the heads with which a causal model classifies or scores a sequence."""

CRF = {f"crf.{part}": f"crf.{part}" for part in ("transitions", "start", "end")}
"""Weights of the CRF, which exist only in bertkit's checkpoints."""

TOKEN_HEADS: dict[str, Names] = {
    "answer": module("out", "qa_outputs"),
    "tag": module("out", "classifier"),
    "crf": {**module("out", "classifier"), **CRF},
}
"""Heads of tokens, with the names that most families share."""
