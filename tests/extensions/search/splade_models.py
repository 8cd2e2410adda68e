"""Small SPLADE directories with random weights, in the layouts of sentence-transformers."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

from tests.factories import tiny_model, tiny_tokenizer

from bertkit.checkpoint.directory import save
from bertkit.families import BERT

LENGTH = 16
LONG = " ".join(string.ascii_lowercase)
TEXTS = ["a b", "c", "d e f g", "x y z . x", "", LONG[: 2 * (LENGTH - 2)]]


def write_mlm(folder: Path, vocab: int = 32) -> Path:
    """Save a masked language model, without files of sentence-transformers."""
    tokenizer = tiny_tokenizer([*string.ascii_lowercase, "."])
    model = tiny_model(vocab, "mlm", length=LENGTH, spread=0.5)
    save(folder, model, tokenizer, BERT)
    return folder


def write_splade(
    folder: Path,
    pooling: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    vocab: int = 32,
) -> Path:
    """Save a SPLADE model as version 5 of sentence-transformers does.

    `pooling` and `settings` are changed keys of the files of the pooling and of the model.
    """
    write_mlm(folder, vocab)
    package = "sentence_transformers.sparse_encoder.models"
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": f"{package}.MLMTransformer"},
        {"idx": 1, "name": "1", "path": "1_SpladePooling", "type": f"{package}.SpladePooling"},
    ]
    config = {"pooling_strategy": "max", "activation_function": "relu", "embedding_dimension": None}
    contents = {
        "modules.json": modules,
        "1_SpladePooling/config.json": {**config, **(pooling or {})},
        "sentence_bert_config.json": {"max_seq_length": LENGTH, "do_lower_case": False},
        "config_sentence_transformers.json": {
            "model_type": "SparseEncoder",
            "prompts": {"query": "q u ", "document": ""},
            "default_prompt_name": None,
            "similarity_fn_name": "dot",
            **(settings or {}),
        },
    }
    (folder / "1_SpladePooling").mkdir()
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder
