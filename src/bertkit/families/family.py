"""What a family of models is: data that translates between bertkit and published checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
"""Our weight -> theirs; several of theirs are stacked on the first axis. `{}` is the layer."""

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "swish": "silu",
    "silu": "silu",
}
"""Theirs -> ours; of two names of one function the last is written."""

DEFAULTS_TO = {"embedding": "hidden", "head.dropout": "dropout"}
"""Settings that mean another one's value where they are left out."""

ACTIVATION = "feedforward.activation"
POSITIONS = "encoder.embedding.positions.weight"
TABLES = (POSITIONS, "decoder.embedding.positions.weight")


@dataclass(frozen=True)
class Special:
    """What a family's files say in terms of their own."""

    settings: tuple[str, ...]
    """Ours."""
    read: Callable[[Mapping[str, Any]], dict[str, Any]]
    """Their settings -> those of ours. Raises: ValueError for one that we have not."""
    write: Callable[[Any], dict[str, Any]]
    """The inverse. Raises: ConfigError for one they cannot say."""
    keys: tuple[str, ...] = ()
    """Keys of `config.json` that `read` uses."""
    layer: Callable[[int, Any], str] = lambda weights, _: str(weights)
    """What stands for the number of a layer's weights in their names."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """How one family of checkpoints is read and written; nothing else differs between families.

    Settings of `config_type` are named by their paths (`norm.eps`). A setting that nothing here
    mentions has its default value in all models of the family.
    """

    name: str
    """The `model_type` in `config.json`."""
    config_type: type[EncoderConfig] = TransformerConfig
    """Type of the settings of an encoder or decoder."""
    code: tuple[str, ...] = ()
    """How the names of published code begin that some folders ask to run (`auto_map`), and that
    computes what bertkit does; it is not run."""
    vocab: int = 30_522
    """Pieces of its published vocabularies."""
    settings: Mapping[str, str]
    """Ours -> theirs, where the value is the same."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Ours that all models of the family share, and that are not the defaults of
    `config_type`."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Ours where their files are silent, if `config_type` has another default."""
    activation: str = "hidden_act"
    """Their name of the setting; empty where there is none."""
    activations: Mapping[str, str] = field(default_factory=lambda: ACTIVATIONS)
    """Their names of activations -> ours."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Keys of `config.json` that replace another key, as in transformers."""
    neutral: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Keys that are rejected unless they have one of these values, the first of which is saved
    unless it is None."""
    irrelevant: Mapping[str, str] = field(default_factory=dict)
    """Further keys that change no output of bertkit, with the reason."""
    special: Special | None = None
    roles: tuple[str, ...] = ("pad", "unk", "cls", "sep")
    """Special tokens that its texts are framed and written with."""
    written_roles: tuple[str, ...] = ("pad",)
    """Those whose ids stand in `config.json`, where the vocabulary has them."""
    token_ids: Mapping[str, str] = field(default_factory=dict)
    """Keys of `config.json` -> the special token whose id is saved, or null if there is none.
    Transformers assumes the ids of its published vocabulary without them."""
    positions_after_pad: bool = False
    """Whether their positions count on from the padding piece's id: so many rows are unused, which
    their settings count."""
    unused_positions: int = 0
    """So many rows of their tables of positions come before the first, whatever the vocabulary;
    their settings do not count them."""

    body: Names
    """The encoder's weights, theirs with the prefix of a model that carries heads."""
    gated: Names = field(default_factory=dict)
    """The rows that stand in their place where feed-forward networks are gated."""
    prefix: str
    """What a bare encoder's names lack: `bert.`"""
    heads: Mapping[str, Names]
    """For each head bertkit knows, its weights. Heads of one's own keep their names."""
    some: tuple[str, ...] = ()
    """Their weights of heads that not all models have."""
    derived: Mapping[str, str]
    """Their tensors that duplicate another: checked for equality when read, and not kept."""
    spellings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Patterns of their names in some folders -> those of these tables, stacked if several."""
    ignored: tuple[str, ...] = ()
    """How the names of their tensors end that are no weights, such as position ids."""
    sinusoids: tuple[str, ...] = ()
    """Endings of the names of tensors with sinusoidal positions, which bertkit computes."""
    transposed: tuple[str, ...] = ()
    """How the names of their matrices end that are stored as (in, out)."""
    rows: tuple[str, ...] = ()
    """Their vectors that are stored as a matrix of one row."""
    decoder: Family | None = None
    """How the settings of a decoder are read and written; its weights are in the tables here."""
    start: str = ""
    """The special token that a decoder's texts begin with."""
    zero_pad: bool = False
    """Whether the embedding of the padding piece is zero in training, and stays so."""
    architectures: Mapping[frozenset[str], str]
    """Their class for each set of heads."""

    # ---- settings

    @property
    def keys(self) -> KeyTable:
        """All keys of `config.json` that the reference library reads."""
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
    def always(self) -> dict[str, Any]:
        """Our settings that no model of the family has otherwise."""
        read = {*self.settings, *(self.special.settings if self.special else ()), ACTIVATION}
        usual = {p: value for p, value in paths(self.config_type).items() if p not in read}
        return {**usual, **self.fixed}

    @property
    def usual(self) -> dict[str, Any]:
        """The settings that a run file of the family need not name, as a table."""
        return nested({**self.defaults, **self.fixed})

    def config(self, settings: Mapping[str, Any]) -> EncoderConfig:
        """Of a model of the family: these settings, by path, and the family's own."""
        return decode(self.config_type, nested({**self.defaults, **self.fixed, **settings}))

    def read_config(self, theirs: Mapping[str, Any]) -> EncoderConfig:
        """Convert the content of a `config.json`.

        Raises: ConfigError or ValueError for a key that bertkit does not support.
        """
        self.keys.check(theirs)
        return self._read(theirs)

    def _read(self, theirs: Mapping[str, Any]) -> EncoderConfig:
        replaced = {name: theirs[a] for a, name in self.aliases.items() if a in theirs}
        theirs = {**theirs, **replaced}
        given = {
            ours: theirs[name]
            for ours, name in self.settings.items()
            if theirs.get(name) is not None
        }
        values: dict[str, Any] = {**self.defaults, **given}
        if self.activation in theirs:
            activation = theirs[self.activation]
            if not isinstance(activation, str) or activation not in self.activations:
                raise ValueError(
                    f"{self.activation} = {activation!r}: known are {', '.join(self.activations)}"
                )
            values[ACTIVATION] = self.activations[activation]
        if self.special is not None:
            values |= self.special.read(theirs)
        positions = values.get("max_positions")
        pad = values.get("pad_id", self.fixed.get("pad_id", 0))
        if self.positions_after_pad and isinstance(positions, int) and isinstance(pad, int):
            values["max_positions"] = positions - pad - 1
        return self.config(values)

    def read_decoder(self, theirs: Mapping[str, Any]) -> EncoderConfig | None:
        """The configuration of the decoder, where the family has one. Raises: as `read_config`."""
        return None if self.decoder is None else self.decoder._read(theirs)

    def write_config(
        self, config: EncoderConfig, decoder: EncoderConfig | None = None
    ) -> dict[str, Any]:
        """Raises: ConfigError for a setting that no model of the family can have."""
        for path, only in self.always.items():
            value = at(config, path)
            if value != only:
                raise ConfigError(
                    f"model.{path} = {to_builtins(value)!r}: every model of {self.name} has "
                    f"{to_builtins(only)!r}; change it or choose another family"
                )
        written: dict[str, Any] = {}
        for path, theirs in self.settings.items():
            value = at(config, path)
            if value is None and path in self.defaults:  # their default would be another
                value = at(config, DEFAULTS_TO[path])
            elif isinstance(value, str) and value in self.settings:  # it names another of ours
                value = config.rate(path)
            written[theirs] = value
        if self.special is not None:
            written |= self.special.write(config)
        if self.positions_after_pad:
            written[self.settings["max_positions"]] += config.pad_id + 1
        if self.decoder is not None and decoder is not None:
            written |= self.decoder.write_config(decoder)
        if self.activation:
            activation = at(config, ACTIVATION)
            names = {ours: theirs for theirs, ours in self.activations.items()}
            if activation not in names:
                raise ConfigError(
                    f"model.{ACTIVATION} = {activation!r}: every model of {self.name} has one of "
                    f"{', '.join(names)}; change it or choose another family"
                )
            written[self.activation] = names[activation]
        return {
            "model_type": self.name,
            **written,
            "initializer_range": 0.02,
            **{key: values[0] for key, values in self.neutral.items() if values[0] is not None},
        }

    # ---- weights

    def names(self, ours: Iterable[str], config: EncoderConfig) -> dict[str, tuple[str, ...]]:
        """Their names for each of our weights, the layers filled in."""
        return {name: self._theirs(name, config) for name in ours}

    def _theirs(self, name: str, config: EncoderConfig) -> tuple[str, ...]:
        parts = name.split(".")
        layer = ""
        if name.endswith(ADAPTERS):  # of a run that goes on: it keeps its own name
            return (name,)
        if parts[0] == "heads":
            if parts[1] not in self.heads:  # of a task from outside: it keeps its own names
                return (name,)
            row: str | tuple[str, ...] = self.heads[parts[1]][".".join(parts[2:])]
        else:
            if parts[1] == "blocks":
                layer, parts[2] = parts[2], "{}"
                if self.special is not None:
                    layer = self.special.layer(int(layer), config)
            key = ".".join(parts)
            gated = self.gated.get(key) if self.gated and at(config, "feedforward.gated") else None
            row = gated or self.body[key]
        return tuple(t.format(layer) for t in ((row,) if isinstance(row, str) else row))

    def head_weights(self, head: str) -> frozenset[str]:
        """Their names of a head's weights."""
        rows = self.heads[head].values()
        return frozenset(t for row in rows for t in ((row,) if isinstance(row, str) else row))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Their weights with a row for each label."""
        named = (head for head in ("classify", "tag") if head in self.heads)
        rows = (self.heads[head]["out.weight"] for head in named)
        return tuple(row for row in rows if isinstance(row, str))

    def read(
        self, ours: Iterable[str], theirs: Mapping[str, Tensor], config: EncoderConfig
    ) -> dict[str, Tensor]:
        """Our weights from theirs, those that are all there; the rest is for the caller to name.

        Raises: CheckpointError for those of one matrix that do not fit each other.
        """
        read: dict[str, Tensor] = {}
        for name, rows in self.names(ours, config).items():
            if all(row in theirs for row in rows):
                pieces = [self._turned(row, theirs[row]) for row in rows]
                try:
                    read[name] = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
                except RuntimeError:
                    shapes = ", ".join(f"{row} {list(theirs[row].shape)}" for row in rows)
                    raise CheckpointError(
                        f"{shapes}: these weights do not fit each other; fetch the model again"
                    ) from None
        unused = self._unused(config)
        for table in TABLES:
            if unused and table in read and read[table].ndim:
                read[table] = read[table][unused:].clone()
        return read

    def write(self, ours: Mapping[str, Tensor], config: EncoderConfig) -> dict[str, Tensor]:
        """Their weights from ours."""
        unused = self._unused(config)
        if unused:
            ours = {
                name: F.pad(weight, (0, 0, unused, 0)) if name in TABLES else weight
                for name, weight in ours.items()
            }
        theirs = {}
        for name, rows in self.names(ours, config).items():
            sizes = self.sizes(name, len(ours[name]), config)
            for row, piece in zip(rows, ours[name].split(sizes), strict=True):
                theirs[row] = self._turned(row, piece).contiguous()
        return theirs

    def sizes(self, name: str, rows: int, config: EncoderConfig) -> list[int]:
        """How many of the `rows` of one of our weights each of theirs has."""
        parts = len(self._theirs(name, config))
        shares = [config.heads, *[at(config, "kv_heads")] * 2] if parts == 3 else [1] * parts
        return [rows // sum(shares) * share for share in shares]

    def _unused(self, config: EncoderConfig) -> int:
        """Rows of their tables of positions before the first."""
        return config.pad_id + 1 if self.positions_after_pad else self.unused_positions

    def _turned(self, row: str, weight: Tensor) -> Tensor:
        """Between their way of storing a weight and ours, which one step leads to and back."""
        if row in self.rows:
            return weight.squeeze(0) if weight.ndim == 2 else weight[None]
        return weight.T if weight.ndim == 2 and row.endswith(self.transposed) else weight


def module(ours: str, *theirs: str) -> dict[str, str | tuple[str, ...]]:
    """The table's rows of one module: its weight and its bias."""
    table: dict[str, str | tuple[str, ...]] = {}
    for part in ("weight", "bias"):
        names = tuple(f"{name}.{part}" for name in theirs)
        key = f"{ours}.{part}" if ours else part
        table[key] = names[0] if len(names) == 1 else names
    return table


