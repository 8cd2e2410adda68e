"""Model folders as the Hugging Face ecosystem has them: `config.json`, weights, tokenizer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from bertkit.checkpoint.hub import resolve
from bertkit.checkpoint.pooling import read_object, read_pooling, write_pooling
from bertkit.checkpoint.weights import (
    FILE,
    Report,
    fill,
    head_weights,
    heads_in,
    read_tensors,
    standard_names,
    write_tensors,
)
from bertkit.errors import CheckpointError, ConfigError, did_you_mean
from bertkit.families import FAMILIES, OTHERS, Family
from bertkit.models.config import LATER, OF_TRAINING, TransformerConfig
from bertkit.models.model import HEADS, LABELLED, HeadMaker, Model, empty
from bertkit.nn.pool import Pool, Pooling
from bertkit.storage import write_json, writing
from bertkit.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Loaded:
    """A folder, opened."""

    model: Model
    tokenizer: Tokenizer
    family: Family
    report: Report
    folder: Path
    labels: tuple[str, ...] = ()
    """Names of the head's outputs; one name is a regression."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The whole `config.json`, for what belongs to a task."""
    pooling: Pooling | None = None
    """Set by sentence-transformers folders."""
    length: int = 512
    """The longest sequence the folder is meant for, in tokens."""

    def fingerprint(self) -> str:
        """A hash of all that decides a text's vector, beside its prompt and how states are pooled:
        tokenizer, shape, and weights."""
        digest = hashlib.sha256(self.tokenizer.fingerprint.encode())
        config = self.model.config
        usual = {s.name: s.default for s in msgspec.structs.fields(config) if s.name in LATER}
        shape = {
            name: value
            for name, value in msgspec.structs.asdict(config).items()
            if name not in OF_TRAINING and not (name in usual and value == usual[name])
        }
        digest.update(msgspec.json.encode(shape, order="sorted"))
        weights = self.model.encoder.state_dict()
        dense = None if self.pooling is None else self.pooling.dense
        if dense is not None:
            digest.update(dense.activation.encode())
            weights = {**weights, **dense.state_dict()}
        for name, weight in sorted(weights.items()):
            digest.update(name.encode())
            digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy())
        return digest.hexdigest()


def load(
    name: str | Path,
    *,
    heads: Iterable[str] | Mapping[str, HeadMaker] | None = None,
    labels: Sequence[str] = (),
    revision: str | None = None,
) -> Loaded:
    """Open a model folder or hub id.

    Without `heads` the model has those the folder holds and bertkit knows. Heads asked for may be
    new: their weights start at random and stand in `report.fresh`; `labels` names the outputs of
    a new head.
    Raises: CheckpointError for anything that does not fit, before a model is built.
    """
    folder = resolve(name, revision)
    pooling, inner, length = read_pooling(folder)
    config, family = _read_config(inner)
    try:
        shape = family.read_config(config)
    except (ValueError, ConfigError) as error:
        raise CheckpointError(f"{inner / 'config.json'}: {error}") from None
    if pooling is not None and not pooling.reads(shape.hidden):
        raise CheckpointError(
            f"{folder}: its dense layer reads vectors of another width than {shape.hidden}, its "
            "model's; they do not belong together"
        )
    named = standard_names(family, read_tensors(inner))
    held = heads_in(
        family,
        named,
        architecture=_architecture(config),
        ours=_heads(config, inner / "config.json"),
    )
    wanted = heads if heads is not None else tuple(head for head in held if head in HEADS)
    for head in wanted:
        if not isinstance(wanted, Mapping) and head not in HEADS:
            raise CheckpointError(f"heads: no head is named {head!r}; {did_you_mean(head, HEADS)}")
    _check_sizes(shape, named, inner / "config.json")
    theirs = _labels(config, family, named, inner / "config.json")
    names = tuple(labels) or theirs
    unnamed = [head for head in LABELLED if head in wanted and not names]
    if unnamed:
        raise CheckpointError(f"{inner}: has no {unnamed[0]} head; name the labels of a new one")
    if names == theirs:
        _check_labels(names, [head for head in wanted if head in held], family, named, inner)
    model = empty(shape, wanted, labels=names)
    for head in wanted:
        if head not in held or (labels and names != theirs):  # new outputs, on the old pooler
            stale = head_weights(family, head, named)
            named = {
                k: v for k, v in named.items() if k not in stale or k.startswith(family.prefix)
            }
    named |= _dense(model, pooling)
    report = fill(
        model, family, named, fresh=tuple(wanted) if heads is not None else (), where=inner / FILE
    )
    tokenizer = Tokenizer.load(inner)
    tokenizer.need(*family.roles)
    if family.positions_after_pad and tokenizer.pad != shape.pad:
        raise CheckpointError(
            f"{inner}: the tokenizer's padding piece has id {tokenizer.pad}, config.json says "
            f"{shape.pad}; a {family.name} model counts positions from it, so that they do not "
            "belong together"
        )
    if shape.types > 1 and tokenizer.segments > shape.types:
        raise CheckpointError(
            f"{inner}: the tokenizer numbers {tokenizer.segments} segments, the model has "
            f"{shape.types}; they do not belong together"
        )
    if tokenizer.vocab_size > shape.vocab:
        raise CheckpointError(
            f"{inner}: the tokenizer has {tokenizer.vocab_size} pieces, the model only "
            f"{shape.vocab} rows; they do not belong together"
        )
    return Loaded(
        model=model.eval(),
        tokenizer=tokenizer,
        family=family,
        report=report,
        folder=folder,
        labels=names,
        settings=config,
        pooling=pooling,
        length=min(
            shape.length,
            length or _length(config, inner) or tokenizer.max_length or shape.length,
        ),
    )


