"""Functions that read and write weights, and convert their names for the family of a model."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from msgspec import structs
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from bertkit import memory
from bertkit.checkpoint.hub import OTHER_FILES
from bertkit.checkpoint.pytorch_files import read_pytorch
from bertkit.errors import CheckpointError
from bertkit.families import Family
from bertkit.models.config import EncoderConfig
from bertkit.models.model import Model
from bertkit.nn.embedding import sinusoids
from bertkit.nn.initialization import initialize
from bertkit.storage import NEW_FILE, check_file, read_json

FILE, PYTORCH_FILE = "model.safetensors", "pytorch_model.bin"
MAX_TENSORS = 1 << 16
"""Maximum number of tensors in a file. The largest models have several thousand."""

REMEDY = "download or write it again"


@dataclass(frozen=True)
class LoadReport:
    """Differences between the weights of a checkpoint and of the model that was loaded from it."""

    fresh: tuple[str, ...] = ()
    """Weights of the model that the checkpoint does not contain. They are newly initialized."""
    unused: tuple[str, ...] = ()
    """Weights in the checkpoint that the model does not use."""


def read_tensors(folder: Path, names: Sequence[str] = (FILE, PYTORCH_FILE)) -> dict[str, Tensor]:
    """Read the weights of a model directory, from a single file or from the files of an index.

    PyTorch files are read only if there are no safetensors files, and `.pt` and `.pth` files only
    if there are no `.bin` files.

    Args:
        folder: The directory.
        names: Names of the file, in the order of preference.

    Returns:
        The tensors, by their names in the files.

    Raises:
        CheckpointError: If a file is missing or damaged, contains objects other than tensors, or is
            one of several `.pt` and `.pth` files.
    """
    others = sorted(file.name for kind in OTHER_FILES for file in folder.glob(kind))
    for name in (*names, *others):
        file, index = folder / name, folder / f"{name}.index.json"
        if file.exists() or index.exists():
            if name in others and len(others) > 1:
                raise CheckpointError(f"{folder}: several weights: {', '.join(others)}; keep one")
            files = [file] if file.exists() else _shards(index, name)
            safe = file.suffix == ".safetensors"
            parts = (read_file(f, REMEDY)[0] if safe else read_pytorch(f) for f in files)
            return {key: tensor for part in parts for key, tensor in part.items()}
    raise CheckpointError(f"{folder}: no {' or '.join(names)}; pass a complete model directory")


def read_file(path: Path, remedy: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a safetensors file. The returned tensors are memory-mapped views of the file.

    Args:
        path: The file.
        remedy: End of the error message, which states what to do.

    Returns:
        The tensors by name, and the metadata of the file.

    Raises:
        CheckpointError: If the file is missing, truncated or invalid, or not a regular file.
    """
    try:
        check_file(path, CheckpointError, most=memory.installed())
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            if len(names) > MAX_TENSORS:
                raise ValueError(f"{len(names):,} tensors, but the maximum is {MAX_TENSORS:,}")
            return {name: file.get_tensor(name) for name in names}, file.metadata() or {}
    except FileNotFoundError:
        raise CheckpointError(f"{path}: missing; {remedy}") from None
    except (SafetensorError, OSError, ValueError, RuntimeError, MemoryError) as error:
        raise CheckpointError(f"{path}: truncated or invalid ({error}); {remedy}") from None


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file.

    Args:
        path: The file.
        tensors: Tensors by name.

    Raises:
        OSError: If the file cannot be written. Errors of safetensors are converted to OSError.
    """
    try:
        save_file({name: t.detach().cpu() for name, t in tensors.items()}, path, {"format": "pt"})
        path.chmod(NEW_FILE)  # safetensors creates files that other users cannot read.
    except SafetensorError as error:
        code = re.search(r"\(os error (\d+)\)", str(error))
        raise OSError(int(code.group(1)) if code else errno.EIO, str(error)) from None


def standard_names(family: Family, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the tensors of a checkpoint to the current names of a family.

    Older names are replaced, and missing prefixes are added. A tensor that is a copy of another
    weight, such as a tied output matrix, is compared with that weight and removed.

    Args:
        family: Family of the model.
        stored: Tensors by their names in the files.

    Raises:
        CheckpointError: If a copy differs from its original, or two tensors with the same name
            have different values.
    """
    named: dict[str, Tensor] = {}
    heads = {*family.derived, *(t for head in family.heads for t in family.head_weights(head))}
    no_prefix = not any(name.startswith(family.prefix) for name in stored)
    for name, tensor in (pair for item in stored.items() for pair in _rename(family, *item)):
        # Checkpoints from before 2019 contain the names gamma and beta of TensorFlow.
        name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
        if no_prefix and name not in heads and not name.startswith(("heads.", family.prefix)):
            name = family.prefix + name
        if family.sinusoids and name.endswith(family.sinusoids):
            _check_sinusoids(name, tensor)
        elif not name.endswith(family.ignored):
            if name in named and not torch.equal(named[name], tensor):
                raise CheckpointError(f"{name}: stored twice with different values; remove one")
            named[name] = tensor
    for copy, original in family.derived.items():
        if copy in named and original not in named:
            named[original] = named[copy]
        if copy in named and not torch.equal(named.pop(copy), named[original]):
            raise CheckpointError(
                f"{copy} differs from {original}, but bertkit ties these weights; use another model"
            )
    return named


