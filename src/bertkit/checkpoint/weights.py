"""Weights from safetensors files, by the names a family declares."""

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
from bertkit.errors import CheckpointError
from bertkit.families import Family
from bertkit.models.config import EncoderConfig
from bertkit.models.model import Model
from bertkit.nn.embedding import sinusoids
from bertkit.nn.initialization import initialize
from bertkit.storage import NEW_FILE, check_file, read_json

FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
MOST_TENSORS = 1 << 16
"""Of a file; the largest models there are have some thousands."""

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack")


@dataclass(frozen=True)
class LoadReport:
    """What a checkpoint gave and did not give."""

    fresh: tuple[str, ...] = ()
    """Our weights that the checkpoint lacks; they start from random numbers."""
    unused: tuple[str, ...] = ()
    """Its weights that no head asked for."""


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder, by the names in its files; one file or several with an index.

    Raises: CheckpointError for a missing, truncated or pickled file.
    """
    files = [folder / FILE]
    if not files[0].exists():
        if not (folder / INDEX).exists():
            raise CheckpointError(_no_weights(folder))
        files = _shards(folder)
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors |= read_file(file, "fetch or write it again")[0]
    return tensors


def read_file(path: Path, remedy: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a safetensors file, which are not copied yet, and its metadata.

    Raises:
        CheckpointError: If the file is missing, not a regular file, truncated, or damaged; the
            message ends with `remedy`.
    """
    try:
        check_file(path, CheckpointError, most=memory.installed())
        with safe_open(path, framework="pt") as opened:
            names = opened.keys()
            if len(names) > MOST_TENSORS:
                raise ValueError(f"{len(names):,} tensors, and at most {MOST_TENSORS:,} are read")
            return {name: opened.get_tensor(name) for name in names}, opened.metadata() or {}
    except FileNotFoundError:
        raise CheckpointError(f"{path}: missing; {remedy}") from None
    except (SafetensorError, OSError, ValueError, RuntimeError, MemoryError) as error:
        raise CheckpointError(f"{path}: truncated or damaged ({error}); {remedy}") from None


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """One safetensors file. Raises: OSError, also where the library says it in its own words."""
    try:
        save_file({name: t.detach().cpu() for name, t in tensors.items()}, path, {"format": "pt"})
        path.chmod(NEW_FILE)  # the library lets nobody else read it
    except SafetensorError as error:
        code = re.search(r"\(os error (\d+)\)", str(error))
        raise OSError(int(code.group(1)) if code else errno.EIO, str(error)) from None


