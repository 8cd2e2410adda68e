"""Model directories in the Hugging Face format: `config.json`, weights, and tokenizer."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
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
from bertkit.checkpoint.formats import FORMATS, ModelFormat, open_format
from bertkit.checkpoint.hub import PICKLES, has_weights, resolve
from bertkit.checkpoint.pooling_files import read_object, read_pooling, write_pooling
from bertkit.checkpoint.run_directory import warn_unfinished
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
from bertkit.console import say
from bertkit.data.labels import join_labels
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
"""Functions that read additional settings from a model directory, by name."""


@dataclass(frozen=True)
class Loaded:
    """Model that was loaded from a directory, with its tokenizer and settings."""

    model: Model
    """Encoder with its heads, and the decoder if there is one."""
    tokenizer: Tokenizer
    """Tokenizer of the input texts."""
    family: Family
    """Model family, which determines the format in which the model is saved."""
    report: LoadReport
    """Weights that were missing in the checkpoint, and weights that the model does not use."""
    folder: Path
    """Directory of the model. For a hub id, this is the directory of the download."""
    labels: tuple[str, ...] = ()
    """Names of the outputs of the head. If there is only one, the head computes a regression."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Content of `config.json`, including the settings of the task."""
    pooling: Pooling | None = None
    """Pooling of an embedding model in the format of sentence-transformers."""
    length: int = 512
    """Maximum number of tokens per sequence."""
    generation: Any = None
    """Settings of text generation, if the model has a language modeling head."""
    base: Path | None = None
    """Directory of the base model, if an adapter was loaded."""
    format: ModelFormat | None = None
    """Format of the directory, if it specifies computations that only this format supports."""

    def __repr__(self) -> str:
        config, heads = self.model.config, ", ".join(self.model.heads)
        labels = join_labels(self.labels[:10]) + " …" * (len(self.labels) > 10)
        return (
            f"<{self.folder}: {self.family.name}, {config.layers} layers of {config.hidden}, "
            f"{sum(weight.numel() for weight in self.model.parameters()):,} parameters, "
            f"heads: {heads or 'none'}"
            + f", labels: {labels}" * bool(labels)
            + f", max length {self.length}>"
        )

    def save(self, folder: str | Path) -> None:
        """Save the model with its labels, task, pooling, and maximum length.

        If an adapter was loaded, it is merged into the saved weights.

        Args:
            folder: Output directory.

        Raises:
            CheckpointError: If bertkit cannot save all parts of the model, as for SPLADE and
                GLiNER.
        """
        resave(self, self.model, Path(folder))

    @property
    def begin(self) -> list[int]:
        """List with the start token of the decoder, or an empty list if there is no decoder."""
        if self.model.decoder is None or self.generation is None or self.generation.start is None:
            return []
        return [self.generation.start]

    @property
    def generation_settings(self) -> dict[str, Any]:
        """Content of generation_config.json for saving a model that is derived from this model."""
        if self.generation is not None and self.generation.has_settings:
            return dict(self.generation.settings)
        path = (self.base or self.folder) / GENERATION
        return read_object(path) if path.exists() else {}

    @cached_property
    def target(self) -> Tokenizer:
        """Tokenizer of the decoder. Only Marian models have one that differs from `tokenizer`."""
        folder = self.base or self.folder
        if (folder / "target.spm").exists():
            return Tokenizer.load(folder, side="target")
        return self.tokenizer

    def fingerprint(self) -> str:
        """Return a hash of the tokenizer, the configuration, and the weights of the encoder.

        Together with the prompt and the pooling, these determine the embeddings of the model. For
        an embedding model, the hash also includes the dense layer.
        """
        digest = hashlib.sha256(self.tokenizer.fingerprint.encode())
        digest.update(msgspec.json.encode(_shape(self.model.config), order="sorted"))
        weights = self.model.encoder.state_dict()
        dense = None if self.pooling is None else self.pooling.dense
        if dense is not None:
            digest.update(dense.activation.encode())
            weights = {**weights, **dense.state_dict()}
        return _hash_weights(digest, weights)

    def weights_hash(self) -> str:
        """Return a hash of all weights, including the heads."""
        return _hash_weights(hashlib.sha256(), self.model.state_dict())


