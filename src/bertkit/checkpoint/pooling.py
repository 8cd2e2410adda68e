"""How a folder makes vectors of texts, as sentence-transformers writes it down."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from torch import Tensor

from bertkit import storage
from bertkit.checkpoint.run_folder import RUN
from bertkit.checkpoint.weights import FILE, read_tensors, write_tensors
from bertkit.errors import CheckpointError
from bertkit.nn.pool import POOLINGS, Activation, Dense, Mode, Pooling
from bertkit.storage import write_json, writing
from bertkit.text.prompts import Prompts

MODES: dict[str, Mode] = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max"}
"""What sentence-transformers calls each pooling."""

ACTIVATIONS: dict[str, Activation] = {
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.linear.Identity": "none",
}
"""And what may follow a dense layer."""

MODULES, LENGTH = "modules.json", "sentence_bert_config.json"
SETTINGS = "config_sentence_transformers.json"

MOST, LONGEST_NAME = 16, 255
"""Modules of a folder, and characters of the name of a module's folder."""


def write_pooling(
    folder: Path,
    pooling: Pooling,
    *,
    hidden: int,
    length: int,
    weights: Mapping[str, Tensor] | None = None,
) -> None:
    """Make a model's folder one that sentence-transformers opens, with the same vectors.

    `weights` replaces those of the dense layer by others of the same names (fp32 masters).
    """
    kinds = ["Transformer", "Pooling"]
    kinds += ["Dense"] if pooling.dense else []
    kinds += ["Normalize"] if pooling.normalize else []
    paths = ["", *(f"{number}_{kind}" for number, kind in enumerate(kinds) if number)]
    for path in paths[1:]:
        (folder / path).mkdir(exist_ok=True)
    modes = {name: pooling.mode == mode for name, mode in MODES.items()}
    write_json(
        folder / paths[1] / "config.json",
        {
            "word_embedding_dimension": hidden,
            **{f"pooling_mode_{name}": wanted for name, wanted in modes.items()},
            **({} if pooling.prompts.pooled else {"include_prompt": False}),
        },
    )
    if pooling.dense is not None:
        _write_dense(folder / paths[2], pooling.dense, weights or {})
    write_json(folder / LENGTH, {"max_seq_length": length, "do_lower_case": False})
    settings = {
        "prompts": pooling.prompts.named,
        "default_prompt_name": pooling.prompts.default,
        "similarity_fn_name": pooling.similarity,
    }
    write_json(folder / SETTINGS, settings)
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(zip(paths, kinds, strict=True))
    ]
    write_json(folder / MODULES, modules)


def _write_dense(folder: Path, dense: Dense, weights: Mapping[str, Tensor]) -> None:
    linear = dense.linear
    names = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
    settings = {
        "in_features": linear.in_features,
        "out_features": linear.out_features,
        "bias": linear.bias is not None,
        "activation_function": names[dense.activation],
    }
    write_json(folder / "config.json", settings)
    with writing(folder / FILE) as partial:
        write_tensors(partial, {**dense.state_dict(), **weights})


def read_pooling(folder: Path) -> tuple[Pooling | None, Path, int | None]:
    """The pooling of a sentence-transformers folder, where its encoder is, and its length."""
    if not (folder / MODULES).exists():
        return None, folder, None
    pooling, inner = _settings(folder / SETTINGS), folder
    parts = read_json(folder / MODULES)
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise CheckpointError(f"{folder / 'modules.json'}: not a list of modules")
    if len(parts) > MOST:
        raise CheckpointError(
            f"{folder / MODULES}: {len(parts)} modules, and at most {MOST} are read"
        )
    for part in parts:
        name = str(part.get("path", ""))
        if not name.isprintable() or len(name) > LONGEST_NAME:
            raise CheckpointError(f"{folder / MODULES}: {name!r} is no name of a folder")
        place = folder / name
        if folder.resolve() not in (place.resolve(), *place.resolve().parents):
            raise CheckpointError(f"{folder / 'modules.json'}: {name!r} leaves the folder")
        match str(part.get("type", "")).rsplit(".", 1)[-1]:
            case "Transformer":
                inner = place
            case "Pooling":
                config = read_object(place / "config.json")
                pooled = config.get("include_prompt", True) is not False
                pooling = replace(
                    pooling,
                    mode=_pooling_mode(config, place / "config.json"),
                    prompts=msgspec.structs.replace(pooling.prompts, pooled=pooled),
                )
            case "Dense" if pooling.dense is None and not pooling.normalize:
                pooling = replace(pooling, dense=_read_dense(place))
            case "Normalize":
                pooling = replace(pooling, normalize=True)
            case "Dense":
                where = f"after {'Dense' if pooling.dense else 'Normalize'!r}"
                raise CheckpointError(
                    f"{folder / MODULES}: a module 'Dense' {where}; bertkit has one, before that"
                )
            case other:
                raise CheckpointError(
                    f"{folder / MODULES}: a module {other!r}, which bertkit has not"
                )
    settings = inner / LENGTH
    length = read_object(settings).get("max_seq_length") if settings.exists() else None
    if length is not None and not (isinstance(length, int) and length > 2):
        raise CheckpointError(f"{settings}: max_seq_length = {length!r} is no number of tokens")
    return pooling, inner, length