def embeddings(
    prefix: str, *, positions: bool = True, types: bool = True
) -> dict[str, str | tuple[str, ...]]:
    """The table's rows of an embedding with the names that nearly all families share."""
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


def bert_layers(prefix: str, ending: str = "") -> dict[str, str | tuple[str, ...]]:
    """The table's rows of a stack of layers named as in BERT; the names of the matrices of queries,
    keys and values may have an ending.
    """
    qkv = (f"{prefix}attention.self.{part}{ending}" for part in ("query", "key", "value"))
    return {
        **module("encoder.blocks.{}.attention.qkv", *qkv),
        **module("encoder.blocks.{}.attention.out", f"{prefix}attention.output.dense"),
        **module("encoder.blocks.{}.attention_norm", f"{prefix}attention.output.LayerNorm"),
        **module("encoder.blocks.{}.feedforward.up", f"{prefix}intermediate.dense"),
        **module("encoder.blocks.{}.feedforward.down", f"{prefix}output.dense"),
        **module("encoder.blocks.{}.feedforward_norm", f"{prefix}output.LayerNorm"),
    }


def roberta_heads(prefix: str) -> dict[str, dict[str, str | tuple[str, ...]]]:
    """The tables of heads named as in RoBERTa, whose encoder's names begin with `prefix`."""
    return {
        "mlm": {
            **module("dense", "lm_head.dense"),
            **module("norm", "lm_head.layer_norm"),
            "bias": "lm_head.bias",
        },
        "pooler": module("transform.dense", f"{prefix}pooler.dense"),
        "classify": {
            **module("pooler.transform.dense", "classifier.dense"),
            **module("out", "classifier.out_proj"),
        },
        "choose": {
            **module("pooler.transform.dense", f"{prefix}pooler.dense"),
            **module("out", "classifier"),
        },
        "answer": module("out", "qa_outputs"),
        "tag": module("out", "classifier"),
        "crf": {**module("out", "classifier"), **CRF},
    }


