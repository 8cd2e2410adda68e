"""Model folders as the Hugging Face ecosystem has them: `config.json`, weights, tokenizer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from bertkit.checkpoint.adapter import Adapter, read_adapter
from bertkit.checkpoint.config_json import (
    architecture_of,
    config_of,
    heads_of,
    labels_of,
    length_of,
    read_config,
)
from bertkit.checkpoint.formats import FORMATS, open_format
from bertkit.checkpoint.hub import resolve
from bertkit.checkpoint.pooling_files import read_object, read_pooling, write_pooling
from bertkit.checkpoint.run_directory import say_unfinished
from bertkit.checkpoint.weights import (
    FILE,
    LoadReport,
    fill,
    head_weights,
    heads_in,
    read_tensors,
    standard_names,
    untie,
    write_tensors,
)
from bertkit.config import flat, paths, plain
from bertkit.data.labels import listed
from bertkit.errors import CheckpointError, did_you_mean
from bertkit.families import Family
from bertkit.models.config import EncoderConfig
from bertkit.models.encoder import Encoder
from bertkit.models.model import BERTKIT_HEADS, HEADS, LABELED, HeadMaker, Model, empty
from bertkit.nn.pooling import Pool, Pooling
from bertkit.registry import Registry
from bertkit.storage import write_json, writing
from bertkit.synonyms import check_keywords
from bertkit.text.tokenizer import Tokenizer

GENERATION = "generation_config.json"

SETTINGS_READERS: Mapping[str, Callable[..., Any]] = Registry("settings_readers", {})
"""Functions that read further settings of a model directory, by name."""


@dataclass(frozen=True)
class Loaded:
    """A folder, opened."""

    model: Model
    tokenizer: Tokenizer
    family: Family
    report: LoadReport
    folder: Path
    labels: tuple[str, ...] = ()
    """Names of the head's outputs; one name is a regression."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The whole `config.json`, for what belongs to a task."""
    pooling: Pooling | None = None
    """Set by sentence-transformers folders."""
    length: int = 512
    """The longest sequence the folder is meant for, in tokens."""
    generation: Any = None
    """Settings of text generation, if the model has a language modeling head."""
    base: Path | None = None
    """Of adapters: where the model is that they change."""

    def __repr__(self) -> str:
        config, heads = self.model.config, ", ".join(self.model.heads)
        labels = listed(self.labels[:10]) + " …" * (len(self.labels) > 10)
        return (
            f"<{self.folder}: {self.family.name}, {config.layers} layers of {config.hidden}, "
            f"{sum(weight.numel() for weight in self.model.parameters()):,} parameters, "
            f"heads: {heads or 'none'}"
            + f", labels: {labels}" * bool(labels)
            + f", reads {self.length} tokens>"
        )

    def save(self, folder: str | Path) -> None:
        """Write it as a folder, with its labels, its task, its pooling and its length; adapters are
        merged into their model's weights.
        """
        resave(self, self.model, Path(folder))

    @property
    def begin(self) -> list[int]:
        """The token before the first one of a decoder's text; none where there is no decoder."""
        if self.model.decoder is None or self.generation is None or self.generation.start is None:
            return []
        return [self.generation.start]

    @property
    def generation_settings(self) -> dict[str, Any]:
        """The content of generation_config.json for a model that is derived from this one."""
        if self.generation is not None and self.generation.has_settings:
            return dict(self.generation.settings)
        path = (self.base or self.folder) / GENERATION
        return read_object(path) if path.exists() else {}

    @cached_property
    def target(self) -> Tokenizer:
        """The tokenizer of what a decoder writes; Marian's texts have one for each side."""
        folder = self.base or self.folder
        if (folder / "target.spm").exists():
            return Tokenizer.load(folder, side="target")
        return self.tokenizer

    def fingerprint(self) -> str:
        """A hash of all that decides a text's vector, beside its prompt and how states are pooled:
        tokenizer, shape, and weights.
        """
        digest = hashlib.sha256(self.tokenizer.fingerprint.encode())
        digest.update(msgspec.json.encode(_shape(self.model.config), order="sorted"))
        weights = self.model.encoder.state_dict()
        dense = None if self.pooling is None else self.pooling.dense
        if dense is not None:
            digest.update(dense.activation.encode())
            weights = {**weights, **dense.state_dict()}
        return _hashed(digest, weights)

    def weights_hash(self) -> str:
        """A hash of all weights, those of the heads too."""
        return _hashed(hashlib.sha256(), self.model.state_dict())