def _settings(path: Path) -> Pooling:
    """A pooling with the folder's prompts, and by what its vectors are compared."""
    config = read_object(path) if path.exists() else {}
    named, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if not isinstance(named, dict) or not all(isinstance(t, str | None) for t in named.values()):
        raise CheckpointError(f"{path}: prompts = {named!r}; they are to be texts by their names")
    if default not in (None, "query", "document", *named):  # two are always there, if empty
        known = ", ".join(named) or "none"
        raise CheckpointError(f"{path}: default_prompt_name = {default!r}; its prompts are {known}")
    if config.get("truncate_dim") is not None:
        raise CheckpointError(
            f"{path}: truncate_dim = {config['truncate_dim']!r}; bertkit keeps all numbers of a "
            "vector; remove it, and cut vectors where you use them"
        )
    prompts = Prompts({name: text or "" for name, text in named.items()}, default)
    return Pooling(prompts=prompts, similarity=str(config.get("similarity_fn_name") or "cosine"))


def _pooling_mode(config: Mapping[str, Any], path: Path) -> Mode:
    modes = [
        k.removeprefix("pooling_mode_") for k, v in config.items() if v is True and "_mode_" in k
    ] or [str(config.get("pooling_mode"))]
    for name, mode in MODES.items():
        if modes in ([name], [mode]):
            return mode
    raise CheckpointError(f"{path}: pooling by {modes}; bertkit pools by {', '.join(POOLINGS)}")


def _read_dense(folder: Path) -> Dense:
    """Raises: CheckpointError for settings that bertkit has not, or that the weights do not fit."""
    path = folder / "config.json"
    match config := read_object(path):
        case {"in_features": int(hidden), "out_features": int(width)} if hidden > 0 and width > 0:
            pass
        case _:
            raise CheckpointError(f"{path}: in_features and out_features are to be numbers")
    known: dict[str, Collection[Any]] = {
        "activation_function": tuple(ACTIVATIONS),  # asked with ==: a file may hold a list
        "use_residual": (False, None),
        "module_input_name": ("sentence_embedding", None),
        "module_output_name": ("sentence_embedding", None),
    }
    for key, values in known.items():
        if key in config and config[key] not in values:
            names = ", ".join(map(str, values))
            raise CheckpointError(f"{path}: {key} = {config[key]!r}; bertkit has {names}")
    activation = ACTIVATIONS[config.get("activation_function", next(iter(ACTIVATIONS)))]
    bias = bool(config.get("bias", True))
    wanted = {"linear.weight": (width, hidden), **({"linear.bias": (width,)} if bias else {})}
    tensors = read_tensors(folder)
    if {name: tuple(tensor.shape) for name, tensor in tensors.items()} != wanted:
        raise CheckpointError(f"{folder / FILE}: its weights are not those of {path}")
    dense = Dense(hidden, width, activation, bias=bias)
    dense.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return dense.requires_grad_(False).eval()


def read_object(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: a {type(content).__name__}, not an object of settings")
    return content


def read_json(path: Path) -> Any:
    try:
        return storage.read_json(path, CheckpointError, "fetch it again")
    except FileNotFoundError:
        why = "missing; is this the folder of a model?"
        if (path.parent / RUN).exists():
            why = "missing, for the run has not come to a model yet; go on with --resume"
        raise CheckpointError(f"{path}: {why}") from None
