"""Tables of the keys in the files of a sentence-transformers directory."""

from __future__ import annotations

from typing import Any

from bertkit.nn.pooling import Mode
from bertkit.published_keys import KeyTable

MODES: dict[str, Mode] = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max"}
"""bertkit's name for each pooling mode of sentence-transformers."""

OTHER_MODES = ("mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
"""Pooling modes of sentence-transformers that bertkit does not support."""

_SHAPE = "the weights determine it"
_VECTOR = ("sentence_embedding", None)
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    f"{part}_{name}": (None, {}, {"trust_remote_code": False}, {"trust_remote_code": True})
    for part in ("model", "tokenizer", "processor", "config")
    for name in ("args", "kwargs")
}
_FORWARD = {"method": "forward", "method_output_name": "last_hidden_state"}

SETTINGS_KEYS = KeyTable(
    applied=("prompts", "default_prompt_name", "similarity_fn_name"),
    irrelevant={
        "__version__": "versions of the libraries that wrote the file",
        "requirements": "versions of packages that sentence-transformers checks",
    },
    neutral={"truncate_dim": (None,), "model_type": ("SentenceTransformer", None)},
)
MODULES_KEYS = KeyTable(
    applied=("path", "type"),
    irrelevant={
        "idx": "the order of the list determines the order of the modules",
        "name": "only the order of the modules matters",
        "kwargs": "names of optional arguments of encode, which bertkit does not have",
    },
)
TRANSFORMER_KEYS = KeyTable(
    applied=("max_seq_length", "do_lower_case"),
    irrelevant={
        "unpad_inputs": "bertkit does not use padding",
        "backend": "an argument of sentence-transformers overrides it",
    },
    neutral={
        "transformer_task": ("feature-extraction",),
        "modality_config": ({"text": _FORWARD}, None),
        "module_output_name": ("token_embeddings", None),
        "processing_kwargs": (None, {}),
        "query_length": (None,),
        "document_length": (None,),
        "query_expansion": (None,),
        "tokenizer_name_or_path": (None,),
        **_ARGUMENTS,
    },
)
RERANKER_KEYS = KeyTable(
    applied=("max_seq_length",),
    irrelevant=dict.fromkeys(("modality_config", "module_output_name"), "it names the logits"),
    neutral={
        "transformer_task": ("sequence-classification",),
        "do_lower_case": (False, None),
        **{key: TRANSFORMER_KEYS.neutral[key] for key in ("processing_kwargs", *_ARGUMENTS)},
    },
)
RERANKER_SETTINGS_KEYS = KeyTable(
    irrelevant={"activation_fn": "bertkit returns logits", "__version__": "see above"},
    neutral={"model_type": ("CrossEncoder", None), "default_prompt_name": (None,)},
)
POOLING_KEYS = KeyTable(
    applied=("pooling_mode", *(f"pooling_mode_{name}" for name in MODES), "include_prompt"),
    irrelevant={"embedding_dimension": _SHAPE, "word_embedding_dimension": _SHAPE},
    neutral=dict.fromkeys((f"pooling_mode_{name}" for name in OTHER_MODES), (False, None)),
)
DENSE_KEYS = KeyTable(
    applied=("in_features", "out_features", "bias", "activation_function"),
    irrelevant={"init_weight": "the weights replace it", "init_bias": "the weights replace it"},
    neutral={
        "use_residual": (False, None),
        "module_input_name": _VECTOR,
        "module_output_name": _VECTOR,
    },
)
NORMALIZE_KEYS = KeyTable(neutral={"module_input_name": _VECTOR, "module_output_name": _VECTOR})