def _shape(config: EncoderConfig) -> dict[str, Any]:
    """Return the settings of an encoder that change its states: no heads, no dropout.

    Settings with their default are left out, so that a new setting changes no fingerprint.
    """
    defaults = paths(type(config))
    return {
        path: value
        for path, value in flat(plain(config)).items()
        if not path.startswith("head.")
        and not path.endswith("dropout")
        and value != defaults.get(path, ...)
    }


def _hashed(digest: Any, weights: Mapping[str, Tensor]) -> str:
    """A hash of weights by their names, behind what it has read before."""
    for name, weight in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy())
    return str(digest.hexdigest())


@dataclass(frozen=True)
class Stored:
    """Parts of a stored Transformer; weights and tokenizer are read when they are needed."""

    folder: Path
    """Directory of the encoder, or the file that contains all parts."""
    settings: dict[str, Any]
    """Content of config.json."""
    read_tensors: Callable[[], dict[str, Tensor]]
    read_tokenizer: Callable[[], Tokenizer]
    pooling: Pooling | None = None
    length: int | None = None
    """Maximum number of tokens of an embedding model."""
    family: Family | None = None
    """Default: the family of the `model_type` in the settings."""
    build: Callable[[Any], Encoder] | None = None
    """Function that returns the encoder. Default: the encoder of the configuration."""

    def file(self, name: str) -> Path:
        """Return the path of a file, or of the one file that contains all parts."""
        return self.folder if self.folder.is_file() else self.folder / name


def read_stored(path: Path) -> Stored:
    """Read the settings of a model directory.

    Raises:
        CheckpointError: If a file is missing or invalid.
    """
    pooling, folder, length = read_pooling(path)
    return Stored(
        folder,
        read_object(folder / "config.json"),
        partial(read_tensors, folder),
        partial(Tokenizer.load, folder),
        pooling,
        length,
    )


@check_keywords
def load(
    name: str | Path,
    *,
    heads: Iterable[str] | Mapping[str, HeadMaker] | None = None,
    labels: Sequence[str] = (),
    revision: str | None = None,
    features: str | None = None,
) -> Loaded:
    """Load a model directory or hub id, a GGUF file, or adapters (LoRA) with their model.

    Args:
        name: Path or hub id of the model.
        heads: Heads to load. Heads that the model lacks are newly initialized, and are listed in
            `report.fresh`. Default: all heads of the model that bertkit supports.
        labels: Names of the outputs of new heads.
        revision: Revision of a hub id.
        features: Frozen hidden states that a new BiLSTM reads, as in the settings of `finetune`.

    Returns:
        The model, with its tokenizer and settings.

    Raises:
        CheckpointError: If a file is missing or invalid, or the files do not fit together.
        ConfigError: If the model does not have the layers of `features`.
    """
    heads = [heads] if isinstance(heads, str) else heads
    labels = [labels] if isinstance(labels, str) else labels
    folder = resolve(name, revision)
    stored, adapter = _stored(folder, features, trainable=bool(heads))
    pooling, settings, path = stored.pooling, stored.settings, stored.file("config.json")
    family, config, decoder = read_config(path, settings, stored.family)
    _check_pooling(pooling, config, folder)
    weights = standard_names(family, stored.read_tensors())
    if adapter is not None:
        weights, settings = adapter.merge(family, weights), adapter.settings(family, settings)
    architecture, ours = architecture_of(settings), heads_of(settings, path)
    saved_heads = heads_in(family, weights, architecture=architecture, ours=ours)
    known = tuple(head for head in saved_heads if head in HEADS)
    if adapter is not None and adapter.head in known:
        known = (adapter.head,)
    wanted = heads if heads is not None else known
    if "lm" in wanted and decoder is not None:
        decoder = untie(family, weights, decoder)
    elif "lm" in wanted:
        config = untie(family, weights, config)
    for stack in filter(None, (config, decoder)):
        _check_sizes(stack, weights, path)
    saved_labels = labels_of(settings, family, weights, path)
    outputs = tuple(labels) or saved_labels
    _check_heads(wanted, outputs, family, stored.folder)
    kept = [head for head in wanted if head in saved_heads]
    if outputs == saved_labels:
        _check_labels(outputs, kept, family, weights, path)
    else:
        kept = [head for head in kept if head in HEADS and head not in LABELED]
    model = empty(
        config, wanted, labels=outputs, decoder=decoder, pooling=pooling, build=stored.build
    )
    new = [head for head in wanted if head not in kept]
    weights = _without_heads(weights, new, family) | _dense(model, pooling)
    fresh = tuple(wanted) if heads is not None else ()
    report = fill(model, family, weights, fresh=fresh, where=stored.file(FILE))
    tokenizer = _read_tokenizer(stored, family, config)
    length = stored.length or length_of(settings, path) or tokenizer.max_length
    return Loaded(
        model=model.eval(),
        tokenizer=tokenizer,
        family=family,
        report=report,
        folder=folder,
        labels=outputs,
        settings=settings,
        pooling=pooling,
        length=min(config.max_positions, length or config.max_positions),
        generation=_read_generation(stored.folder, settings, model) if "lm" in wanted else None,
        base=None if adapter is None else adapter.base,
    )