def roberta_derived(prefix: str) -> dict[str, str]:
    """What their masked-LM heads hold a copy of."""
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
"""Names of settings that BERT's nearer relatives share with it."""


def architectures(name: str, *more: tuple[frozenset[str], str]) -> dict[frozenset[str], str]:
    """The classes of transformers for the heads that nearly all families have, and more."""
    usual = {
        frozenset({"mlm"}): "MaskedLM",
        frozenset({"classify"}): "SequenceClassification",
        frozenset({"choose"}): "MultipleChoice",
        frozenset({"answer"}): "QuestionAnswering",
        frozenset({"tag"}): "TokenClassification",
        frozenset({"crf"}): "TokenClassification",
    }
    named = {heads: f"{name}For{kind}" for heads, kind in usual.items()}
    return {frozenset(): f"{name}Model", **named, **dict(more)}


def causal_architectures(name: str, writes: str) -> dict[frozenset[str], str]:
    """The classes of transformers for a causal model; one writes."""
    one = f"{name}ForSequenceClassification"
    scored = {frozenset({head}): one for head in ("classify", "choose")}
    return {frozenset(): f"{name}Model", frozenset({"lm"}): writes, **scored}


SCORES: dict[str, Names] = {head: {"out.weight": "score.weight"} for head in ("classify", "choose")}
"""The heads of a causal model that label or score a sequence."""

CRF = {f"crf.{part}": f"crf.{part}" for part in ("transitions", "start", "end")}
"""In no folder but ours."""