def standard_names(family: Family, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their tensors under the family's current names: old spellings and missing prefixes mended.

    Copies of other weights (a tied decoder) are checked and dropped.
    Raises: CheckpointError when a copy differs from its original, or a name occurs twice.
    """
    named: dict[str, Tensor] = {}
    of_heads = {*family.derived, *(t for head in family.heads for t in family.head_weights(head))}
    bare = not any(name.startswith(family.prefix) for name in theirs)
    for name, tensor in (pair for item in theirs.items() for pair in _spelled(family, *item)):
        if name.endswith((".gamma", ".beta")):  # TensorFlow's names, in folders before 2019
            name = name.removesuffix(".gamma").removesuffix(".beta") + (
                ".weight" if name.endswith("gamma") else ".bias"
            )
        if bare and name not in of_heads and not name.startswith(("heads.", family.prefix)):
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
                f"{copy} differs from {original}: bertkit ties the two, so this model "
                "cannot be represented"
            )
    return named


def _check_sinusoids(name: str, tensor: Tensor) -> None:
    """Check that a tensor contains the sinusoidal positions that bertkit computes instead."""
    expected = tensor if tensor.ndim != 2 else sinusoids(torch.arange(len(tensor)), len(tensor[0]))
    if tensor.ndim != 2 or not torch.allclose(tensor.float(), expected.float(), atol=1e-3):
        raise CheckpointError(f"{name}: not sinusoidal positions, which bertkit computes itself")


def untie(family: Family, named: Mapping[str, Tensor], config: EncoderConfig) -> EncoderConfig:
    """Return the configuration with its own output matrix, if the weights contain another one.

    Transformers decides by the weights, too: version 5 writes `tie_word_embeddings` for any T5.
    """
    output = named.get(str(family.heads.get("lm", {}).get("output")))
    side = "encoder" if family.decoder is None else "decoder"
    embedding = named.get(str(family.body.get(f"{side}.embedding.tokens.weight")))
    if not config.head.lm_tied or output is None or embedding is None:
        return config
    if torch.equal(output, embedding):
        return config
    return structs.replace(config, head=structs.replace(config.head, lm_tied=False))


def _spelled(family: Family, name: str, tensor: Tensor) -> list[tuple[str, Tensor]]:
    """One of their tensors by the names of the family's tables, apart where it is a stack."""
    for pattern, names in family.spellings.items():
        match = re.fullmatch(pattern, name)
        if match and tensor.ndim:
            parts = tensor.tensor_split(len(names)) if len(names) > 1 else [tensor]
            return list(zip(map(match.expand, names), parts, strict=True))
    return [(name, tensor)]


def heads_in(
    family: Family, named: Mapping[str, Tensor], *, architecture: str, ours: Sequence[str]
) -> tuple[str, ...]:
    """The heads whose weights are all there, and no head whose weights are part of another's.

    Some heads have the same weights by name (nsp and sop, classify and choose), and a tagger's are
    part of a classifier's, if its folder has a pooler: the heads `ours` that a bertkit folder
    names, and those of their `architecture`, go before others.
    """
    own = {name.split(".")[1]: None for name in named if name.startswith("heads.")}
    rows = {head: head_weights(family, head, named) for head in (*family.heads, *own)}
    theirs = {h for heads, a in family.architectures.items() if a == architecture for h in heads}
    whole = [head for head, names in rows.items() if names - {*family.some} <= set(named)]
    if architecture in family.architectures.values():  # no weights are no sign of a head
        whole = [h for h in whole if h in (*ours, *theirs) or not rows[h] or rows[h] & set(named)]
    named_ones = [h for h in whole if h in ours] or [h for h in whole if h in theirs]
    by_weights: dict[frozenset[str], str] = {}
    for head in sorted(whole, key=lambda head: (head not in ours, head not in theirs)):
        by_weights.setdefault(rows[head], head)
    said = {rows[head] for head in named_ones if head != "pooler"}
    kept = [r for r in by_weights if r in said or not any(s < r for s in said)]
    names = {by_weights[r] for r in kept if not any(r < more for more in kept)}
    return tuple(head for head in rows if head in names)


def head_weights(family: Family, head: str, named: Iterable[str]) -> frozenset[str]:
    """Their names of a head's weights; of a head the family does not know, those in the file."""
    if head in family.heads:
        return family.head_weights(head)
    return frozenset(name for name in named if name.startswith(f"heads.{head}."))


def fill(
    model: Model, family: Family, named: Mapping[str, Tensor], *, fresh: Sequence[str], where: Path
) -> LoadReport:
    """Put a checkpoint's weights into a model made without storage.

    `fresh` are heads that may be lacking; their weights keep what the model draws at random.
    Raises: CheckpointError naming missing, unknown and reshaped weights.
    """
    ours = dict(model.state_dict())
    read = family.read(ours, named, model.config)
    table = family.names(ours, model.config)
    may_lack = tuple(f"heads.{head}." for head in fresh)
    missing = [name for name in ours if name not in read]
    lacking = [n for n in missing if not n.startswith(may_lack)] if may_lack else missing
    wrong = [
        f"{' + '.join(table[n])} has shape {_shape(read[n])}, config.json asks for {_shape(t)}"
        for n, t in ours.items()
        if n in read and read[n].shape != t.shape
    ]
    used = {row for name in read for row in table[name]}
    unused = sorted(set(named) - used)
    of_heads = {t for head in family.heads for t in family.head_weights(head)}
    unknown = [n for n in unused if n not in of_heads and not n.startswith("heads.")]
    problems = [
        *([f"missing {_some(' + '.join(table[n]) for n in lacking)}"] if lacking else []),
        *([f"unknown {_some(unknown)}"] if unknown else []),
        *([_some(wrong)] if wrong else []),
    ]
    if problems:
        raise CheckpointError(f"{where}: {'; '.join(problems)}; its config.json does not fit it")
    # not `to_empty`, which imports torch's compiler, and no views of the file, which may change
    storage = {name: torch.empty(t.shape, dtype=t.dtype) for name, t in ours.items()}
    model.load_state_dict(storage, assign=True)
    for head in fresh:
        # not BERT's 0.02, from which a head takes a short fine-tuning to grow (notes/2026-11.md)
        initialize(model.heads[head], std=None)
    model.load_state_dict(read, strict=False)
    return LoadReport(fresh=tuple(missing), unused=tuple(unused))


def _shards(folder: Path) -> list[Path]:
    index = read_json(folder / INDEX, CheckpointError, "fetch it again")
    try:
        names = sorted({str(name) for name in index["weight_map"].values()})
    except (KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{folder / INDEX}: not a valid index ({error})") from None
    for name in names:
        right = name.isprintable() and len(name) < 256 and name.endswith(".safetensors")
        if Path(name).name != name or not right:
            raise CheckpointError(f"{folder / INDEX}: {name!r} is no file of this folder")
    return [folder / name for name in names]


def _no_weights(folder: Path) -> str:
    pickles = [p.name for p in sorted(folder.iterdir()) if p.suffix in PICKLES]
    if pickles:
        return (
            f"{folder / pickles[0]}: a pickle can run code when read, so bertkit reads none; "
            "convert it where you trust it: load it with transformers, then "
            "save_pretrained(folder)"
        )
    return f"{folder}: no {FILE}; is this the folder of a model?"


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape))


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
    return ", ".join(listed[:3]) + more
