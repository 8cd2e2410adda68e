"""BERT. Devlin et al. 2019; names and settings as Hugging Face folders have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertkit.config import decode
from bertkit.families.family import Family, module
from bertkit.models.config import TransformerConfig

ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "relu": "relu", "silu": "silu"}
"""Theirs -> ours."""

SETTINGS = {
    "vocab": "vocab_size",
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "intermediate": "intermediate_size",
    "length": "max_position_embeddings",
    "types": "type_vocab_size",
    "norm_eps": "layer_norm_eps",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}
"""Ours -> theirs, where the value is the same."""


def read_config(theirs: Mapping[str, Any]) -> TransformerConfig:
    """Raises: ConfigError or ValueError naming a setting that bertkit's BERT has not."""
    if theirs.get("position_embedding_type", "absolute") != "absolute":
        raise ValueError(
            f"position_embedding_type = {theirs['position_embedding_type']!r}: "
            "BERT is read with absolute positions only"
        )
    if theirs.get("is_decoder") or theirs.get("add_cross_attention"):
        raise ValueError("is_decoder: BERT is read as an encoder only")
    activation = theirs.get("hidden_act", "gelu")
    if activation not in ACTIVATIONS:
        raise ValueError(f"hidden_act = {activation!r}: known are {', '.join(ACTIVATIONS)}")
    values = {ours: theirs[name] for ours, name in SETTINGS.items() if name in theirs}
    return decode(TransformerConfig, {**values, "activation": ACTIVATIONS[activation]})


def write_config(config: TransformerConfig) -> dict[str, Any]:
    back = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
    return {
        "model_type": "bert",
        **{theirs: getattr(config, ours) for ours, theirs in SETTINGS.items()},
        "hidden_act": back[config.activation],
        "initializer_range": 0.02,
        "position_embedding_type": "absolute",
    }


_EMBEDDINGS, _LAYER = "bert.embeddings.", "bert.encoder.layer.{}."
_QKV = tuple(f"{_LAYER}attention.self.{part}" for part in ("query", "key", "value"))

BODY = {
    "encoder.embedding.tokens.weight": f"{_EMBEDDINGS}word_embeddings.weight",
    "encoder.embedding.positions.weight": f"{_EMBEDDINGS}position_embeddings.weight",
    "encoder.embedding.types.weight": f"{_EMBEDDINGS}token_type_embeddings.weight",
    **module("encoder.embedding.norm", f"{_EMBEDDINGS}LayerNorm"),
    **module("encoder.blocks.{}.attention.qkv", *_QKV),
    **module("encoder.blocks.{}.attention.out", f"{_LAYER}attention.output.dense"),
    **module("encoder.blocks.{}.attention_norm", f"{_LAYER}attention.output.LayerNorm"),
    **module("encoder.blocks.{}.feedforward.up", f"{_LAYER}intermediate.dense"),
    **module("encoder.blocks.{}.feedforward.down", f"{_LAYER}output.dense"),
    **module("encoder.blocks.{}.feedforward_norm", f"{_LAYER}output.LayerNorm"),
}

_POOLER = module("pooler.dense", "bert.pooler.dense")
_PAIR = {**_POOLER, **module("out", "cls.seq_relationship")}
_CLASSIFIER = {**_POOLER, **module("out", "classifier")}
CRF_WEIGHTS = ("transitions", "start", "end")
"""In no folder but ours."""

HEADS = {
    "mlm": {
        **module("dense", "cls.predictions.transform.dense"),
        **module("norm", "cls.predictions.transform.LayerNorm"),
        "bias": "cls.predictions.bias",
    },
    "nsp": _PAIR,
    "sop": _PAIR,
    "pooler": module("dense", "bert.pooler.dense"),
    "classify": _CLASSIFIER,
    "choose": _CLASSIFIER,
    "answer": module("out", "qa_outputs"),
    "tag": module("out", "classifier"),
    "crf": {**module("out", "classifier"), **{f"crf.{w}": f"crf.{w}" for w in CRF_WEIGHTS}},
}

BERT = Family(
    name="bert",
    read_config=read_config,
    write_config=write_config,
    body=BODY,
    prefix="bert.",
    heads=HEADS,
    derived={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    ignored=("bert.embeddings.position_ids",),
    architectures={
        frozenset(): "BertModel",
        frozenset({"pooler"}): "BertModel",
        frozenset({"mlm"}): "BertForMaskedLM",
        frozenset({"nsp"}): "BertForNextSentencePrediction",
        frozenset({"mlm", "nsp"}): "BertForPreTraining",
        frozenset({"mlm", "sop"}): "BertForPreTraining",
        frozenset({"classify"}): "BertForSequenceClassification",
        frozenset({"choose"}): "BertForMultipleChoice",
        frozenset({"answer"}): "BertForQuestionAnswering",
        frozenset({"tag"}): "BertForTokenClassification",
        frozenset({"crf"}): "BertForTokenClassification",
    },
)
