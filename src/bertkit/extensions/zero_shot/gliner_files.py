"""Reading of GLiNER directories: `gliner_config.json`, weights, tokenizer, and encoder settings."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import msgspec
import tokenizers
from torch import Tensor

from bertkit.checkpoint.directory import Loaded, Stored, load
from bertkit.checkpoint.hub import resolve
from bertkit.checkpoint.pooling_files import read_object
from bertkit.checkpoint.weights import read_tensors
from bertkit.errors import CheckpointError
from bertkit.extensions.zero_shot.gliner import KEYS, EntityHead, GlinerConfig
from bertkit.families import family_of
from bertkit.text.tokenizer import Tokenizer

CONFIG, ENCODER_CONFIG = "gliner_config.json", "config.json"

HEAD = "entities"
"""Name of the head in the loaded model."""

PREFIXES = {
    "token_rep_layer.bert_layer.model.": "",
    "token_rep_layer.projection.": f"heads.{HEAD}.projection.",
    "rnn.lstm.": f"heads.{HEAD}.lstm.",
    "prompt_rep_layer.": f"heads.{HEAD}.scorer.label.",
    "span_rep_layer.span_rep_layer.out_project.": f"heads.{HEAD}.scorer.out_project.",
    "span_rep_layer.span_rep_layer.project_": f"heads.{HEAD}.scorer.project_",
    "scorer.": f"heads.{HEAD}.scorer.",
}
"""Prefixes of weight names in the files, and the prefixes that replace them in the loaded model."""


def load_gliner(model: str | Path, revision: str | None = None) -> Loaded:
    """Load a GLiNER model, including its head.

    Args:
        model: Directory or hub id of the model.
        revision: Revision to load, if `model` is a hub id.

    Raises:
        CheckpointError: If the directory does not contain a GLiNER model, if a file is missing or
            invalid, or if a setting is not supported.
    """
    folder = resolve(model, revision)
    if not (folder / CONFIG).exists():
        raise CheckpointError(f"{folder}: {CONFIG} is missing; use the directory of a GLiNER model")
    config = read_gliner_config(folder)
    loaded = load(folder, heads={HEAD: lambda encoder: EntityHead(config, encoder.config.hidden)})
    if missing := [_published_name(name) for name in loaded.report.fresh]:
        raise CheckpointError(f"{folder}: missing {', '.join(missing)}; download the model again")
    return loaded


def read_gliner_config(folder: Path) -> GlinerConfig:
    """Read the settings of a GLiNER directory.

    Args:
        folder: The directory.

    Raises:
        CheckpointError: If the file is missing or invalid, or a setting is not supported.
    """
    path = folder / CONFIG
    content = read_object(path)
    try:
        KEYS.check(content)
        return msgspec.convert(content, GlinerConfig)
    except ValueError as error:  # msgspec's error is a subclass
        raise CheckpointError(f"{path}: {error}; use another model") from None


def stored_gliner(folder: Path) -> Stored:
    """Read the parts of a GLiNER model.

    Args:
        folder: The directory.

    Raises:
        CheckpointError: If a file is missing or invalid, or a setting is not supported.
    """
    path, config = folder / CONFIG, read_gliner_config(folder)
    settings = config.encoder_config
    if settings is None:
        if not (folder / ENCODER_CONFIG).exists():
            raise CheckpointError(
                f"{path}: the setting encoder_config is missing; save {ENCODER_CONFIG} and the "
                "tokenizer of the encoder (model_name) in the same directory"
            )
        settings = read_object(folder / ENCODER_CONFIG)
    settings = {"model_type": "deberta-v2", **settings}
    family = family_of(settings["model_type"])
    if family is not None and "mlm" not in family.heads:
        raise CheckpointError(
            f"{path}: encoder_config.model_type = {family.name!r} is not supported; use a model "
            "whose encoder is a BERT, such as deberta-v2"
        )
    tokenizer = _read_tokenizer(folder, config)
    vocab = tokenizer.vocab_size if config.adds_tokens else config.vocab_size
    return Stored(
        path, {**settings, "vocab_size": vocab}, partial(_read_weights, folder), lambda: tokenizer
    )


def _read_weights(folder: Path) -> dict[str, Tensor]:
    """Read the weights of a GLiNER model, and give them the names that `load` expects."""
    weights = {}
    for name, tensor in read_tensors(folder).items():
        prefix = next(filter(name.startswith, PREFIXES), "")
        weights[PREFIXES.get(prefix, "") + name.removeprefix(prefix)] = tensor
    return weights


def _published_name(name: str) -> str:
    """Return the name that a weight of the head has in the files."""
    prefixes = {ours: theirs for theirs, ours in PREFIXES.items() if ours}
    prefix = max(filter(name.startswith, prefixes), key=len)
    return prefixes[prefix] + name.removeprefix(prefix)


def _read_tokenizer(folder: Path, config: GlinerConfig) -> Tokenizer:
    """Read the tokenizer, and add GLiNER's special tokens if they are missing.

    Raises:
        CheckpointError: If the id of `ent_token` in the tokenizer differs from that in the
            settings.
    """
    tokenizer = Tokenizer.load(folder)
    if config.adds_tokens:
        core = tokenizers.Tokenizer.from_str(tokenizer.core.to_str())
        core.add_special_tokens(["[FLERT]", config.ent_token, config.sep_token])
        return tokenizer.remade(core)
    found = tokenizer.core.token_to_id(config.ent_token)
    if found != config.class_token_index:
        raise CheckpointError(
            f"{folder / CONFIG}: class_token_index is {config.class_token_index}, but "
            f"{config.ent_token!r} has the id {found} in the tokenizer; use the tokenizer that "
            "belongs to the model"
        )
    return tokenizer