def _check_sinusoids(name: str, tensor: Tensor) -> None:
    """Check that a stored tensor equals the sinusoidal positions, which bertkit computes itself."""
    expected = tensor if tensor.ndim != 2 else sinusoids(torch.arange(len(tensor)), len(tensor[0]))
    if tensor.ndim != 2 or not torch.allclose(tensor.float(), expected.float(), atol=1e-3):
        raise CheckpointError(f"{name}: expected sinusoidal positions; use another model")


def untie(family: Family, named: Mapping[str, Tensor], config: EncoderConfig) -> EncoderConfig:
    """Set `lm_tied` to false if the stored output matrix differs from the embedding matrix.

    transformers also compares the weights, because version 5 writes `tie_word_embeddings` for every
    T5 model.

    Args:
        family: Family of the model.
        named: Weights by their names in the family.
        config: Configuration of the encoder or decoder.

    Returns:
        The configuration, with `lm_tied` changed if necessary.
    """
    output = named.get(str(family.heads.get("lm", {}).get("output")))
    side = "encoder" if family.decoder is None else "decoder"
    embedding = named.get(str(family.body.get(f"{side}.embedding.tokens.weight")))
    if not config.head.lm_tied or output is None or embedding is None:
        return config
    if torch.equal(output, embedding):
        return config
    return structs.replace(config, head=structs.replace(config.head, lm_tied=False))


def _rename(family: Family, name: str, tensor: Tensor) -> list[tuple[str, Tensor]]:
    """Return a tensor with its current name or, if it stacks several weights, each of its parts."""
    for pattern, names in family.spellings.items():
        match = re.fullmatch(pattern, name)
        if match and tensor.ndim:
            parts = tensor.tensor_split(len(names)) if len(names) > 1 else [tensor]
            return list(zip(map(match.expand, names), parts, strict=True))
    return [(name, tensor)]


def heads_in(
    family: Family, named: Mapping[str, Tensor], *, architecture: str, recorded: Sequence[str]
) -> tuple[str, ...]:
    """Return the heads of a checkpoint: those for which it contains all weights.

    The names of the weights do not always determine the head. Some heads have weights with the
    same names (nsp and sop, classify and choose). If there is a pooler, the weights of a classifier
    include the weights of a tagger. In these cases, heads in `recorded` and heads of the
    architecture are preferred, and then heads with more weights.

    Args:
        family: Family of the model.
        named: Weights by their names in the family.
        architecture: Name of the model's class in transformers, or "" if it is unknown.
        recorded: Heads that bertkit recorded in `config.json`.
    """
    other_heads = {name.split(".")[1]: None for name in named if name.startswith("heads.")}
    weights = {head: head_weights(family, head, named) for head in (*family.heads, *other_heads)}
    expected = {h for heads, a in family.architectures.items() if a == architecture for h in heads}
    stored = set(named)
    complete = [head for head, names in weights.items() if names - {*family.some} <= stored]
    # If all weights of a head are optional, the checkpoint must contain at least one of them.
    if architecture in family.architectures.values():
        sure = {*recorded, *expected}
        complete = [h for h in complete if h in sure or not weights[h] or weights[h] & stored]
    preferred = [h for h in complete if h in recorded] or [h for h in complete if h in expected]
    by_weights: dict[frozenset[str], str] = {}
    for head in sorted(complete, key=lambda head: (head not in recorded, head not in expected)):
        by_weights.setdefault(weights[head], head)
    sets = {weights[head] for head in preferred if head != "pooler"}
    selected = [w for w in by_weights if w in sets or not any(s < w for s in sets)]
    heads = {by_weights[w] for w in selected if not any(w < larger for larger in selected)}
    return tuple(head for head in weights if head in heads)