def _shape(config: EncoderConfig) -> dict[str, Any]:
    """Return the settings that affect the hidden states of an encoder at inference.

    Settings of heads and dropout are omitted. Default values are also omitted, so that fingerprints
    do not change when bertkit adds a setting.
    """
    defaults = paths(type(config))
    return {
        path: value
        for path, value in flat(plain(config)).items()
        if not path.startswith("head.")
        and not path.endswith("dropout")
        and value != defaults.get(path, ...)
    }


def _hash_weights(digest: Any, weights: Mapping[str, Tensor]) -> str:
    """Add the names and values of weights to a digest, and return its hash."""
    for name, weight in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy())
    return str(digest.hexdigest())


@dataclass(frozen=True)
class Stored:
    """Parts of a stored Transformer. The weights and the tokenizer are read only when needed."""

    folder: Path
    """Directory of the encoder, or the single file that contains all parts."""
    settings: dict[str, Any]
    """Content of config.json."""
    read_tensors: Callable[[], dict[str, Tensor]]
    read_tokenizer: Callable[[], Tokenizer]
    pooling: Pooling | None = None
    length: int | None = None
    """Maximum number of tokens of an embedding model."""
    family: Family | None = None
    """Family of the model. Default: the family of the `model_type` in the settings."""
    build: Callable[[Any], Encoder] | None = None
    """Function that builds the encoder. Default: the encoder that the configuration describes."""
    format: ModelFormat | None = None
    """Format of the directory, if it specifies computations that only this format supports."""

    def file(self, name: str) -> Path:
        """Return the path of a file in the directory, or of the single file with all parts."""
        return self.folder if self.folder.is_file() else self.folder / name


def read_stored(path: Path) -> Stored:
    """Read the settings of a model directory, but not yet its weights and tokenizer.

    Args:
        path: The directory.

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
    """Load a model from a directory, a hub id, a GGUF file, or a LoRA adapter directory.

    A LoRA adapter is merged into its base model, which is also loaded.

    Args:
        name: Path or hub id of the model.
        heads: Heads to load. If the checkpoint does not contain a head, the head is newly
            initialized and its weights are listed in `report.fresh`. Default: all heads in the
            checkpoint that bertkit supports.
        labels: Names of the outputs of new heads.
        revision: Branch, tag, or commit of a model on the hub.
        features: Hidden states of the frozen model that are the input of a new BiLSTM, written as
            in the settings of `finetune`.

    Returns:
        The model, with its tokenizer and settings.

    Raises:
        CheckpointError: If a file is missing or invalid, or files contradict each other.
        ConfigError: If the model does not have the layers that `features` selects.
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
    architecture, recorded = architecture_of(settings), heads_of(settings, path)
    saved_heads = heads_in(family, weights, architecture=architecture, recorded=recorded)
    supported = tuple(head for head in saved_heads if head in HEADS)
    if adapter is not None and adapter.head in supported:
        supported = (adapter.head,)
    requested = heads if heads is not None else supported
    if "lm" in requested and decoder is not None:
        decoder = untie(family, weights, decoder)
    elif "lm" in requested:
        config = untie(family, weights, config)
    for stack in filter(None, (config, decoder)):
        _check_sizes(stack, weights, path)
    saved_labels = labels_of(settings, family, weights, path)
    outputs = tuple(labels) or saved_labels
    _check_heads(requested, outputs, family, stored.folder)
    reused = [head for head in requested if head in saved_heads]
    if outputs == saved_labels:
        _check_labels(outputs, reused, family, weights, path)
    else:
        reused = [head for head in reused if head in HEADS and head not in LABELED]
    model = empty(
        config, requested, labels=outputs, decoder=decoder, pooling=pooling, build=stored.build
    )
    new = [head for head in requested if head not in reused]
    weights = _without_heads(weights, new, family) | _dense(model, pooling)
    fresh = tuple(requested) if heads is not None else ()
    report = fill(model, family, weights, fresh=fresh, where=stored.file(FILE))
    tokenizer = _read_tokenizer(stored, family, config)
    length = stored.length or length_of(settings, path) or tokenizer.max_length
    _suggest_copy(folder if adapter is None else adapter.base, stored.folder)
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
        generation=_read_generation(stored.folder, settings, model) if "lm" in requested else None,
        base=None if adapter is None else adapter.base,
        format=stored.format,
    )


