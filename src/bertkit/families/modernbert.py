"""ModernBERT: rotary positions, gated layers without biases, and local attention in most layers.

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


def _layer_types(count: int, every: int) -> list[str]:
    return [LOCAL if layer % every else FULL for layer in range(count)]


def _get(hf_config: Mapping[str, Any], name: str, default: Any) -> Any:
    """Return a value of a `config.json`, or `default` if it is missing.

    Raises ValueError if the value does not have the type of `default`.
    """
    value = hf_config.get(name)
    if value is not None and type(value) is not type(default):
        raise ValueError(f"{name} must have type {type(default).__name__}, got {value!r}")
    return default if value is None else value


def _read(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a `config.json` to special settings. Raises ValueError for unsupported values.

    `layer_types` lists the type of each layer. Older files contain the distance between layers with
    global attention instead.
    """
    every, types = _get(hf_config, EVERY, GLOBAL_EVERY), _get(hf_config, "layer_types", [])
    if every < 1:
        raise ValueError(f"{EVERY} must be at least 1, got {every}")
    count = hf_config.get("num_hidden_layers", LAYERS)
    if types and len(types) != count:
        raise ValueError(f"layer_types must have {count} entries, got {len(types)}")
    if types and types != _layer_types(len(types), every):
        every = types.index(FULL, 1) if FULL in types[1:] else len(types)
        if types != _layer_types(len(types), every):
            raise ValueError(
                f"layer_types for modernbert must start with {FULL} and repeat it at equal "
                f"distances, got {types}"
            )
    bases = []
    angles = _get(hf_config, "rope_parameters", {})
    for kind, older, default in (
        (FULL, "global_rope_theta", ROTARY),
        (LOCAL, "local_rope_theta", WINDOW_ROTARY),
    ):
        rope = _get(angles, kind, {})
        if rope.get("rope_type", "default") != "default":
            raise ValueError(
                f"rope_parameters.{kind}.rope_type must be 'default' for modernbert, "
                f"got {rope['rope_type']!r}"
            )
        bases.append(rope.get("rope_theta", hf_config.get(older, default)))
    tokens = _get(hf_config, "local_attention", LOCAL_ATTENTION) // 2
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
        "layer_types": _layer_types(config.layers, every),
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