def save(
    folder: str | Path,
    model: Model,
    tokenizer: Tokenizer,
    family: Family,
    *,
    labels: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    length: int | None = None,
    weights: Mapping[str, Tensor] | None = None,
    pooling: Pooling | None = None,
) -> None:
    """Write a folder that `load` and `transformers` open; each file appears whole.

    `settings` are more keys of config.json, such as a task's; `length` is the longest sequence the
    folder is meant for, by default what the model can read; `weights` replaces the model's own by
    others of the same names (fp32 masters). `pooling` is how vectors are made, by default as a
    head of the model makes them; sentence-transformers reads it too.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(folder, segments=model.config.types > 1)
    config = _config_json(model, tokenizer, family, labels, settings or {}, length)
    write_json(folder / "config.json", config)
    state = {**model.state_dict(), **(weights or {})}
    own: dict[str, Tensor] = {}
    for name, head in model.heads.items():
        if isinstance(head, Pool):  # its weights have a place of their own
            dense = f"heads.{name}.dense."
            own = {key: state.pop(key) for key in list(state) if key.startswith(dense)}
            own = {key.removeprefix(dense): tensor for key, tensor in own.items()}
            pooling = head.pooling
    with writing(folder / FILE) as partial:
        write_tensors(partial, family.write(state, model.config))
    if pooling is not None:
        length = length or model.config.length
        write_pooling(folder, pooling, hidden=model.config.hidden, length=length, weights=own)


def _dense(model: Model, pooling: Pooling | None) -> dict[str, Tensor]:
    """The folder's dense layer as the weights of a head that has such a one."""
    if pooling is None or pooling.dense is None:
        return {}
    theirs, linear = pooling.dense.state_dict(), pooling.dense.linear
    return {
        f"heads.{name}.dense.{key}": tensor
        for name, head in model.heads.items()
        if isinstance(head, Pool) and head.dense is not None
        if head.dense.linear.weight.shape == linear.weight.shape
        for key, tensor in theirs.items()
    }


def _config_json(
    model: Model,
    tokenizer: Tokenizer,
    family: Family,
    labels: Sequence[str],
    settings: Mapping[str, Any],
    length: int | None,
) -> dict[str, Any]:
    heads = tuple(model.heads)
    known = frozenset(head for head in heads if head in HEADS)
    if known not in family.architectures:
        raise CheckpointError(
            f"a {family.name} folder cannot hold the heads {', '.join(heads)} together; "
            "save them apart"
        )
    if family.positions_after_pad and tokenizer.pad != model.config.pad:
        raise CheckpointError(
            f"the tokenizer's padding piece has id {tokenizer.pad}, the model's pad is "
            f"{model.config.pad}; a {family.name} folder counts positions from it"
        )
    config = {
        "architectures": [family.architectures[known]],
        **family.write_config(model.config),
        "pad_token_id": tokenizer.pad,
        "dtype": "float32",
        **settings,
        "bertkit": {
            "heads": list(heads),
            **({} if length is None else {"length": length}),
            **settings.get("bertkit", {}),
        },
    }
    if labels:
        config["id2label"] = {str(i): name for i, name in enumerate(labels)}
        config["label2id"] = {name: i for i, name in enumerate(labels)}
    return config


