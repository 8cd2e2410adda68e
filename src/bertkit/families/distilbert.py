"""DistilBERT: BERT with half the layers and without token types. Sanh et al. 2019.

`sinusoidal_pos_embds` determines only how the position embedding is initialized. It is trained and
stored like other weights.
"""

from __future__ import annotations

from bertkit.families.family import (
    TOKEN_HEADS,
    Family,
    architectures,
    embeddings,
    masked_lm,
    module,
    pooled,
)

_LAYER = "distilbert.transformer.layer.{}."
_QKV = (f"{_LAYER}attention.{part}" for part in ("q_lin", "k_lin", "v_lin"))
_CLASSIFIER = pooled("pre_classifier", "classifier")

DISTILBERT = Family(
    name="distilbert",
    settings={
        "vocab": "vocab_size",
        "hidden": "dim",
        "layers": "n_layers",
        "heads": "n_heads",
        "intermediate": "hidden_dim",
        "max_positions": "max_position_embeddings",
        "pad_id": "pad_token_id",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "head.dropout": "seq_classif_dropout",
        "head.answer_dropout": "qa_dropout",
    },
    fixed={
        "token_types": 0,
        "head.activation": "relu",
        "attention.output_dropout": 0.0,
        "head.tag_dropout": "dropout",
    },
    defaults={"layers": 6, "head.dropout": 0.2, "head.answer_dropout": 0.1},
    activation="activation",
    aliases={
        "hidden_size": "dim",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
    },
    irrelevant={"sinusoidal_pos_embds": "initial values of the positions; the weights are stored"},
    body={
        **embeddings("distilbert.embeddings.", types=False),
        **module("encoder.blocks.{}.attention.qkv", *_QKV),
        **module("encoder.blocks.{}.attention.out", f"{_LAYER}attention.out_lin"),
        **module("encoder.blocks.{}.attention_norm", f"{_LAYER}sa_layer_norm"),
        **module("encoder.blocks.{}.feedforward.up", f"{_LAYER}ffn.lin1"),
        **module("encoder.blocks.{}.feedforward.down", f"{_LAYER}ffn.lin2"),
        **module("encoder.blocks.{}.feedforward_norm", f"{_LAYER}output_layer_norm"),
    },
    prefix="distilbert.",
    heads={
        "mlm": masked_lm("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
        "classify": _CLASSIFIER,
        "choose": _CLASSIFIER,
        **TOKEN_HEADS,
    },
    derived={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    architectures=architectures("DistilBert"),
)