def head_weights(family: Family, head: str, named: Iterable[str]) -> frozenset[str]:
    """Return the names of the weights of a head.

    Args:
        family: Family of the model.
        head: Name of the head. If the family does not define the head, its weights are those in
            `named` that start with `heads.` and its name.
        named: Names of the stored weights.
    """
    if head in family.heads:
        return family.head_weights(head)
    return frozenset(name for name in named if name.startswith(f"heads.{head}."))


def fill(
    model: Model, family: Family, named: Mapping[str, Tensor], *, fresh: Sequence[str], where: Path
) -> LoadReport:
    """Copy the weights of a checkpoint into a model, after allocating memory for them.

    Args:
        model: Model on the meta device.
        family: Family of the model.
        named: Weights of the checkpoint, by their names in the family.
        fresh: Heads that are newly initialized if the checkpoint does not contain them.
        where: File of the weights, for error messages.

    Raises:
        CheckpointError: If weights are missing or unknown, or have the wrong shape.
    """
    state = dict(model.state_dict())
    read = family.read(state, named, model.config)
    table = family.names(state, model.config)
    optional = tuple(f"heads.{head}." for head in fresh)
    missing = [name for name in state if name not in read]
    lacking = [name for name in missing if not name.startswith(optional)]
    wrong = [
        f"{' + '.join(table[n])} has shape {_shape(read[n])}, expected {_shape(t)}"
        for n, t in state.items()
        if n in read and read[n].shape != t.shape
    ]
    used = {row for name in read for row in table[name]}
    unused = sorted(set(named) - used)
    head_names = {t for head in family.heads for t in family.head_weights(head)}
    unknown = [n for n in unused if n not in head_names and not n.startswith("heads.")]
    problems = [
        *([f"missing {_abbreviate(' + '.join(table[n]) for n in lacking)}"] if lacking else []),
        *([f"unknown {_abbreviate(unknown)}"] if unknown else []),
        *([_abbreviate(wrong)] if wrong else []),
    ]
    if problems:
        raise CheckpointError(f"{where}: {'; '.join(problems)}; use the matching config.json")
    # `to_empty` is not used, because it imports torch's compiler. The weights are copied, because
    # views of a file change if the file changes.
    storage = {name: torch.empty(t.shape, dtype=t.dtype) for name, t in state.items()}
    model.load_state_dict(storage, assign=True)
    for head in fresh:
        # BERT's standard deviation of 0.02 is too small for short fine-tuning runs, which would
        # mainly increase the weights of the head (notes/2026-11.md).
        initialize(model.heads[head], std=None)
    model.load_state_dict(read, strict=False)
    return LoadReport(fresh=tuple(missing), unused=tuple(unused))


def _shards(index_file: Path, name: str) -> list[Path]:
    """Return the files that an index lists, which must have the same suffix as `name`."""
    index = read_json(index_file, CheckpointError, REMEDY)
    try:
        shards = sorted({str(shard) for shard in index["weight_map"].values()})
    except (KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{index_file}: not a valid index ({error}); {REMEDY}") from None
    for shard in shards:
        is_valid = shard.isprintable() and len(shard) < 256 and shard.endswith(Path(name).suffix)
        if Path(shard).name != shard or not is_valid:
            raise CheckpointError(
                f"{index_file}: {shard!r} is not a file in this directory; {REMEDY}"
            )
    return [index_file.parent / shard for shard in shards]


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape))


def _abbreviate(names: Iterable[str]) -> str:
    all_names = list(names)
    more = f" and {len(all_names) - 3} more" if len(all_names) > 3 else ""
    return ", ".join(all_names[:3]) + more
