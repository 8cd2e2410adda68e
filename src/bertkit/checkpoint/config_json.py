"""What `config.json` says of a model: read from folders of others, and written as they read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from bertkit.errors import CheckpointError, ConfigError, did_you_mean
from bertkit.families import FAMILIES, OTHERS, Family, family_of
from bertkit.models.config import EncoderConfig
from bertkit.models.model import BERTKIT_HEADS, HEADS, Model
from bertkit.text.tokenizer import Tokenizer


def read_config(
    path: Path, settings: Mapping[str, Any], family: Family | None = None
) -> tuple[Family, EncoderConfig, EncoderConfig | None]:
    """Return the family, and the shapes of the encoder and of the decoder.

    Args:
        path: File of the settings, for messages.
        settings: Content of config.json.
        family: Default: the family of `model_type`.

    Raises:
        CheckpointError: If the family or the shape is not supported, or code would have to run.
    """
    kind = settings.get("model_type")
    if not _known_code(settings):
        raise CheckpointError(
            f"{path}: auto_map asks to run code that came with the model; bertkit runs none; "
            "use a checkpoint of a family it knows (" + ", ".join(FAMILIES) + ")"
        )
    family = family or family_of(kind)
    if family is None:
        known = ", ".join(FAMILIES)
        has = OTHERS.get(kind) if isinstance(kind, str) else None
        near = did_you_mean(kind, FAMILIES) if isinstance(kind, str) and has is None else ""
        raise CheckpointError(
            f"{path}: model_type = {kind!r}, an architecture that bertkit has not"
            + (f", with {has}" if has else "")
            + (f"; {near}" if near.endswith("?") else f"; take a model of one it has: {known}")
        )
    try:
        return family, family.read_config(settings), family.read_decoder(settings)
    except (ValueError, ConfigError) as error:
        raise CheckpointError(f"{path}: {error}") from None


def _known_code(settings: Mapping[str, Any]) -> bool:
    """Whether a folder asks for no code of its own, or for such as its family computes here."""
    asked, family = settings.get("auto_map"), family_of(settings.get("model_type"))
    if asked is None:
        return True
    if family is None or not family.code or not isinstance(asked, dict):
        return False
    return all(isinstance(name, str) and name.startswith(family.code) for name in asked.values())


def heads_of(settings: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    """The heads that a folder of ours names."""
    bertkit = settings.get("bertkit", {})
    heads = bertkit.get("heads", []) if isinstance(bertkit, dict) else None
    if not isinstance(heads, list) or not all(isinstance(head, str) for head in heads):
        raise CheckpointError(f"{path}: bertkit.heads is no list of names")
    return tuple(heads)


def length_of(settings: Mapping[str, Any], path: Path) -> int | None:
    """The longest sequence that a folder of ours is meant for."""
    length = settings.get("bertkit", {}).get("length")
    if length is not None and not (isinstance(length, int) and length > 2):
        raise CheckpointError(f"{path}: bertkit.length is no number of tokens")
    return length


def architecture_of(settings: Mapping[str, Any]) -> str:
    """The class of transformers that wrote a folder, if it says so."""
    match settings.get("architectures"):
        case [str(name), *_]:
            return name
    return ""


def labels_of(
    settings: Mapping[str, Any], family: Family, weights: Mapping[str, Tensor], path: Path
) -> tuple[str, ...]:
    """Names of the classifier's outputs; numbers, as in transformers, where none are given."""
    names = settings.get("id2label")
    if not names:
        rows = (weights.get(name) for name in family.outputs)
        outputs = max((len(r) if r is not None and r.ndim else 0 for r in rows), default=0)
        return tuple(f"LABEL_{i}" for i in range(outputs))
    try:
        return tuple(str(names[key]) for key in sorted(names, key=int))
    except (TypeError, ValueError):
        raise CheckpointError(f"{path}: id2label does not name labels by their number") from None


def config_of(
    model: Model,
    tokenizer: Tokenizer,
    family: Family,
    labels: Sequence[str],
    settings: Mapping[str, Any],
    length: int | None,
) -> dict[str, Any]:
    """The file of a model that is saved. Raises: CheckpointError for what no folder can hold."""
    heads, decoder = tuple(model.heads), model.decoder
    known = frozenset(head for head in heads if head in HEADS and head not in BERTKIT_HEADS)
    if known not in family.architectures:
        raise CheckpointError(
            f"a {family.name} folder cannot hold the heads {', '.join(heads)} together; "
            "save them apart"
        )
    if family.positions_after_pad and tokenizer.pad != model.config.pad_id:
        raise CheckpointError(
            f"the tokenizer's padding piece has id {tokenizer.pad}, the model's pad is "
            f"{model.config.pad_id}; a {family.name} folder counts positions from it"
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
        config["num_labels"] = 1  # their class is that of labels, which are two by default
    if labels:
        config["id2label"] = {str(i): name for i, name in enumerate(labels)}
        config["label2id"] = {name: i for i, name in enumerate(labels)}
    return config