def _stored(
    folder: Path, features: str | None, *, trainable: bool
) -> tuple[Stored, Adapter | None]:
    """Return the parts of a model, and the adapter that changes it.

    Raises:
        CheckpointError: If a file is missing or invalid.
        ConfigError: If the model does not have the layers of `features`.
    """
    say_unfinished(folder)
    if features is not None:
        stored: Stored = FORMATS["word-features"](folder, features).trainable()
        return stored, None
    adapter = read_adapter(folder)
    source = open_format(folder if adapter is None else adapter.base)
    return source.trainable() if trainable else source.stored(), adapter


def _check_pooling(pooling: Pooling | None, config: EncoderConfig, folder: Path) -> None:
    """Raise CheckpointError if the dense layer of an embedding model does not fit the encoder."""
    if pooling is not None and not pooling.reads(config.hidden):
        raise CheckpointError(
            f"{folder}: the dense layer expects vectors of a width other than {config.hidden}, the "
            "width of the model; download both again"
        )


def _without_heads(
    weights: Mapping[str, Tensor], heads: Sequence[str], family: Family
) -> dict[str, Tensor]:
    """Return the weights without those of heads that are newly initialized.

    The pooler is part of the encoder, and stays.
    """
    stale = {name for head in heads for name in head_weights(family, head, weights)}
    return {n: w for n, w in weights.items() if n not in stale or n.startswith(family.prefix)}


def _read_tokenizer(stored: Stored, family: Family, config: EncoderConfig) -> Tokenizer:
    """Read the tokenizer of a model, and check that it fits the model.

    Raises:
        CheckpointError: If it does not fit.
    """
    tokenizer = stored.read_tokenizer()
    if stored.pooling is not None and stored.pooling.lowercase:
        tokenizer = tokenizer.lowercased()
    if stored.build is None:
        _check_tokenizer(tokenizer, stored.folder, family, config)
    return tokenizer


def _read_generation(folder: Path, settings: Mapping[str, Any], model: Model) -> Any:
    """Read the settings of text generation in a model directory, by the extension that uses them.

    Raises:
        CheckpointError: If a value has the wrong type.
    """
    config = model.config if model.decoder is None else model.decoder.config
    return SETTINGS_READERS["generation"](folder, settings, config.vocab)


def _check_heads(
    heads: Iterable[str] | Mapping[str, HeadMaker],
    labels: Sequence[str],
    family: Family,
    folder: Path,
) -> None:
    """Raise CheckpointError if the family has no such head, or a head needs labels."""
    for head in () if isinstance(heads, Mapping) else heads:
        if head not in HEADS:
            raise CheckpointError(f"heads: unknown head {head!r}; {did_you_mean(head, HEADS)}")
        if head not in (*family.heads, *BERTKIT_HEADS):
            known = ", ".join(family.heads)
            raise CheckpointError(
                f"{folder}: a {family.name} model has no {head} head here; it has {known}"
            )
    for head in heads:
        if head in LABELED and not labels:
            raise CheckpointError(f"{folder}: has no {head} head; pass labels for a new one")


def _check_tokenizer(
    tokenizer: Tokenizer, folder: Path, family: Family, config: EncoderConfig
) -> None:
    """Raises: CheckpointError when it is not the tokenizer of a model of this shape."""
    tokenizer.need(*family.roles)
    reason = ""
    if family.positions_after_pad and tokenizer.pad != config.pad_id:
        reason = (
            f"'s padding piece has id {tokenizer.pad}, config.json says {config.pad_id}; "
            f"a {family.name} model counts positions from it, so that"
        )
    elif config.token_types > 1 and tokenizer.segments > config.token_types:
        reason = f" numbers {tokenizer.segments} segments, the model has {config.token_types};"
    elif tokenizer.vocab_size > config.vocab:
        reason = f" has {tokenizer.vocab_size} pieces, the model only {config.vocab} rows;"
    if reason:
        raise CheckpointError(f"{folder}: the tokenizer{reason} they do not belong together")