@cache
def _suggest_copy(model: Path, folder: Path) -> None:
    """Print once how to store a copy of a model with safetensors, if it has only PyTorch files."""
    if not has_weights(folder) and any(f.suffix in PICKLES for f in folder.glob("*model*")):
        code = shlex.quote(f'import bertkit; bertkit.load({json.dumps(str(model))}).save("copy")')
        say(f"{model}: the weights are PyTorch files; to save safetensors, run python -c {code}")


def _stored(
    folder: Path, features: str | None, *, trainable: bool
) -> tuple[Stored, Adapter | None]:
    """Return the parts of a stored model, and the adapter to merge into it, if there is one.

    Raises:
        CheckpointError: If a file is missing or invalid.
        ConfigError: If the model does not have the layers that `features` selects.
    """
    warn_unfinished(folder)
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
            f"{folder}: the input size of the dense layer differs from the hidden size of the "
            f"encoder, {config.hidden}; download the model again"
        )


def _without_heads(
    weights: Mapping[str, Tensor], heads: Sequence[str], family: Family
) -> dict[str, Tensor]:
    """Return the weights without those of the given heads, which are newly initialized.

    The pooler is kept, because it is part of the encoder.
    """
    stale = {name for head in heads for name in head_weights(family, head, weights)}
    return {n: w for n, w in weights.items() if n not in stale or n.startswith(family.prefix)}


def _read_tokenizer(stored: Stored, family: Family, config: EncoderConfig) -> Tokenizer:
    """Read the tokenizer of a model, and check that it matches the model.

    Raises:
        CheckpointError: If the tokenizer does not match the model.
    """
    tokenizer = stored.read_tokenizer()
    if stored.pooling is not None and stored.pooling.lowercase:
        tokenizer = tokenizer.lowercased()
    if stored.build is None:
        _check_tokenizer(tokenizer, stored.folder, family, config)
    return tokenizer


