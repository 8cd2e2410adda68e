"""How a folder makes vectors of texts, as sentence-transformers writes it down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bertkit.errors import CheckpointError
from bertkit.nn.pool import POOLINGS, Mode, Pooling
from bertkit.storage import write_json

MODES: dict[str, Mode] = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max"}
"""What sentence-transformers calls each pooling."""

MODULES, LENGTH = "modules.json", "sentence_bert_config.json"


def write_pooling(folder: Path, pooling: Pooling, *, hidden: int, length: int) -> None:
    """Make a model's folder one that sentence-transformers opens, with the same vectors."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if pooling.normalize else [])]
    paths = ["", *(f"{number}_{kind}" for number, kind in enumerate(kinds) if number)]
    for path in paths[1:]:
        (folder / path).mkdir(exist_ok=True)
    modes = {name: pooling.mode == mode for name, mode in MODES.items()}
    write_json(
        folder / paths[1] / "config.json",
        {
            "word_embedding_dimension": hidden,
            **{f"pooling_mode_{name}": wanted for name, wanted in modes.items()},
        },
    )
    write_json(folder / LENGTH, {"max_seq_length": length, "do_lower_case": False})
    write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": "cosine"})
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(zip(paths, kinds, strict=True))
    ]
    write_json(folder / MODULES, modules)


def read_pooling(folder: Path) -> tuple[Pooling | None, Path, int | None]:
    """The pooling of a sentence-transformers folder, where its encoder is, and its length."""
    if not (folder / MODULES).exists():
        return None, folder, None
    pooling, inner = Pooling(), folder
    parts = read_json(folder / MODULES)
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise CheckpointError(f"{folder / 'modules.json'}: not a list of modules")
    for part in parts:
        place = folder / str(part.get("path", ""))
        if folder.resolve() not in (place.resolve(), *place.resolve().parents):
            raise CheckpointError(f"{folder / 'modules.json'}: {part['path']!r} leaves the folder")
        match str(part.get("type", "")).rsplit(".", 1)[-1]:
            case "Transformer":
                inner = place
            case "Pooling":
                pooling = Pooling(_pooling_mode(place / "config.json"), pooling.normalize)
            case "Normalize":
                pooling = Pooling(pooling.mode, normalize=True)
            case other:
                raise CheckpointError(
                    f"{folder / 'modules.json'}: a module {other!r}, which bertkit has not"
                )
    settings = inner / LENGTH
    length = read_object(settings).get("max_seq_length") if settings.exists() else None
    if length is not None and not (isinstance(length, int) and length > 2):
        raise CheckpointError(f"{settings}: max_seq_length = {length!r} is no number of tokens")
    return pooling, inner, length


def _pooling_mode(path: Path) -> Mode:
    config = read_object(path)
    modes = [
        k.removeprefix("pooling_mode_") for k, v in config.items() if v is True and "_mode_" in k
    ] or [str(config.get("pooling_mode"))]
    for name, mode in MODES.items():
        if modes in ([name], [mode]):
            return mode
    raise CheckpointError(f"{path}: pooling by {modes}; bertkit pools by {', '.join(POOLINGS)}")


def read_object(path: Path) -> dict[str, Any]:
    found = read_json(path)
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: a {type(found).__name__}, not an object of settings")
    return found


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: missing; is this the folder of a model?") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: not valid JSON ({error}); fetch it again") from None
