"""Functions that read and write pooling settings in the format of sentence-transformers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import msgspec
from torch import Tensor

from bertkit import storage
from bertkit.checkpoint.pooling_keys import (
    DENSE_KEYS,
    MODES,
    MODULES_KEYS,
    NORMALIZE_KEYS,
    OTHER_MODES,
    POOLING_KEYS,
    RERANKER_KEYS,
    RERANKER_SETTINGS_KEYS,
    SETTINGS_KEYS,
    TRANSFORMER_KEYS,
)
from bertkit.checkpoint.weights import FILE, read_tensors, write_tensors
from bertkit.errors import CheckpointError
from bertkit.nn.pooling import POOLINGS, Activation, Dense, Mode, Pooling
from bertkit.published_keys import KeyTable
from bertkit.storage import write_json, writing
from bertkit.text.prompts import Prompts

ACTIVATIONS: dict[str, Activation] = {
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.linear.Identity": "none",
}
"""Activation of a dense layer for each class name that a file can contain."""

MODULES, LENGTH = "modules.json", "sentence_bert_config.json"
SETTINGS = "config_sentence_transformers.json"
OLDER_LENGTHS = tuple(
    f"sentence_{name}_config.json"
    for name in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""Names of `sentence_bert_config.json` before version 1 of sentence-transformers.

They are tried in the same order as in sentence-transformers.
"""

ORDER = ("Transformer", "Pooling", "Dense", "Normalize")
"""Supported modules in the required order. Dense and Normalize are optional."""

MAX_MODULES, MAX_NAME_CHARACTERS = 16, 255
"""Maximum number of modules, and maximum number of characters in a module's directory name."""


