"""LSTM and GRU translation models, and LSTM language models.

Sources: Sutskever et al. 2014 (translation; for attention see `seq2seq.py`), Mikolov et al. 2010
(language models). Both are formats of bertkit, which transformers does not support.
"""

from __future__ import annotations

from dataclasses import replace

from bertkit.extensions.classic.recurrent_config import RecurrentConfig, WordFeaturesConfig
from bertkit.families.family import CRF, SCORES, Family, architectures, causal_architectures, module


class _SameNames(dict[str, str | tuple[str, ...]]):
    """Table of weight names. A name that is not in the table is the same as in bertkit."""

    def __missing__(self, name: str) -> str:
        return name


_SETTINGS = {
    "vocab": "vocab_size",
    "hidden": "hidden_size",
    "layers": "num_layers",
    "max_positions": "max_position_embeddings",
    "pad_id": "pad_token_id",
    "dropout": "dropout",
}
_TRANSLATION_SETTINGS = {
    **_SETTINGS,
    "recurrent.cell": "cell",
    "recurrent.direction": "direction",
    "recurrent.attention": "attention",
}
_DECODER = Family(
    name="lstm",
    config_type=RecurrentConfig,
    settings=_TRANSLATION_SETTINGS,
    fixed={"head.lm_bias": True},
    activation="",
    body={},
    prefix="",
    heads={},
    derived={},
    architectures={},
)

LSTM = replace(
    _DECODER,
    vocab=8_000,
    fixed={},
    roles=("pad", "unk", "eos"),
    written_roles=("pad", "eos"),
    body=_SameNames({"decoder.embedding.tokens.weight": "encoder.embedding.tokens.weight"}),
    prefix="encoder.",
    heads={"lm": {"bias": "lm_head.bias"}},
    architectures={frozenset(): "LSTMModel", frozenset({"lm"}): "LSTMForConditionalGeneration"},
    decoder=_DECODER,
    start="pad",
)

LSTM_LM = replace(
    _DECODER,
    name="lstm-lm",
    vocab=50_257,
    settings={path: key for path, key in _SETTINGS.items() if path != "pad_id"},
    fixed={"recurrent.direction": "forward", "head.lm_bias": True},
    roles=("eos",),
    written_roles=("eos", "pad"),
    body=_SameNames(),
    prefix="encoder.",
    heads={"lm": {"bias": "lm_head.bias"}, **SCORES},
    architectures=causal_architectures("LSTM", "LSTMForCausalLM"),
)

WORD_FEATURES = Family(
    name="word-features",
    config_type=WordFeaturesConfig,
    vocab=3,
    settings={
        **{path: key for path, key in _SETTINGS.items() if path != "pad_id"},
        "features": "features",
    },
    fixed={"recurrent.direction": "both"},
    defaults={"vocab": 3, "hidden": 256, "layers": 1, "dropout": 0.3},
    activation="",
    roles=(),
    written_roles=(),
    body=_SameNames(),
    prefix="encoder.",
    heads={
        "classify": module("out", "classifier"),
        "tag": module("out", "classifier"),
        "crf": {**module("out", "classifier"), **CRF},
    },
    derived={},
    architectures=architectures("WordFeatures"),
)
"""BiLSTM on frozen features. `FAMILIES` does not contain it, because its encoder also requires the
features."""
