"""LSTMs and GRUs that translate (Sutskever et al. 2014, and those with attention), and that go on
from the left (Mikolov et al. 2010). Formats of bertkit's own, which transformers has no model for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertkit.config import plain
from bertkit.families.family import (
    CRF,
    SCORES,
    Family,
    Special,
    architectures,
    causal_architectures,
    module,
)
from bertkit.models.config import NoPositions, RecurrentSettings, TransformerConfig


class _Own(dict[str, str | tuple[str, ...]]):
    """A table in which each weight has its own name, if it has no other."""

    def __missing__(self, name: str) -> str:
        return name


_KEYS = ("cell", "direction", "attention")


def _read(theirs: Mapping[str, Any]) -> dict[str, Any]:
    return {"recurrent": {key: theirs[key] for key in _KEYS if key in theirs}}


def _write(config: TransformerConfig) -> dict[str, Any]:
    return {} if config.recurrent is None else plain(config.recurrent)


_SETTINGS = {
    "vocab": "vocab_size",
    "hidden": "hidden_size",
    "layers": "num_layers",
    "max_positions": "max_position_embeddings",
    "pad_id": "pad_token_id",
    "dropout": "dropout",
}
_STACK: dict[str, Any] = {
    "heads": 1,
    "intermediate": 1,
    "attention_dropout": 0.0,
    "token_types": 0,
    "positions": NoPositions(),
    "norm.embedding": False,
    "feedforward.activation": "gelu",
    "scale_embedding": True,
}
_DEFAULTS: dict[str, Any] = {"recurrent": {}}
_RECURRENT = Special(settings=("recurrent",), read=_read, write=_write, keys=_KEYS)

LSTM = Family(
    name="lstm",
    vocab=8_000,
    settings=_SETTINGS,
    fixed=_STACK,
    defaults=_DEFAULTS,
    activation="",
    special=_RECURRENT,
    roles=("pad", "unk", "eos"),
    written_roles=("pad", "eos"),
    body=_Own({"decoder.embedding.tokens.weight": "encoder.embedding.tokens.weight"}),
    prefix="encoder.",
    heads={"lm": {"bias": "lm_head.bias"}},
    derived={},
    architectures={frozenset(): "LSTMModel", frozenset({"lm"}): "LSTMForConditionalGeneration"},
    decoder=Family(
        name="lstm",
        settings=_SETTINGS,
        fixed={**_STACK, "attention.causal": True, "attention.cross": True, "head.lm_bias": True},
        defaults=_DEFAULTS,
        activation="",
        special=_RECURRENT,
        body={},
        heads={},
        prefix="",
        derived={},
        architectures={},
    ),
    start="pad",
)

LSTM_LM = Family(
    name="lstm-lm",
    vocab=50_257,
    settings={ours: theirs for ours, theirs in _SETTINGS.items() if ours != "pad_id"},
    fixed={
        **_STACK,
        "attention.causal": True,
        "recurrent": RecurrentSettings(direction="forward"),
        "head.lm_bias": True,
    },
    activation="",
    roles=("eos",),
    written_roles=("eos", "pad"),
    body=_Own(),
    prefix="encoder.",
    heads={"lm": {"bias": "lm_head.bias"}, **SCORES},
    derived={},
    architectures=causal_architectures("LSTM", "LSTMForCausalLM"),
)

WORD_FEATURES = Family(
    name="word-features",
    vocab=3,
    settings={name: _SETTINGS[name] for name in ("vocab", "hidden", "layers", "dropout")},
    fixed={
        **_STACK,
        "max_positions": 1 << 20,
        "recurrent": RecurrentSettings(direction="both"),
    },
    defaults={"vocab": 3, "hidden": 256, "layers": 1, "dropout": 0.3},
    activation="",
    roles=(),
    written_roles=(),
    body=_Own(),
    prefix="encoder.",
    heads={
        "classify": module("out", "classifier"),
        "tag": module("out", "classifier"),
        "crf": {**module("out", "classifier"), **CRF},
    },
    derived={},
    architectures=architectures("WordFeatures"),
)
"""BiLSTM over word features; `FAMILIES` lacks it, because its encoder is not built from its
configuration alone."""
