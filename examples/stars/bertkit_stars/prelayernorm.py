"""RoBERTa-PreLayerNorm: RoBERTa with layer normalization before each sublayer.

Source: Ott et al. 2019 (fairseq, option `--encoder-normalize-before`).
"""

from __future__ import annotations

from dataclasses import replace

from bertkit.families.family import (
    architectures,
    bert_layers,
    embeddings,
    module,
    roberta_derived,
    roberta_heads,
)
from bertkit.families.roberta import ROBERTA

PREFIX = "roberta_prelayernorm."
LAYER = f"{PREFIX}encoder.layer.{{}}."

ROBERTA_PRELAYERNORM = replace(
    ROBERTA,
    name="roberta-prelayernorm",
    fixed={**ROBERTA.fixed, "norm.place": "pre", "norm.final": True},
    body={
        **embeddings(f"{PREFIX}embeddings."),
        **bert_layers(LAYER),
        **module("encoder.blocks.{}.attention_norm", f"{LAYER}attention.LayerNorm"),
        **module("encoder.blocks.{}.feedforward_norm", f"{LAYER}intermediate.LayerNorm"),
        **module("encoder.norm", f"{PREFIX}LayerNorm"),
    },
    prefix=PREFIX,
    heads=roberta_heads(PREFIX),
    derived=roberta_derived(PREFIX),
    ignored=(f"{PREFIX}embeddings.position_ids",),
    architectures=architectures(
        "RobertaPreLayerNorm", (frozenset({"pooler"}), "RobertaPreLayerNormModel")
    ),
)
