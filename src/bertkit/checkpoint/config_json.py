"""Functions that read and create `config.json` in the format of transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from bertkit.errors import CheckpointError, ConfigError, did_you_mean
from bertkit.families import FAMILIES, UNSUPPORTED_MODELS, Family, family_of
from bertkit.models.config import EncoderConfig
from bertkit.models.model import BERTKIT_HEADS, HEADS, Model
from bertkit.text.tokenizer import Tokenizer


def read_config(
    path: Path, settings: Mapping[str, Any], family: Family | None = None
) -> tuple[Family, EncoderConfig, EncoderConfig | None]:
    """Return the family of a model, and the configurations of its encoder and decoder.

    Args:
        path: Path of config.json, for error messages.
        settings: Content of config.json.
        family: Family of the model. Default: the family of the `model_type` in the settings.

    Raises:
        CheckpointError: If the family or a setting is not supported, or the model requires remote
            code.
    """
    kind, known = settings.get("model_type"), ", ".join(FAMILIES)
    if not _is_code_supported(settings):
        raise CheckpointError(
            f"{path}: auto_map requires remote code, which bertkit does not run; use a checkpoint "
            f"of a supported family ({known})"
        )
    family = family or family_of(kind)
    if family is None:
        if kind is None:
            raise CheckpointError(
                f"{path}: has no model_type; add the architecture of the weights, such as "
                '"model_type": "bert"'
            )
        feature = UNSUPPORTED_MODELS.get(str(kind))
        near = did_you_mean(str(kind), FAMILIES) if feature is None else ""
        raise CheckpointError(
            f"{path}: model_type = {kind!r} is not supported"
            + (f", because it has {feature}" if feature else "")
            + (f"; {near}" if near.endswith("?") else f"; use one of these families: {known}")
        )
    try:
        return family, family.read_config(settings), family.read_decoder(settings)
    except (ValueError, ConfigError) as error:
        raise CheckpointError(f"{path}: {error}") from None


def _is_code_supported(settings: Mapping[str, Any]) -> bool:
    """Return whether a model needs no remote code, or only code that bertkit implements itself."""
    auto_map, family = settings.get("auto_map"), family_of(settings.get("model_type"))
    if auto_map is None:
        return True
    if family is None or not family.code or not isinstance(auto_map, dict):
        return False
    return all(isinstance(name, str) and name.startswith(family.code) for name in auto_map.values())


def heads_of(settings: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    """Return the names of the heads that bertkit recorded when it saved the model.

    Args:
        settings: Content of `config.json`.
        path: Path of `config.json`, for error messages.

    Raises:
        CheckpointError: If the record is invalid.
    """
    bertkit = settings.get("bertkit", {})
    heads = bertkit.get("heads", []) if isinstance(bertkit, dict) else None
    if not isinstance(heads, list) or not all(isinstance(head, str) for head in heads):
        raise CheckpointError(f"{path}: bertkit.heads must be a list of names")
    return tuple(heads)


def length_of(settings: Mapping[str, Any], path: Path) -> int | None:
    """Return the maximum number of tokens that bertkit recorded when it saved the model, if any.

    Args:
        settings: Content of `config.json`.
        path: Path of `config.json`, for error messages.

    Raises:
        CheckpointError: If the record is invalid.
    """
    length = settings.get("bertkit", {}).get("length")
    if length is not None and not (isinstance(length, int) and length > 2):
        raise CheckpointError(f"{path}: bertkit.length must be a number of tokens greater than 2")
    return length


def architecture_of(settings: Mapping[str, Any]) -> str:
    """Return the name of the model's class in transformers, or "" if it is unknown."""
    match settings.get("architectures"):
        case [str(name), *_]:
            return name
    return ""


def labels_of(
    settings: Mapping[str, Any], family: Family, weights: Mapping[str, Tensor], path: Path
) -> tuple[str, ...]:
    """Return the names of a classifier's outputs, or LABEL_0, LABEL_1, ... if there are no names.

    Args:
        settings: Content of `config.json`.
        family: Family of the model.
        weights: Weights of the model.
        path: Path of `config.json`, for error messages.

    Raises:
        CheckpointError: If `id2label` is invalid.
    """
    names = settings.get("id2label")
    rows = (weights.get(name) for name in family.outputs)
    outputs = max((len(r) if r is not None and r.ndim else 0 for r in rows), default=0)
    if not names:
        return tuple(f"LABEL_{i}" for i in range(outputs))
    try:
        labels = {int(key): str(names[key]) for key in sorted(names, key=int)}
    except (TypeError, ValueError):
        raise CheckpointError(f"{path}: id2label must be an object with numbers as keys") from None
    if outputs and [*labels] != [*range(len(labels))]:
        raise CheckpointError(
            f"{path}: the keys of id2label must be 0, 1, 2, ..., got {', '.join(names)}; fix them"
        )
    return tuple(labels.values())


def config_of(
    model: Model,
    tokenizer: Tokenizer,
    family: Family,
    labels: Sequence[str],
    settings: Mapping[str, Any],
    length: int | None,
) -> dict[str, Any]:
    """Return the content of a `config.json` for a model.

    Args:
        model: The model.
        tokenizer: Tokenizer of the model.
        family: Family of the model.
        labels: Names of the outputs of the head.
        settings: Additional keys and their values.
        length: Maximum number of tokens to record, or None to record no maximum.

    Raises:
        CheckpointError: If the format of the family cannot represent the model.
    """
    heads, decoder = tuple(model.heads), model.decoder
    known = frozenset(head for head in heads if head in HEADS and head not in BERTKIT_HEADS)
    if known not in family.architectures:
        raise CheckpointError(
            f"heads {', '.join(heads)} cannot be combined in a {family.name} model; save them "
            "separately"
        )
    if family.positions_after_pad and tokenizer.pad != model.config.pad_id:
        raise CheckpointError(
            f"the padding token has id {tokenizer.pad} in the tokenizer, but {model.config.pad_id} "
            f"in the model; {family.name} models need equal ids to compute position ids"
        )
    config = {
        "architectures": [family.architectures[known]],
        **family.write_config(model.config, None if decoder is None else decoder.config),
        **{
            f"{role}_token_id": getattr(tokenizer, role)
            for role in family.written_roles
            if tokenizer.knows(role)
        },
        **{
            key: getattr(tokenizer, role) if tokenizer.knows(role) else None
            for key, role in family.token_ids.items()
        },
        **({"decoder_start_token_id": getattr(tokenizer, family.start)} if family.start else {}),
        "dtype": "float32",
        **settings,
        "bertkit": {
            "heads": list(heads),
            **({} if length is None else {"length": length}),
            **settings.get("bertkit", {}),
        },
    }
    if model.causal and "choose" in heads:
        # transformers loads this head as a classifier, which has two outputs by default.
        config["num_labels"] = 1
    if labels:
        config["id2label"] = {str(i): name for i, name in enumerate(labels)}
        config["label2id"] = {name: i for i, name in enumerate(labels)}
    return config
