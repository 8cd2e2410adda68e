"""ModernBERT: rotary positions, gated layers without biases, most of them local.

Source: Warner et al. 2024, section 2.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertkit.families.family import CRF, Family, Special, architectures
from bertkit.families.keys import NEW_WEIGHTS, RUNTIME, SPECIAL_TOKENS, TOKEN_IDS, TRAINING
from bertkit.families.rotary import rotary_base
from bertkit.models.config import RotaryPositions, TransformerConfig, WindowSettings

LAYERS, ROTARY, WINDOW_ROTARY, LOCAL_ATTENTION, GLOBAL_EVERY = 22, 160_000.0, 10_000.0, 128, 3
FULL, LOCAL = "full_attention", "sliding_attention"
EVERY = "global_attn_every_n_layers"


def _layers(count: int, every: int) -> list[str]:
    return [LOCAL if layer % every else FULL for layer in range(count)]


def _said(theirs: Mapping[str, Any], name: str, usual: Any) -> Any:
    """A setting of theirs, or what it usually is. Raises: ValueError for one of another type."""
    value = theirs.get(name)
    if value is not None and type(value) is not type(usual):
        raise ValueError(f"{name} = {value!r}: is no {type(usual).__name__}")
    return usual if value is None else value


def _read(theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Their files name each layer's kind, those of older versions how often one is global."""
    every, kinds = _said(theirs, EVERY, GLOBAL_EVERY), _said(theirs, "layer_types", [])
    if every < 1:
        raise ValueError(f"{EVERY} = {every}: is no distance between layers")
    count = theirs.get("num_hidden_layers", LAYERS)
    if kinds and len(kinds) != count:
        raise ValueError(f"layer_types names {len(kinds)} layers, and num_hidden_layers = {count}")
    if kinds and kinds != _layers(len(kinds), every):
        every = kinds.index(FULL, 1) if FULL in kinds[1:] else len(kinds)
        if kinds != _layers(len(kinds), every):
            raise ValueError(
                f"layer_types = {kinds}: modernbert is read with global layers at equal distances "
                "from the first on"
            )
    bases = []
    angles = _said(theirs, "rope_parameters", {})
    for kind, older, usual in (
        (FULL, "global_rope_theta", ROTARY),
        (LOCAL, "local_rope_theta", WINDOW_ROTARY),
    ):
        given = _said(angles, kind, {})
        if given.get("rope_type", "default") != "default":
            raise ValueError(
                f"rope_parameters.{kind}.rope_type = {given['rope_type']!r}: modernbert is read "
                "with 'default' only"
            )
        bases.append(given.get("rope_theta", theirs.get(older, usual)))
    tokens = _said(theirs, "local_attention", LOCAL_ATTENTION) // 2
    window = {"tokens": tokens, "global_every": every, "base": bases[1]}
    return {
        "positions": {"kind": "rotary", "base": bases[0]},
        "attention.window": None if every == 1 else window,
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    window, base = config.attention.window, rotary_base(config, "modernbert")
    every = 1 if window is None else window.global_every
    local = (window and window.base) or base
    return {
        "layer_types": _layers(config.layers, every),
        "local_attention": LOCAL_ATTENTION if window is None else 2 * window.tokens,
        "rope_parameters": {
            FULL: {"rope_type": "default", "rope_theta": base},
            LOCAL: {"rope_type": "default", "rope_theta": local},
        },
        EVERY: every,
        "global_rope_theta": base,
        "local_rope_theta": local,
    }


_KEYS = (
    EVERY,
    "global_rope_theta",
    "layer_types",
    "local_attention",
    "local_rope_theta",
    "rope_parameters",
)
_LAYER = "model.layers.{}."
_OUT = {"out.weight": "classifier.weight", "out.bias": "classifier.bias"}
_POOLED = {
    "pooler.transform.dense.weight": "head.dense.weight",
    "pooler.transform.norm.weight": "head.norm.weight",
    **_OUT,
}
_TOKENS = {
    "transform.dense.weight": "head.dense.weight",
    "transform.norm.weight": "head.norm.weight",
    **_OUT,
}

MODERNBERT = Family(
    name="modernbert",
    vocab=50_368,
    settings={
        "vocab": "vocab_size",
        "hidden": "hidden_size",
        "layers": "num_hidden_layers",
        "heads": "num_attention_heads",
        "intermediate": "intermediate_size",
        "max_positions": "max_position_embeddings",
        "pad_id": "pad_token_id",
        "norm.eps": "norm_eps",
        "head.dropout": "classifier_dropout",
        "head.pooling": "classifier_pooling",
    },
    fixed={
        "token_types": 0,
        "feedforward.gated": True,
        "norm.place": "pre",
        "norm.first": False,
        "norm.final": True,
        "norm.bias": False,
        "attention.bias": False,
        "feedforward.bias": False,
        "head.bias": False,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "head.activation": "gelu",
        "head.norm": True,
        "head.answer_dropout": "head.dropout",
    },
    defaults={
        "layers": LAYERS,
        "intermediate": 1152,
        "max_positions": 8192,
        "pad_id": 50_283,
        "norm.eps": 1e-5,
        "positions": RotaryPositions(base=ROTARY),
        "head.dropout": 0.0,
        "attention.window": WindowSettings(
            tokens=LOCAL_ATTENTION // 2, global_every=GLOBAL_EVERY, base=WINDOW_ROTARY
        ),
    },
    special=Special(("positions", "attention.window"), _read, _write, _KEYS),
    activation="hidden_activation",
    token_ids={**TOKEN_IDS, "cls_token_id": "cls", "sep_token_id": "sep"},
    neutral={
        "classifier_activation": ("gelu",),
        "embedding_dropout": (0.0,),
        "attention_dropout": (0.0,),
        "mlp_dropout": (0.0,),
        "norm_bias": (False,),
        "attention_bias": (False,),
        "mlp_bias": (False,),
        "classifier_bias": (False,),
        "decoder_bias": (True,),
        "tie_word_embeddings": (True,),
    },
    irrelevant={
        "cls_token_id": SPECIAL_TOKENS,
        "deterministic_flash_attn": RUNTIME,
        "initializer_cutoff_factor": NEW_WEIGHTS,
        "reference_compile": RUNTIME,
        "repad_logits_with_grad": RUNTIME,
        "sep_token_id": SPECIAL_TOKENS,
        "sparse_pred_ignore_index": TRAINING,
        "sparse_prediction": TRAINING,
    },
    body={
        "encoder.embedding.tokens.weight": "model.embeddings.tok_embeddings.weight",
        "encoder.embedding.norm.weight": "model.embeddings.norm.weight",
        "encoder.blocks.{}.attention.qkv.weight": f"{_LAYER}attn.Wqkv.weight",
        "encoder.blocks.{}.attention.out.weight": f"{_LAYER}attn.Wo.weight",
        "encoder.blocks.{}.attention_norm.weight": f"{_LAYER}attn_norm.weight",
        "encoder.blocks.{}.feedforward.up.weight": f"{_LAYER}mlp.Wi.weight",
        "encoder.blocks.{}.feedforward.down.weight": f"{_LAYER}mlp.Wo.weight",
        "encoder.blocks.{}.feedforward_norm.weight": f"{_LAYER}mlp_norm.weight",
        "encoder.norm.weight": "model.final_norm.weight",
    },
    prefix="model.",
    heads={
        "mlm": {
            "dense.weight": "head.dense.weight",
            "norm.weight": "head.norm.weight",
            "bias": "decoder.bias",
        },
        "classify": _POOLED,
        "choose": _POOLED,
        "answer": _TOKENS,
        "tag": _TOKENS,
        "crf": {**_TOKENS, **CRF},
    },
    derived={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    architectures=architectures("ModernBert"),
)