def _read_config(folder: Path) -> tuple[dict[str, Any], Family]:
    path = folder / "config.json"
    tensorflow = sorted(folder.glob("*.ckpt.index"))
    if tensorflow and not path.exists():
        raise CheckpointError(
            f"{tensorflow[0].with_suffix('')}: a checkpoint which only TensorFlow reads; take the "
            "same model from the hub, or convert it where TensorFlow is, by transformers 4 and its "
            "script convert_bert_original_tf_checkpoint_to_pytorch, then save_pretrained(folder)"
        )
    config = read_object(path)
    if "auto_map" in config:
        raise CheckpointError(
            f"{path}: auto_map asks to run code that came with the model; bertkit runs none; "
            "use a checkpoint of a family it knows (" + ", ".join(FAMILIES) + ")"
        )
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        known = ", ".join(FAMILIES)
        has = OTHERS.get(kind) if isinstance(kind, str) else None
        near = did_you_mean(kind, FAMILIES) if isinstance(kind, str) and has is None else ""
        raise CheckpointError(
            f"{path}: model_type = {kind!r}, an architecture that bertkit has not"
            + (f", with {has}" if has else "")
            + (f"; {near}" if near.endswith("?") else f"; take a model of one it has: {known}")
        )
    return config, FAMILIES[kind]


def _check_sizes(shape: TransformerConfig, named: Mapping[str, Tensor], path: Path) -> None:
    """Whether the weights that are there can be of this shape, before one is made of it.

    Raises: CheckpointError naming the setting that is too large for them.
    """
    largest = max((max(tensor.shape, default=0) for tensor in named.values()), default=0)
    sizes = {
        "layers": (max(shape.depths) + 1, len(named)),
        **{name: (getattr(shape, name), largest) for name in ("vocab", "hidden", "intermediate")},
        "embedding": (shape.width, largest),
        "types": (shape.types, largest),
        "length": (shape.length if shape.rotary is None else 0, largest),
    }
    for name, (size, most) in sizes.items():
        if size > most:
            raise CheckpointError(
                f"{path}: {name} = {size:,}, and no weights of the folder are so many or so large; "
                "they do not belong together"
            )


def _check_labels(
    labels: Sequence[str],
    heads: Iterable[str],
    family: Family,
    named: Mapping[str, Tensor],
    folder: Path,
) -> None:
    """Raises: CheckpointError when a head has another number of outputs than there are labels."""
    for head in (head for head in heads if head in LABELLED):
        outputs = len(named[str(family.heads[head]["out.bias"])])
        if outputs != len(labels):
            raise CheckpointError(
                f"{folder / 'config.json'}: id2label names {len(labels):,} labels, and the {head} "
                f"head has {outputs:,} outputs; they do not belong together"
            )


def _heads(config: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    """The heads that a folder of ours names."""
    ours = config.get("bertkit", {})
    heads = ours.get("heads", []) if isinstance(ours, dict) else None
    if not isinstance(heads, list) or not all(isinstance(head, str) for head in heads):
        raise CheckpointError(f"{path}: bertkit.heads is no list of names")
    return tuple(heads)


def _length(config: Mapping[str, Any], folder: Path) -> int | None:
    """The longest sequence that a folder of ours is meant for."""
    length = config.get("bertkit", {}).get("length")
    if length is not None and not (isinstance(length, int) and length > 2):
        raise CheckpointError(f"{folder / 'config.json'}: bertkit.length is no number of tokens")
    return length


def _architecture(config: Mapping[str, Any]) -> str:
    """The class of transformers that wrote a folder, if it says so."""
    match config.get("architectures"):
        case [str(name), *_]:
            return name
    return ""


def _labels(
    config: Mapping[str, Any], family: Family, named: Mapping[str, Tensor], path: Path
) -> tuple[str, ...]:
    """Names of the classifier's outputs; numbers, as in transformers, where none are given."""
    names = config.get("id2label")
    if not names:
        rows = (named.get(name) for name in family.outputs)
        outputs = max(len(r) if r is not None and r.ndim else 0 for r in rows)
        return tuple(f"LABEL_{i}" for i in range(outputs))
    try:
        return tuple(str(names[key]) for key in sorted(names, key=int))
    except (TypeError, ValueError):
        raise CheckpointError(f"{path}: id2label does not name labels by their number") from None