def write_pooling(
    folder: Path,
    pooling: Pooling,
    *,
    hidden: int,
    length: int,
    weights: Mapping[str, Tensor] | None = None,
) -> None:
    """Add the files that sentence-transformers needs to a model directory.

    Args:
        folder: The model directory.
        pooling: The pooling to write.
        hidden: Hidden size of the encoder.
        length: Maximum number of tokens.
        weights: Weights to save instead of the dense layer's weights with the same names, such as
            fp32 master weights.
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
            **{f"pooling_mode_{name}": is_used for name, is_used in modes.items()},
            **({} if pooling.prompts.pooled else {"include_prompt": False}),
        },
    )
    if pooling.dense is not None:
        _write_dense(folder / paths[2], pooling.dense, weights or {})
    write_json(folder / LENGTH, {"max_seq_length": length, "do_lower_case": pooling.lowercase})
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
    names = {activation: name for name, activation in ACTIVATIONS.items()}
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
    """Read the pooling of a model that may be in the format of sentence-transformers.

    Args:
        folder: Directory of any model.

    Returns:
        The pooling, or None if this is not an embedding model; the directory of the encoder; and
        the maximum number of tokens, or None if it is not specified.

    Raises:
        CheckpointError: If a file is invalid, or a module or setting is not supported.
    """
    if not (folder / MODULES).exists():
        return None, folder, None
    parts = read_json(folder / MODULES)
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise CheckpointError(f"{folder / MODULES}: not a list of modules")
    if len(parts) > MAX_MODULES:
        raise CheckpointError(
            f"{folder / MODULES}: {len(parts)} modules, but the maximum is {MAX_MODULES}"
        )
    for part in parts:
        check_keys(MODULES_KEYS, part, folder / MODULES)
    if len({str(part.get("name")) for part in parts}) < len(parts):
        raise CheckpointError(f"{folder / MODULES}: two modules have the same name; rename one")
    folders = [module_folder(folder, str(part.get("path", ""))) for part in parts]
    kinds = [module_type(folder, str(part.get("type", ""))) for part in parts]
    # A re-ranker has no pooling.
    if kinds == ["Transformer"]:
        path, encoder = folder / SETTINGS, folders[0]
        check_keys(RERANKER_SETTINGS_KEYS, read_object(path) if path.exists() else {}, path)
        return None, encoder, max_length_of(read_transformer(encoder, RERANKER_KEYS), encoder)
    _check_order(folder, kinds)
    values = read_transformer(folders[0], TRANSFORMER_KEYS)
    pooling = replace(read_settings(folder / SETTINGS), lowercase=bool(values.get("do_lower_case")))
    for module, kind in zip(folders[1:], kinds[1:], strict=True):
        pooling = _add_module(pooling, module, kind)
    return pooling, folders[0], max_length_of(values, folders[0])


def max_length_of(settings: Mapping[str, Any], folder: Path) -> int | None:
    """Return the maximum number of tokens, or None if it is not set.

    Args:
        settings: Settings of the module Transformer.
        folder: Directory of the module, for error messages.

    Raises:
        CheckpointError: If the value is not a number of tokens.
    """
    length = settings.get("max_seq_length")
    if length is not None and not (isinstance(length, int) and length > 2):
        raise CheckpointError(
            f"{folder / LENGTH}: max_seq_length must be a number of tokens, got {length!r}"
        )
    return length


def check_keys(keys: KeyTable, settings: Mapping[str, Any], path: Path) -> None:
    """Check that every setting of a file is supported.

    Args:
        keys: Table of the keys in the file.
        settings: Content of the file.
        path: Path of the file, for messages.

    Raises:
        CheckpointError: If a setting is not supported.
    """
    try:
        keys.check(settings)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}; use a model without this setting") from None


def module_folder(folder: Path, name: str) -> Path:
    """Return the directory of a module.

    Args:
        folder: Directory of the model.
        name: Path of the module in it.

    Raises:
        CheckpointError: If the path is not valid, or outside of the model directory.
    """
    if not name.isprintable() or len(name) > MAX_NAME_CHARACTERS:
        raise CheckpointError(f"{folder / MODULES}: {name!r} is not a valid directory name")
    module = folder / name
    if folder.resolve() not in (module.resolve(), *module.resolve().parents):
        raise CheckpointError(f"{folder / MODULES}: {name!r} is outside of the model directory")
    return module


def module_type(folder: Path, name: str, known: Collection[str] = ORDER) -> str:
    """Return the type of a module, without its package.

    Args:
        folder: Directory of the model, for messages.
        name: Type of the module, with its package.
        known: Supported types.

    Raises:
        CheckpointError: If the type is not supported.
    """
    kind = name.rsplit(".", 1)[-1]
    if kind not in known or not name.startswith("sentence_transformers."):
        raise CheckpointError(f"{folder / MODULES}: module {name!r} is not supported")
    return kind


def _check_order(folder: Path, kinds: Sequence[str]) -> None:
    """Raise CheckpointError if the modules are not in the supported order."""
    for before, kind in pairwise(kinds):
        if ORDER.index(kind) <= ORDER.index(before):
            raise CheckpointError(
                f"{folder / MODULES}: module {kind!r} after {before!r} is not supported; use a "
                f"model with one module each of {', '.join(ORDER)}, in this order"
            )
    if list(kinds[:2]) != ["Transformer", "Pooling"]:
        raise CheckpointError(
            f"{folder / MODULES}: the first modules must be Transformer and Pooling, got "
            f"{', '.join(kinds) or 'no modules'}; use another model"
        )


def read_transformer(folder: Path, keys: KeyTable) -> dict[str, Any]:
    """Read the settings of the module Transformer from the first file that is not empty.

    Args:
        folder: Directory of the module.
        keys: Table of the keys in the file.

    Raises:
        CheckpointError: If a setting is not supported, or the file is invalid.
    """
    for name in (LENGTH, *OLDER_LENGTHS):
        settings = read_object(folder / name) if (folder / name).exists() else {}
        if settings:
            check_keys(keys, settings, folder / name)
            return settings
    return {}


def _add_module(pooling: Pooling, folder: Path, kind: str) -> Pooling:
    """Return a copy of the pooling with the settings of a module."""
    path = folder / "config.json"
    if kind == "Dense":
        return replace(pooling, dense=_read_dense(folder))
    if kind == "Normalize":
        check_keys(NORMALIZE_KEYS, read_object(path) if path.exists() else {}, path)
        return replace(pooling, normalize=True)
    config = read_object(path)
    check_keys(POOLING_KEYS, {} if config.get("pooling_mode") else config, path)
    pooled = bool(config.get("include_prompt", True))
    return replace(
        pooling,
        mode=_pooling_mode(config, path),
        prompts=msgspec.structs.replace(pooling.prompts, pooled=pooled),
    )


def read_settings(path: Path, keys: KeyTable = SETTINGS_KEYS) -> Pooling:
    """Read the prompts and the similarity function.

    Args:
        path: Path of the file.
        keys: Table of the keys in the file.

    Raises:
        CheckpointError: If a setting is not supported, or the file is invalid.
    """
    config = read_object(path) if path.exists() else {}
    named, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if not isinstance(named, dict) or not all(isinstance(t, str | None) for t in named.values()):
        raise CheckpointError(f"{path}: prompts must be an object of strings, got {named!r}")
    # In sentence-transformers, the prompts query and document always exist, but may be empty.
    if default not in (None, "query", "document", *named):
        known = ", ".join(named) or "none"
        raise CheckpointError(f"{path}: default_prompt_name: no prompt {default!r}; known: {known}")
    if config.get("truncate_dim") is not None:
        raise CheckpointError(
            f"{path}: truncate_dim = {config['truncate_dim']!r} is not supported; remove the key "
            "and truncate embeddings in your code"
        )
    check_keys(keys, config, path)
    prompts = Prompts({name: text or "" for name, text in named.items()}, default)
    return Pooling(prompts=prompts, similarity=str(config.get("similarity_fn_name") or "cosine"))


def _pooling_mode(config: Mapping[str, Any], path: Path) -> Mode:
    """Return the pooling mode. The key `pooling_mode` overrides the older keys `pooling_mode_*`."""
    named = config.get("pooling_mode")
    modes = named if isinstance(named, list) else [named]
    if named is None:
        older = [f"pooling_mode_{name}" for name in (*MODES, *OTHER_MODES)]
        chosen = [key.removeprefix("pooling_mode_") for key in older if config.get(key)]
        modes = [MODES.get(name, name) for name in chosen]
        if not chosen and any(key in config for key in older):
            modes = ["mean"]
    if len(modes) == 1 and modes[0] in POOLINGS:
        return cast("Mode", modes[0])
    raise CheckpointError(f"{path}: pooling {modes} is not supported; use {', '.join(POOLINGS)}")


def _read_dense(folder: Path) -> Dense:
    """Read a dense layer. Raise CheckpointError if it is invalid or not supported."""
    path = folder / "config.json"
    match config := read_object(path):
        case {"in_features": int(hidden), "out_features": int(width)} if hidden > 0 and width > 0:
            pass
        case _:
            raise CheckpointError(f"{path}: in_features and out_features must be positive integers")
    check_keys(DENSE_KEYS, config, path)
    name = config.get("activation_function", next(iter(ACTIVATIONS)))
    # The keys are converted to a tuple, because the value can be a list, which is not hashable.
    if name not in tuple(ACTIVATIONS):
        raise CheckpointError(
            f"{path}: activation_function = {name!r} is not supported; use {', '.join(ACTIVATIONS)}"
        )
    activation = ACTIVATIONS[name]
    bias = bool(config.get("bias", True))
    shapes = {"linear.weight": (width, hidden), **({"linear.bias": (width,)} if bias else {})}
    tensors = read_tensors(folder)
    if {name: tuple(tensor.shape) for name, tensor in tensors.items()} != shapes:
        raise CheckpointError(f"{folder / FILE}: the weights do not match {path}; download both")
    dense = Dense(hidden, width, activation, bias=bias)
    dense.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return dense.requires_grad_(False).eval()


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that contains an object.

    Raises:
        CheckpointError: If the file is missing or invalid.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got {type(content).__name__}")
    return content


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        CheckpointError: If the file is missing or invalid.
    """
    try:
        return storage.read_json(path, CheckpointError, "download it again")
    except FileNotFoundError:
        raise CheckpointError(f"{path}: missing; pass a complete model directory") from None
