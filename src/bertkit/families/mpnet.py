"""MPNet: RoBERTa's embeddings and heads with a relative position bias. Song et al. 2020."""

from __future__ import annotations

from bertkit.families.family import (
    BERT_SETTINGS,
    Family,
    architectures,
    embeddings,
    module,
    roberta_derived,
    roberta_heads,
)
from bertkit.families.keys import TOKEN_IDS
from bertkit.models.config import RelativePositions

_LAYER = "mpnet.encoder.layer.{}."
_QKV = [f"{_LAYER}attention.attn.{part}" for part in "qkv"]

MPNET = Family(
    name="mpnet",
    vocab=30_527,
    settings={
        path: key for path, key in BERT_SETTINGS.items() if path not in ("token_types", "pad_id")
    },
    fixed={
        # In transformers, positions start after this id, even if pad_token_id is different.
        "pad_id": 1,
        "token_types": 0,
        "positions": RelativePositions(buckets=32, learned=True),
        "head.dense_dropout": "dropout",
        "head.mlm_activation": "gelu",
    },
    token_ids=TOKEN_IDS,
    neutral={"relative_attention_num_buckets": (32,), "pad_token_id": (1, None)},
    positions_after_pad=True,
    body={
        **embeddings("mpnet.embeddings.", types=False),
        "encoder.relative.table.weight": "mpnet.encoder.relative_attention_bias.weight",
        **module("encoder.blocks.{}.attention.qkv", *_QKV),
        **module("encoder.blocks.{}.attention.out", f"{_LAYER}attention.attn.o"),
        **module("encoder.blocks.{}.attention_norm", f"{_LAYER}attention.LayerNorm"),
        **module("encoder.blocks.{}.feedforward.up", f"{_LAYER}intermediate.dense"),
        **module("encoder.blocks.{}.feedforward.down", f"{_LAYER}output.dense"),
        **module("encoder.blocks.{}.feedforward_norm", f"{_LAYER}output.LayerNorm"),
    },
    prefix="mpnet.",
    heads=roberta_heads("mpnet."),
    derived=roberta_derived("mpnet."),
    ignored=("mpnet.embeddings.position_ids",),
    architectures=architectures("MPNet", (frozenset({"pooler"}), "MPNetModel")),
)
