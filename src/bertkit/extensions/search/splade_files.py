"""Files of SPLADE models in the format of sentence-transformers (`SparseEncoder`)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from bertkit.checkpoint.directory import Stored
from bertkit.checkpoint.pooling_files import (
    LENGTH,
    MODULES,
    SETTINGS,
    check_keys,
    max_length_of,
    module_folder,
    module_type,
    read_json,
    read_object,
    read_settings,
    read_transformer,
)
from bertkit.checkpoint.pooling_keys import SETTINGS_KEYS, TRANSFORMER_KEYS
from bertkit.checkpoint.weights import read_tensors
from bertkit.config import Count
from bertkit.errors import CheckpointError
from bertkit.text.prompts import Prompts
from bertkit.text.tokenizer import Tokenizer

TASKS = {"MLMTransformer": "fill-mask", "Transformer": "feature-extraction"}
"""Types of the first module, with their default `transformer_task`."""

_FIXED = {**TRANSFORMER_KEYS.neutral, "do_lower_case": (False,), "transformer_task": ("fill-mask",)}
_FIXED["modality_config"] = ({"text": {"method": "forward", "method_output_name": "logits"}},)

ENCODER_KEYS = replace(TRANSFORMER_KEYS, applied=("max_seq_length",), neutral=_FIXED)
"""Keys of `sentence_bert_config.json`."""

SPARSE_KEYS = replace(SETTINGS_KEYS, neutral={"model_type": ("SparseEncoder", None)})
"""Keys of `config_sentence_transformers.json`, in addition to `max_active_dims`."""


class Splade(msgspec.Struct, frozen=True):
    """Settings of the conversion of MLM logits to weights, with their names in the files."""

    pooling_strategy: Literal["max", "sum"] = "max"
    activation_function: Literal["relu", "log1p_relu"] = "relu"
    max_active_dims: Count | None = None
    prompts: Prompts = Prompts()


def read_splade(folder: Path) -> Splade:
    """Read the settings of a SPLADE model.

    Args:
        folder: Directory of the model.

    Returns:
        The settings, or the default settings if the directory has no modules.

    Raises:
        CheckpointError: If a file is invalid, or a module or a setting is not supported.
    """
    if not (folder / MODULES).exists():
        return Splade()
    path, settings = _modules(folder)[2] / "config.json", folder / SETTINGS
    prompts = read_settings(settings, SPARSE_KEYS).prompts
    most = read_object(settings).get("max_active_dims") if settings.exists() else None
    values = {**read_object(path), "max_active_dims": most, "prompts": prompts}
    try:
        return msgspec.convert(values, Splade)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{path.parent}: {error}; use another model") from None


def stored_splade(folder: Path) -> Stored:
    """Return the parts of a SPLADE model.

    Args:
        folder: Directory of the model.

    Raises:
        CheckpointError: If a file is invalid, or a module or a setting is not supported.
    """
    kind, encoder, _ = _modules(folder)
    values = {"transformer_task": TASKS[kind], **read_transformer(encoder, ENCODER_KEYS)}
    check_keys(ENCODER_KEYS, values, encoder / LENGTH)
    read_splade(folder)
    settings, length = read_object(encoder / "config.json"), max_length_of(values, encoder)
    weights, tokenizer = partial(read_tensors, encoder), partial(Tokenizer.load, encoder)
    return Stored(encoder, settings, weights, tokenizer, length=length)


def _modules(folder: Path) -> tuple[str, Path, Path]:
    """Return the type of the first module, and the directories of both modules."""
    match read_json(folder / MODULES):
        case [{"path": str(first), "type": str(kind)}, {"path": str(second), "type": str(last)}]:
            module_type(folder, last, ["SpladePooling"])
            kind = module_type(folder, kind, TASKS)
            return kind, module_folder(folder, first), module_folder(folder, second)
    raise CheckpointError(f"{folder / MODULES}: a SPLADE model has two modules; use another model")
