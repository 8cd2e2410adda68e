"""NomicBERT (nomic-embed-text 1 and 1.5): rotary positions and gated layers without biases.

Source: Nussbaum et al. 2024, section 3.1. A checkpoint uses the original settings, which are named
as in GPT-2, or the settings of transformers 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertkit.families.family import (
    BERT_SETTINGS,
    CRF,
    Family,
    Special,
    architectures,
    embeddings,
    masked_lm,
    module,
    pooled,
)
from bertkit.families.rotary import rotary_base
from bertkit.models.config import RotaryPositions, TransformerConfig
from bertkit.published_keys import KeyTable

ROTARY, TRAINED = 1000.0, 2048

OLDER = {
    "hidden": "n_embd",
    "layers": "n_layer",
    "heads": "n_head",
    "intermediate": "n_inner",
    "norm.eps": "layer_norm_epsilon",
    "dropout": "resid_pdrop",
    "attention_dropout": "attn_pdrop",
    "max_positions": "max_trained_positions",
}
"""bertkit's settings -> the names of the original settings. `max_positions` is the length that the
model was trained with, because longer texts would need scaled angles.
"""

OLDER_VALUES: Mapping[str, Any] = {
    "activation_function": "swiglu",
    "causal": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "use_rms_norm": False,
}
"""Keys that files with the original settings must contain -> their only supported value."""

OLDER_KEYS = KeyTable(
    neutral={
        "rotary_emb_scale_base": (None,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "scale_attn_weights": (True,),
    }
)
"""Keys that files with the original settings may omit."""


def _read(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a `config.json` to special settings. Raises ValueError for unsupported values."""
    if "n_embd" in hf_config:
        OLDER_KEYS.check(hf_config)
        for name, only in OLDER_VALUES.items():
            if hf_config.get(name) != only:
                raise ValueError(
                    f"{name} must be {only!r} for nomic_bert, got {hf_config.get(name)!r}"
                )
        given = {path: hf_config[name] for path, name in OLDER.items() if name in hf_config}
        base = hf_config.get("rotary_emb_base", ROTARY)
        return {
            "max_positions": TRAINED,
            **given,
            "feedforward.activation": "silu",
            "positions": {"kind": "rotary", "base": base},
        }
    angles = hf_config.get("rope_parameters")
    angles = {} if angles is None else angles
    if not isinstance(angles, dict) or angles.get("rope_type", "default") != "default":
        raise ValueError(
            f"rope_parameters must have rope_type 'default' for nomic_bert, got {angles!r}"
        )
    width, hidden, heads = (
        hf_config.get(name) for name in ("head_dim", "hidden_size", "num_attention_heads")
    )
    if isinstance(width, int) and isinstance(heads, int) and width * heads != hidden:
        raise ValueError(
            f"head_dim must be hidden_size / num_attention_heads for nomic_bert, got {width}"
        )
    return {"positions": {"kind": "rotary", "base": angles.get("rope_theta", ROTARY)}}


def _write(config: TransformerConfig) -> dict[str, Any]:
    base = rotary_base(config, "nomic_bert")
    return {"rope_parameters": {"rope_type": "default", "rope_theta": base}}


_KEYS = (
    *OLDER.values(),
    *OLDER_VALUES,
    *OLDER_KEYS.neutral,
    "rotary_emb_base",
    "rope_parameters",
    "head_dim",
)
_LAYER = "nomic_bert.encoder.layers.{}."
_CLASSIFIER = pooled("nomic_bert.pooler.dense", "classifier")

NOMIC_BERT = Family(
    name="nomic_bert",
    code=("nomic-ai/nomic-bert-2048--",),
    vocab=30_528,
    settings={**BERT_SETTINGS, "head.dropout": "classifier_dropout"},
    fixed={"feedforward.gated": True, "attention.bias": False, "feedforward.bias": False},
    defaults={
        "max_positions": TRAINED,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "feedforward.activation": "silu",
        "positions": RotaryPositions(base=ROTARY),
    },
    special=Special(("positions",), _read, _write, _KEYS),
    body={
        **embeddings("nomic_bert.embeddings.", positions=False),
        **module("encoder.embedding.norm", "nomic_bert.emb_ln"),
        "encoder.blocks.{}.attention.qkv.weight": f"{_LAYER}attn.Wqkv.weight",
        "encoder.blocks.{}.attention.out.weight": f"{_LAYER}attn.out_proj.weight",
        **module("encoder.blocks.{}.attention_norm", f"{_LAYER}norm1"),
        "encoder.blocks.{}.feedforward.up.weight": (
            f"{_LAYER}mlp.fc12.weight",
            f"{_LAYER}mlp.fc11.weight",
        ),
        "encoder.blocks.{}.feedforward.down.weight": f"{_LAYER}mlp.fc2.weight",
        **module("encoder.blocks.{}.feedforward_norm", f"{_LAYER}norm2"),
    },
    prefix="nomic_bert.",
    heads={
        "mlm": masked_lm(
            "cls.predictions.transform.dense",
            "cls.predictions.transform.layer_norm",
            "cls.predictions.bias",
        ),
        "classify": _CLASSIFIER,
        "tag": module("out", "classifier"),
        "crf": {**module("out", "classifier"), **CRF},
    },
    derived={
        "cls.predictions.decoder.weight": "nomic_bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    architectures=architectures("NomicBert", missing=("choose", "answer")),
)