def _read_generation(folder: Path, settings: Mapping[str, Any], model: Model) -> Any:
    """Read the settings of text generation from a model directory, with the `generation` reader.

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
    """Raise CheckpointError if the family does not support a head, or a head lacks its labels."""
    for head in () if isinstance(heads, Mapping) else heads:
        if head not in HEADS:
            raise CheckpointError(f"heads: unknown head {head!r}; {did_you_mean(head, HEADS)}")
        if head not in (*family.heads, *BERTKIT_HEADS):
            known = ", ".join(family.heads)
            raise CheckpointError(
                f"{folder}: head {head} is not supported by {family.name}; use one of {known}"
            )
    for head in heads:
        if head in LABELED and not labels:
            raise CheckpointError(f"{folder}: no {head} head; pass labels to create a new one")


def _check_tokenizer(
    tokenizer: Tokenizer, folder: Path, family: Family, config: EncoderConfig
) -> None:
    """Raise CheckpointError if the tokenizer does not match the model."""
    tokenizer.need(*family.roles)
    reason = ""
    if family.positions_after_pad and tokenizer.pad != config.pad_id:
        reason = f"padding id {tokenizer.pad}, but the model has {config.pad_id}"
    elif config.token_types > 1 and tokenizer.segments > config.token_types:
        reason = f"{tokenizer.segments} token types, but the model has {config.token_types}"
    elif tokenizer.vocab_size > config.vocab:
        reason = f"{tokenizer.vocab_size} tokens, but the model has {config.vocab} embeddings"
    if reason:
        raise CheckpointError(f"{folder}: the tokenizer has {reason}; use the model's tokenizer")
    if config.token_types > 1 and tokenizer.segments > 1 and tokenizer.omits_types:
        say(
            f"{folder}: warning: pairs of texts have token types, as in transformers 4; for token "
            'types in transformers 5, add "token_type_ids" to model_input_names in '
            "tokenizer_config.json"
        )


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
    """Save a model in a directory that `load` and `transformers` can read.

    Each file is written atomically. To save a model that `load` returned, use `Loaded.save`.

    Args:
        folder: Output directory.
        model: The model.
        tokenizer: Tokenizer of the model.
        family: Family of the model.
        labels: Names of the outputs of the head.
        settings: Additional keys of `config.json`, such as the settings of a task.
        length: Maximum number of tokens. Default: the maximum of the model.
        weights: Weights to save instead of the model's weights with the same names, such as fp32
            master weights.
        pooling: Pooling to write for sentence-transformers. Default: the pooling of the model's
            pooling head, if it has one.
        generation: Content of `generation_config.json`, from the model that this model is derived
            from.

    Raises:
        CheckpointError: If the format of the family cannot represent the model.

    Shapes:
        weights: the shapes of the weights of the model.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    model.encoder.save_input(folder, tokenizer)
    config = config_of(model, tokenizer, family, labels, settings or {}, length)
    write_json(folder / "config.json", config)
    if generation:
        write_json(folder / GENERATION, generation)
    elif family.start:
        names = ("decoder_start_token_id", "eos_token_id", "pad_token_id")
        ids = {name: config[name] for name in names}
        write_json(folder / GENERATION, {**ids, "bad_words_ids": [[tokenizer.pad]]})
    state = {**model.state_dict(), **(weights or {})}
    dense: dict[str, Tensor] = {}
    for name, head in model.heads.items():
        # The dense layer of a pooling head is stored in a separate file.
        if isinstance(head, Pool):
            prefix = f"heads.{name}.dense."
            keys = [key for key in state if key.startswith(prefix)]
            dense = {key.removeprefix(prefix): state.pop(key) for key in keys}
            pooling = head.pooling
    with writing(folder / FILE) as partial:
        write_tensors(partial, family.write(state, model.config))
    if pooling is not None:
        length = length or model.config.max_positions
        write_pooling(folder, pooling, hidden=model.config.hidden, length=length, weights=dense)


TASK_SETTINGS = ("problem_type", "task_specific_params")
"""Keys of config.json with settings of a task, in addition to the key `bertkit`."""


def resave(
    loaded: Loaded,
    model: Model,
    out: Path,
    *,
    tokenizer: Tokenizer | None = None,
    length: int | None = None,
) -> None:
    """Save a changed model with the labels, task, and settings of the original model.

    Args:
        loaded: The original model.
        model: The changed model.
        out: Output directory.
        tokenizer: Tokenizer to save. Default: the tokenizer of the original model.
        length: Maximum number of tokens. Default: the maximum of the original model.

    Raises:
        CheckpointError: If the original model has parts that are not saved.
    """
    if loaded.format is not None:
        raise loaded.format.mismatch("a model that bertkit can save", "copy its directory")
    settings = {name: loaded.settings[name] for name in TASK_SETTINGS if name in loaded.settings}
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
    """Return the weights of the pooling's dense layer, to load them into heads with such a layer.

    The keys are the names of the weights in each head whose dense layer has the same shape.
    """
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
    """Check that no size in the configuration is larger than the stored weights.

    Call this before the model is built, because an excessive size would exhaust the memory.

    Raises:
        CheckpointError: If a size is too large.
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
                f"{path}: {name} = {size:,} does not match the stored weights; download the model "
                "again"
            )


def _check_labels(
    labels: Sequence[str],
    heads: Iterable[str],
    family: Family,
    weights: Mapping[str, Tensor],
    path: Path,
) -> None:
    """Raise CheckpointError if a head does not have one output for each label."""
    for head in (head for head in heads if head in LABELED):
        default = {"out.weight": f"heads.{head}.out.weight"}
        outputs = len(weights.get(str(family.heads.get(head, default)["out.weight"]), ()))
        if outputs != len(labels):
            raise CheckpointError(
                f"{path}: id2label has {len(labels):,} labels, but the {head} head has "
                f"{outputs:,} outputs; fix id2label"
            )
        if len({*labels}) < outputs:
            raise CheckpointError(
                f"{path}: id2label has the same name for two labels; rename one of them"
            )
