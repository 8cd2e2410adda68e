"""All settings of a pretraining run, in a class for each training objective."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, cast

from msgspec import defstruct, structs

from bertkit.batch import Batch
from bertkit.config import Settings, decode, merged, nested
from bertkit.data.collate import collate
from bertkit.data.corpus import Corpus, PreparedText
from bertkit.data.masking import Masking
from bertkit.data.samples import Ids, Samples, Sampling, split_documents
from bertkit.data.shuffling import Shuffled
from bertkit.errors import ConfigError, did_you_mean
from bertkit.families import BERT, FAMILIES, Family
from bertkit.models.config import EncoderConfig, TransformerConfig
from bertkit.objectives.distill import Terms
from bertkit.objectives.replaced_tokens import Generator
from bertkit.recipes.run_file import Train
from bertkit.registry import Registry
from bertkit.text.tokenizer import Tokenizer

PAIRS = {"nsp": " + next sentence", "sop": " + sentence order", "none": ""}
UNITS = {"token": "tokens", "word": "whole words", "span": "spans of words", "ngram": "n-grams"}
TERMS = {
    "labels": "masked tokens",
    "outputs": "teacher outputs",
    "states": "teacher hidden states",
    "attention": "teacher attention",
    "relations": "teacher relations",
}
"""Descriptions of the loss terms of distillation, for `PretrainConfig.method`."""


class Teacher(Settings, frozen=True):
    """Settings of distillation from a pretrained teacher model."""

    model: str
    """Directory of the teacher. It must have an MLM head and the vocabulary of the corpus."""
    start: bool = False
    """Whether to initialize the model with the teacher's embedding, head and evenly spaced layers.
    The hidden sizes must be equal."""
    follow: tuple[int, ...] = ()
    """For each layer of the model, the number (from 1) of the teacher layer that it is trained to
    match. Default: evenly spaced layers."""


Sampler = Callable[..., Shuffled[Any]]
"""Function that returns the samples of a text. Its keywords are `documents`, `length` (in tokens),
and `seed`."""

TestScorer = Callable[[Path], Mapping[str, float]]
"""Function that returns the scores of a model directory on a test set."""


class PretrainConfig(Settings, frozen=True):
    """Settings of a run file, and the text, samples and heads that its objective uses.

    This class implements the objective "masked" for encoders. Subclasses implement the others.
    """

    model: EncoderConfig
    train: Train
    sampling: Sampling = Sampling()
    masking: Masking = Masking()
    teacher: Teacher | None = None
    """Teacher for distillation. By default, there is no teacher."""
    terms: Terms = Terms()
    """Weights of the loss terms of distillation."""
    generator: Generator | None = None
    """Generator for replaced token detection (ELECTRA). If set, the model is trained to detect
    replaced tokens, and only the generator to predict masked tokens."""
    decoder: EncoderConfig | None = None
    """Settings of the decoder of encoder-decoder models. Default: the values of `model`."""
    objective: str = "masked"
    """Name of the training objective: a key of `OBJECTIVES`."""
    family: str = "bert"
    """Model family (`model_type`), which determines the format of the saved model."""

    architecture: ClassVar[str] = "a bidirectional model"
    """Description of the architecture that the objective trains, for `_check_objective`."""

    def __post_init__(self) -> None:
        if self.generator is not None and self.teacher is not None:
            raise ValueError("generator cannot be combined with teacher; remove one of them")
        self._check_objective()
        other = "generator" if self.generator else "teacher" if self.teacher else None
        for name in ("z_loss", "label_smoothing"):
            if getattr(self.train, name) and other:
                raise ValueError(
                    f"train.{name} cannot be combined with {other}; remove train.{name}"
                )
        if self.teacher is None and self.terms != Terms():
            raise ValueError("terms requires a teacher; set teacher.model, or remove terms")
        is_transformer = isinstance(self.model, TransformerConfig)
        for name in ("compile", "zero_init"):
            if getattr(self.train, name) and not is_transformer:
                raise ValueError(f"train.{name} requires a Transformer; remove train.{name}")
        if self.train.zero_init and self.teacher is not None and self.teacher.start:
            raise ValueError(
                "train.zero_init cannot be combined with teacher.start, which sets the weights; "
                "remove one of them"
            )
        is_plain = self.teacher is None and self.decoder is None and is_transformer
        if self.train.first_window is not None and not is_plain:
            raise ValueError(
                "train.first_window requires an encoder-only or decoder-only Transformer without "
                "a teacher; remove train.first_window"
            )
        pairs = self.sampling.pairs
        if pairs != "none" and (other or pairs not in self.heads):
            reason = other or f"objective = {self.objective!r}"
            raise ValueError(
                f'sampling.pairs = {pairs!r} is not supported with {reason}; set it to "none"'
            )
        if self.sampling.pairs != "none" and self.model.token_types < 2:
            raise ValueError(
                f"model.token_types must be at least 2 for sampling.pairs = {pairs!r}, got "
                f'{self.model.token_types}; set it to 2, or sampling.pairs to "none"'
            )
        for name in ("length", "first_length"):
            length = getattr(self.sampling, name)
            if length is not None and length > self.model.max_positions:
                raise ValueError(
                    f"sampling.{name} must be at most model.max_positions = "
                    f"{self.model.max_positions}, got {length}"
                )

    def _check_objective(self) -> None:
        """Check that the objective supports the model and the settings."""
        model = "a causal model" if self.model.is_causal else "a bidirectional model"
        model = model if self.decoder is None else "an encoder with a decoder"
        if model != self.architecture:
            fitting = [name for name, other in OBJECTIVES.items() if other.architecture == model]
            raise ValueError(
                f"objective = {self.objective!r} requires {self.architecture}, got {model}; use "
                f"{' or '.join(fitting)}, or another family"
            )
        for name in self.unsupported():
            raise ValueError(
                f"{name} is not supported with objective = {self.objective!r}; remove {name}"
            )

    def unsupported(self) -> Sequence[str]:
        """Return the names of changed settings that the objective does not support."""
        return ()

    @property
    def heads(self) -> tuple[str, ...]:
        """Names of the heads that the run trains."""
        pairs = () if self.sampling.pairs == "none" else (self.sampling.pairs,)
        return ("mlm", *pairs) if self.generator is None else ("rtd",)

    @property
    def hub_task(self) -> str:
        """Name that the Hugging Face hub gives to the task of the model."""
        return "fill-mask" if self.generator is None else "feature-extraction"

    @property
    def method(self) -> str:
        """Short description of the training objective and masking."""
        masking, terms = self.masking, self.terms
        scope = f"of {masking.dupe_factor} epochs" if masking.dupe_factor else "new every epoch"
        target = "masked tokens" if self.generator is None else "replaced tokens"
        if self.teacher is not None:
            target = " + ".join(text for term, text in TERMS.items() if getattr(terms, term))
        fraction = f"{masking.mlm_probability:.0%} of {UNITS[masking.unit]}"
        across = "; across documents" if self.sampling.cross_documents else ""
        return f"{target}{PAIRS[self.sampling.pairs]}; {fraction}, {scope}{across}"

    @classmethod
    def open_text(cls, folder: Path | str) -> PreparedText:
        """Open the text of a run.

        Raises:
            DataError: If a file is missing or damaged.
        """
        return Corpus.open(folder)

    def split(self, text: Any) -> tuple[Ids, Ids]:
        """Return the indices of the documents to train on, and of the held-out documents."""
        return split_documents(text, self.sampling.held_out)

    def sampler(self, tokenizer: Tokenizer, masking: Masking) -> Sampler:
        """Return a function that returns the samples of given documents."""
        return partial(Samples, tokenizer=tokenizer, sampling=self.sampling, masking=masking)

    def pack(self, samples: Sequence[Any]) -> list[Batch]:
        """Pack samples into batches of up to `train.max_batch_tokens` tokens."""
        head = next((head for head in self.heads if head != "mlm"), None)
        return collate(samples, head=head, max_batch_tokens=self.train.max_batch_tokens)

    def read_test(self, file: Path) -> TestScorer:
        """Read a test set, and return a function that scores a model on it.

        Raises:
            ConfigError: If the objective has no test scores.
            DataError: If the file is missing or has an invalid row.
        """
        raise ConfigError(f"test is not supported with objective = {self.objective!r}; remove test")


OBJECTIVES: Mapping[str, type[PretrainConfig]] = Registry(
    "objectives", {"masked": "bertkit.recipes.pretrain_config:PretrainConfig"}
)
"""Class of the settings for each value of `objective` in a run file."""


def config_class(data: Mapping[str, Any]) -> type[PretrainConfig]:
    """Return the settings class for the objective and the family of a run file.

    Raises:
        ConfigError: If there is no such objective or family.
    """
    name = str(data.get("objective", "masked"))
    if name not in OBJECTIVES:
        raise ConfigError(
            f"objective = {name!r} is not supported; {did_you_mean(name, OBJECTIVES)}"
        )
    return _with_models(OBJECTIVES[name], _family(data).config_type)


@cache
def _with_models(
    settings: type[PretrainConfig], config: type[EncoderConfig]
) -> type[PretrainConfig]:
    """Return a subclass of `settings` whose fields `model` and `decoder` have the type `config`."""
    types = {"model": config, "decoder": config | None}
    fields = [(f.name, types.get(f.name, f.type), f.default) for f in structs.fields(settings)]
    complete_class = defstruct(
        settings.__name__, fields, bases=(settings,), frozen=True, kw_only=True
    )
    return cast(type[PretrainConfig], complete_class)


def read_config(data: Mapping[str, Any], tokenizer: Tokenizer) -> PretrainConfig:
    """Read the settings of a run. The default vocabulary size is the size of the tokenizer.

    Args:
        data: Content of the run file.
        tokenizer: The tokenizer that the corpus was prepared with.

    Raises:
        ConfigError: If a setting is invalid or the family does not support the tokenizer.
    """
    family = _family(data)
    tokenizer.need(*family.roles)
    pad = tokenizer.pad if "pad" in family.roles else 0
    if pad != (expected := family.fixed.get("pad_id", pad)):
        raise ConfigError(
            f"family: {family.name} requires a padding token with id {expected}, got {pad}; "
            "use another family, or train the vocabulary with --kind bpe"
        )
    config = complete(data, vocab=tokenizer.vocab_size, pad=pad)
    if config.model.vocab < tokenizer.vocab_size:
        raise ConfigError(
            f"model.vocab must be at least the tokenizer's {tokenizer.vocab_size} tokens, got "
            f"{config.model.vocab}; remove model.vocab"
        )
    return config


def complete(data: Mapping[str, Any], *, vocab: int, pad: int) -> PretrainConfig:
    """Return the settings of a run, completed with the defaults of its family and vocabulary.

    Args:
        data: Content of the run file.
        vocab: Size of the vocabulary.
        pad: Id of the padding token.

    Raises:
        ConfigError: If a setting is invalid, or has a value that the family does not support.
    """
    family = _family(data)
    name = family.name
    if isinstance(data.get("model"), Mapping):
        model = data["model"]
        defaults = {**family.usual, "vocab": vocab}
        if "pad" in family.roles:
            defaults["pad_id"] = pad
        if family.decoder is not None:
            usual = {**family.decoder.usual, **{n: defaults[n] for n in ("vocab", "pad_id")}}
            as_encoder = merged(merged(usual, model), nested(family.decoder.fixed))
            decoder = data.get("decoder", {})
            tables = [t.get("head") for t in (model, decoder) if isinstance(t, Mapping)]
            head = {
                k: v for table in tables if isinstance(table, Mapping) for k, v in table.items()
            }
            if head.get("lm_tied") is False and "lm_scaled" not in head:
                # T5 scales its states only before an output matrix that is tied.
                as_encoder = merged(as_encoder, {"head": {"lm_scaled": False}})
            is_table = isinstance(decoder, Mapping)
            data = {**data, "decoder": merged(as_encoder, decoder) if is_table else decoder}
            model = {name: value for name, value in model.items() if name != "head"}
        data = {**data, "model": merged(defaults, model)}
    config = decode(config_class(data), data)
    family.write_config(config.model, config.decoder)
    if frozenset(config.heads) not in family.architectures:
        if config.generator is not None:
            raise ConfigError(
                f"generator is not supported by the family {name}; set "
                'family = "electra", or remove generator'
            )
        raise ConfigError(
            f"sampling.pairs = {config.sampling.pairs!r} is not supported by the family {name}; "
            'use another value, or "none"'
        )
    return config


def _family(data: Mapping[str, Any]) -> Family:
    name = str(data.get("family", BERT.name))
    if name not in FAMILIES:
        raise ConfigError(f"family = {name!r} is not supported; {did_you_mean(name, FAMILIES)}")
    return FAMILIES[name]