@check_keywords
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
    generation: Mapping[str, Any] | None = None,
) -> None:
    """Write a folder that `load` and `transformers` open; each file appears whole. What `load`
    opened is saved by `Loaded.save`.

    `settings` are more keys of config.json, such as a task's; `length` is the longest sequence the
    folder is meant for, by default what the model can read; `weights` replaces the model's own by
    others of the same names (fp32 masters). `pooling` is how vectors are made, by default as a
    head of the model makes them; sentence-transformers reads it too. `generation` are the
    generation settings of the model that this one is derived from.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    model.encoder.save_input(folder, tokenizer)
    config = config_of(model, tokenizer, family, labels, settings or {}, length)
    write_json(folder / "config.json", config)
    if generation:
        write_json(folder / GENERATION, generation)
    elif family.start:
        kept = ("decoder_start_token_id", "eos_token_id", "pad_token_id")
        ids = {name: config[name] for name in kept}
        write_json(folder / GENERATION, {**ids, "bad_words_ids": [[tokenizer.pad]]})
    state = {**model.state_dict(), **(weights or {})}
    dense: dict[str, Tensor] = {}
    for name, head in model.heads.items():
        if isinstance(head, Pool):  # its weights go into a file of their own
            prefix = f"heads.{name}.dense."
            names = [key for key in state if key.startswith(prefix)]
            dense = {key.removeprefix(prefix): state.pop(key) for key in names}
            pooling = head.pooling
    with writing(folder / FILE) as partial:
        write_tensors(partial, family.write(state, model.config))
    if pooling is not None:
        length = length or model.config.max_positions
        write_pooling(folder, pooling, hidden=model.config.hidden, length=length, weights=dense)


KEPT = ("problem_type", "task_specific_params")
"""Settings of a task in config.json, in addition to bertkit's own."""


def resave(
    loaded: Loaded,
    model: Model,
    out: Path,
    *,
    tokenizer: Tokenizer | None = None,
    length: int | None = None,
) -> None:
    """Write a changed `model` with the labels and the task of the folder that it was loaded from,
    and how it writes; with another tokenizer or length if given.
    """
    settings = {name: loaded.settings[name] for name in KEPT if name in loaded.settings}
    task = loaded.settings.get("bertkit", {}).get("task")
    if task is not None:
        settings["bertkit"] = {"task": task}
    save(
        out,
        model,
        tokenizer or loaded.tokenizer,
        loaded.family,
        labels=loaded.labels,
        settings=settings,
        length=length or loaded.length,
        pooling=loaded.pooling,
        generation=loaded.generation_settings,
    )


def _dense(model: Model, pooling: Pooling | None) -> dict[str, Tensor]:
    """The weights of the folder's dense layer, named as those of each head that has its shape."""
    if pooling is None or pooling.dense is None:
        return {}
    shape = pooling.dense.linear.weight.shape
    return {
        f"heads.{name}.dense.{key}": tensor
        for name, head in model.heads.items()
        if isinstance(head, Pool) and head.dense is not None
        if head.dense.linear.weight.shape == shape
        for key, tensor in pooling.dense.state_dict().items()
    }


def _check_sizes(config: EncoderConfig, weights: Mapping[str, Tensor], path: Path) -> None:
    """Whether the weights that are there can be of this shape, before one is made of it.

    Raises: CheckpointError naming the setting that is too large for them.
    """
    largest = max((max(tensor.shape, default=0) for tensor in weights.values()), default=0)
    sizes = {
        "layers": (max(config.depths) + 1, len(weights)),
        **{n: (getattr(config, n, 0), largest) for n in ("vocab", "hidden", "intermediate")},
        "embedding": (config.width, largest),
        "token_types": (config.token_types, largest),
        "max_positions": (config.learned_positions, largest),
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
    weights: Mapping[str, Tensor],
    path: Path,
) -> None:
    """Raises: CheckpointError when a head has another number of outputs than there are labels."""
    for head in (head for head in heads if head in LABELED):
        own = {"out.weight": f"heads.{head}.out.weight"}
        outputs = len(weights.get(str(family.heads.get(head, own)["out.weight"]), ()))
        if outputs != len(labels):
            raise CheckpointError(
                f"{path}: id2label names {len(labels):,} labels, and the {head} "
                f"head has {outputs:,} outputs; they do not belong together"
            )
