"""Keys of `config.json` that several families share, and how bertkit treats them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WEIGHTS = "the stored weights determine it"
SPECIAL_TOKENS = "the tokenizer determines the special tokens"
NEW_WEIGHTS = "standard deviation of newly initialized weights"
RETURNED = "selects which values transformers returns"
RUNTIME = "changes speed or memory use only"
TRAINING = "changes the training loss only"
UNUSED_HEAD = "belongs to a head that bertkit does not load"

APPLIED = ("architectures", "auto_map", "bertkit", "id2label", "model_type", "problem_type")
"""Keys that bertkit reads for every family."""

TOKEN_IDS: Mapping[str, str] = {"bos_token_id": "cls", "eos_token_id": "sep"}
"""Keys for token ids in the `config.json` of an encoder -> the special token. If a key is missing,
transformers uses its own default id.
"""

GENERATION = ("decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id")
"""Keys that bertkit reads for text generation, in families with a decoder."""

IRRELEVANT: Mapping[str, str] = {
    "_attn_implementation": RUNTIME,
    "_name_or_path": "name of the directory that the model was loaded from",
    "attn_implementation": RUNTIME,
    "bos_token_id": SPECIAL_TOKENS,
    "chunk_size_feed_forward": RUNTIME,
    "dtype": "--precision selects the dtype",
    "eos_token_id": SPECIAL_TOKENS,
    "finetuning_task": "name of a data set",
    "gradient_checkpointing": RUNTIME,
    "initializer_range": NEW_WEIGHTS,
    "label2id": "inverse of id2label",
    "name_or_path": "name of the directory that the model was loaded from",
    "num_labels": WEIGHTS,
    "output_attentions": RETURNED,
    "output_hidden_states": RETURNED,
    "return_dict": RETURNED,
    "tie_last_hidden_states": RETURNED,
    "tie_word_embeddings": WEIGHTS,
    "torch_dtype": "--precision selects the dtype",
    "torchscript": RETURNED,
    "transformers_version": "version of the library that wrote the file",
    "use_cache": RUNTIME,
}
"""Keys that do not affect the outputs of any family -> the reason."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "is_decoder": (False,),
    "is_encoder_decoder": (False,),
    "per_layer_config": (None, {}),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
}
"""Keys of features that bertkit does not support in any family -> the accepted values, with which
the feature is off.
"""

ENCODER: Mapping[str, tuple[Any, ...]] = {"is_decoder": (False,), "add_cross_attention": (False,)}
"""Keys that are saved for encoders -> their only supported value."""

DECODER: Mapping[str, str] = {"is_decoder": "the architecture determines it"}
"""Keys that have no effect in a family with a decoder -> the reason."""
