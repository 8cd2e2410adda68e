"""GLiNER directories: `gliner_config.json`, weights, tokenizer, and settings of the encoder."""

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
"""Prefixes of weights in the files -> prefixes of weights of the model."""


def load_gliner(model: str | Path, revision: str | None = None) -> Loaded:
    """Load a GLiNER model with its head.

    Args:
        model: Directory or hub id of the model.
        revision: Revision of a hub id.

    Raises:
        CheckpointError: If it is not a GLiNER model, a file is missing or invalid, or a setting is
            not supported.
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
    """Return the parts of a GLiNER model.

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
                f"{path}: encoder_config is missing; save {ENCODER_CONFIG} and the tokenizer of "
                "the encoder (model_name) in the same directory"
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
    """Return the weights of a GLiNER model with the names that `load` expects."""
    weights = {}
    for name, tensor in read_tensors(folder).items():
        prefix = next(filter(name.startswith, PREFIXES), "")
        weights[PREFIXES.get(prefix, "") + name.removeprefix(prefix)] = tensor
    return weights


def _published_name(name: str) -> str:
    """Return the name of a weight of the head in the files."""
    prefixes = {ours: theirs for theirs, ours in PREFIXES.items() if ours}
    prefix = max(filter(name.startswith, prefixes), key=len)
    return prefixes[prefix] + name.removeprefix(prefix)


def _read_tokenizer(folder: Path, config: GlinerConfig) -> Tokenizer:
    """Return the tokenizer with the tokens of GLiNER, which are added if they are missing.

    Raises:
        CheckpointError: If the token of labels does not have the id of the settings.
    """
    tokenizer = Tokenizer.load(folder)
    if config.adds_tokens:
        core = tokenizers.Tokenizer.from_str(tokenizer.core.to_str())
        core.add_special_tokens(["[FLERT]", config.ent_token, config.sep_token])
        return tokenizer.remade(core)
    found = tokenizer.core.token_to_id(config.ent_token)
    if found != config.class_token_index:
        raise CheckpointError(
            f"{folder / CONFIG}: class_token_index = {config.class_token_index}, but "
            f"{config.ent_token!r} has the id {found} in the tokenizer; use the tokenizer of the "
            "model"
        )
    return tokenizer
