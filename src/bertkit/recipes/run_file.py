"""A run file: every setting of pretraining, and which go together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
from msgspec import Meta

from bertkit.config import (
    Count,
    Positive,
    Seed,
    Settings,
    decode,
    merged,
    nested,
    plain,
    read_toml_by_name,
)
from bertkit.data.corruption import Corruption, Damage
from bertkit.data.masking import Masking
from bertkit.data.samples import Sampling
from bertkit.errors import ConfigError, did_you_mean
from bertkit.families import BERT, FAMILIES, Family
from bertkit.models.config import TransformerConfig
from bertkit.nn.precision import Precision
from bertkit.objectives.distill import Terms
from bertkit.objectives.replaced_tokens import Generator
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.optimizer import MUON_MOMENTUM
from bertkit.training.trackers import Track

CONFIGS = Path(__file__).parents[1] / "configs"
"""The run files that come with bertkit."""

Beta = Annotated[float, Meta(ge=0.0, lt=1.0)]

FIRST_WINDOW_SHARE = 0.5


class Train(Settings, frozen=True):
    """How long, how fast, how often."""

    steps: Count
    """Optimizer steps."""
    batch_size: Count = 256
    """Samples a step."""
    first_batch_size: Count | None = None
    """Samples of the first step, where their number grows; `batch_size` by default."""
    batch_warmup_steps: Annotated[int, Meta(ge=0)] = 0
    """Steps in which it grows, evenly."""
    parts: Count = 1
    """Number of parts of a step's samples for distributed training (guide "More than one
    process"). Any number of processes that divides it gets the same samples, masks and dropout.
    With several processes, their number by default."""
    max_batch_tokens: Count = 8192
    """Tokens per forward pass. A larger step uses gradient accumulation: it is split into several
    batches, whose gradients add up in fp32. It changes memory and speed, and of the result only the
    last digits of the precision and the draws of dropout."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """Muon moves the matrices of the layers, and AdamW all else."""
    learning_rate: Positive = 1e-4
    adamw_learning_rate: Positive | None = None
    """Learning rate of the weights that AdamW updates next to Muon; by default
    `learning_rate`."""
    embedding_learning_rate: Positive | None = None
    """Learning rate of the token, position and segment embeddings; by default that of the other
    weights that AdamW updates."""
    schedule: Literal["linear", "wsd", "constant"] = "linear"
    """Learning rate scheduler."""
    """Learning rate scheduler."""
    warmup_steps: Annotated[int, Meta(ge=0)] = 0
    decay_steps: Annotated[int, Meta(ge=0)] = 0
    """Steps of the final decay of `wsd`; 0 is two fifths of all."""
    weight_decay: Annotated[float, Meta(ge=0.0)] = 0.01
    adamw_weight_decay: Annotated[float, Meta(ge=0.0)] | None = None
    """Weight decay of the weights that AdamW updates next to Muon; by default `weight_decay`."""
    momentum: Beta = MUON_MOMENTUM
    """How much Muon keeps at each step of the mean gradient."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """How much AdamW keeps at each step of the mean gradient and of its square."""
    eps: Positive = 1e-6
    """What AdamW adds to the root of the mean square that it divides by."""
    max_grad_norm: Annotated[float, Meta(ge=0.0)] = 1.0
    """Gradient clipping: the largest norm of the gradient; 0 is none."""
    first_window: Count | None = None
    """Tokens on each side that a token attends to at the start of a run, in every layer; by default
    as many as ever."""
    first_window_share: Annotated[float, Meta(gt=0.0, lt=1.0)] = FIRST_WINDOW_SHARE
    """Share of the steps that this lasts."""
    zero_init: bool = False
    """Whether the last matrices of attention and feed-forward networks begin at 0, so that a layer
    adds nothing at first."""
    seed: Seed = 0
    precision: Precision = "auto"
    """Mixed precision (bf16 with fp32 master weights) or fp32; fp16 is not supported. Auto uses
    bf16 if it is faster: on GPUs, AMD and ARM that have the instructions, and Intel with AMX."""
    device: str = "auto"
    compile: bool = False
    """Compile the layers (torch.compile): minutes at the start, and fewer kernels on a GPU."""
    loader_processes: Annotated[int, Meta(ge=0)] | None = None
    """Processes that make batches ahead; 0 is a thread. By default up to 4 for a GPU, else none."""
    shard_optimizer: bool = False
    """Whether each of several processes keeps the optimizer's state of its share of the weights
    alone, and writes it (ZeRO-1): less memory, and the same weights."""
    log_every: Count = 10
    label_smoothing: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.0
    """Share of each word's target that is spread over all pieces (0.1 in translation)."""
    z_loss: Annotated[float, Meta(ge=0.0)] = 0.0
    """What the square of log Z of each predicted word weighs in the loss, Z being the sum that
    softmax divides by (1e-4 in PaLM)."""
    evaluate_every: Count = 500
    evaluate_samples: Annotated[int, Meta(ge=0)] = 512
    save_every: Count = 500
    average_steps: Annotated[int, Meta(ge=0)] = 0
    """The last so many steps whose weights are averaged, evenly; the mean is what is scored and
    saved after the last."""
    keep: Count = 2
    """Checkpoints kept; the newest complete one always is."""
    track: Track = "none"
    """Experiment tracker that records the numbers of the journal."""
    peak_flops: Positive | None = None
    """FLOP/s that the device can do at most, by which MFU is said; those of known GPUs in bf16 by
    default."""

    def __post_init__(self) -> None:
        if (self.first_batch_size is None) != (self.batch_warmup_steps == 0):
            raise ValueError(
                "first_batch_size and batch_warmup_steps say together how the batch grows; set "
                "both, or neither"
            )
        if self.first_batch_size is not None and self.first_batch_size > self.batch_size:
            raise ValueError(
                f"first_batch_size = {self.first_batch_size} is more than batch_size = "
                f"{self.batch_size}, to which it grows"
            )
        if self.first_window is None and self.first_window_share != FIRST_WINDOW_SHARE:
            raise ValueError(
                "first_window_share: says how long first_window lasts, and there is none; set it, "
                "or leave both out"
            )
        if self.decay_steps and self.schedule != "wsd":
            raise ValueError(
                f'decay_steps = {self.decay_steps}: is for schedule = "wsd", and it is '
                f"{self.schedule}; leave it out"
            )
        if self.average_steps > self.steps:
            raise ValueError(
                f"average_steps = {self.average_steps}: the run has {self.steps} steps; average as "
                "many at most"
            )
        given = {
            "adamw_learning_rate": self.adamw_learning_rate is not None,
            "adamw_weight_decay": self.adamw_weight_decay is not None,
            "momentum": self.momentum != MUON_MOMENTUM,
        }
        for name in (name for name, value in given.items() if value and self.optimizer != "muon"):
            raise ValueError(f'{name}: is for optimizer = "muon", and it is adamw; leave it out')
        fewest = self.first_batch_size or self.batch_size
        if fewest < self.parts:
            raise ValueError(f"parts = {self.parts}: a step of {fewest} samples has not as many")

    def samples(self, step: int) -> tuple[int, int]:
        """Index of the step's first sample, and its batch size."""
        if self.first_batch_size is None:
            return step * self.batch_size, self.batch_size
        growth = self.batch_size - self.first_batch_size
        sizes = self.first_batch_size + growth * np.arange(step + 1) // self.batch_warmup_steps
        sizes = np.minimum(sizes, self.batch_size)
        return int(sizes[:-1].sum()), int(sizes[-1])

    def window(self, step: int) -> int | None:
        """How far the tokens of a step may see, the first step being 0; None is as far as ever."""
        begun = step < round(self.first_window_share * self.steps)
        return self.first_window if begun else None

    def samples_of(self, step: int, part: int) -> tuple[int, int]:
        """Index of the first sample of a part of a step, and how many it has."""
        first, size = self.samples(step)
        begin, end = (size * number // self.parts for number in (part, part + 1))
        return first + begin, end - begin


class Teacher(Settings, frozen=True):
    """A pretrained model whose masked words, states and attention this one learns from."""

    model: str
    """Model directory of the teacher; it has a masked-LM head and the corpus's vocabulary."""
    start: bool = False
    """Whether this model begins with the teacher's embedding, head and layers, evenly taken."""
    follow: tuple[int, ...] = ()
    """For each layer the teacher's that it is to be like, from 1; evenly by default."""


class PretrainConfig(Settings, frozen=True):
    """A complete run file."""

    model: TransformerConfig
    train: Train
    sampling: Sampling = Sampling()
    masking: Masking = Masking()
    teacher: Teacher | None = None
    terms: Terms = Terms()
    """What is learned from a teacher."""
    generator: Generator | None = None
    """With one the model learns to find what it has replaced (ELECTRA), and no masked words."""
    decoder: TransformerConfig | None = None
    """Decoder settings of families that translate; others are those of `model`."""
    objective: Literal["masked", "next", "translate", Damage] = "masked"
    """What is predicted: masked words; the word that comes next, by a causal model (GPT); or the
    next word of a text, by a decoder that attends to another: to its translation, or to running
    text from which spans (T5), spans and order (infill, BART), a stretch (mass) or the end (prefix)
    were taken."""
    corruption: Corruption = Corruption()
    """What is taken from such a text."""
    family: str = "bert"
    """Whose folder the model is saved as, by its `model_type`."""

    def __post_init__(self) -> None:
        if self.generator is not None and self.teacher is not None:
            raise ValueError("generator and teacher: a model learns from one of them")
        self._check_objective()
        other = "generator" if self.generator else "teacher" if self.teacher else None
        for name, what in (("z_loss", "z-loss"), ("label_smoothing", "label smoothing")):
            value = getattr(self.train, name)
            if value and other:
                raise ValueError(
                    f"train.{name} = {value:g}: a model that learns from a generator or a teacher "
                    f"has no {what}; leave it out"
                )
        if self.teacher is None and self.terms != Terms():
            raise ValueError(
                "terms: say what is learned from a teacher, and there is none; set teacher.model, "
                "or leave them out"
            )
        if self.train.compile and self.model.recurrent is not None:
            raise ValueError(
                "train.compile: a model made of LSTMs has no layers to compile; leave it out"
            )
        begun = self.teacher is not None and self.teacher.start
        if self.train.zero_init and (begun or self.model.recurrent is not None):
            raise ValueError(
                "train.zero_init: a model that begins as its teacher, or is made of LSTMs, has no "
                "matrices to begin at 0; leave it out"
            )
        alone = self.teacher is None and self.decoder is None and self.model.recurrent is None
        if self.train.first_window is not None and not alone:
            raise ValueError(
                f"train.first_window = {self.train.first_window}: is for a model that learns "
                "without a teacher, and is one stack of attention; leave it out"
            )
        if other and self.sampling.pairs != "none":
            raise ValueError(
                f"sampling.pairs = {self.sampling.pairs!r}: a model that learns from a {other} "
                'learns from no pairs; set it to "none"'
            )
        if self.sampling.pairs != "none" and self.model.token_types < 2:
            raise ValueError(
                f"model.token_types = {self.model.token_types} cannot tell sentence A from B; "
                'set it to 2, or sampling.pairs to "none"'
            )
        for name in ("length", "first_length"):
            length = getattr(self.sampling, name)
            if length is not None and length > self.model.max_positions:
                raise ValueError(
                    f"sampling.{name} = {length} is longer than the model's positions "
                    f"(model.max_positions = {self.model.max_positions})"
                )

    def _check_objective(self) -> None:
        written = ("translate", *get_args(Damage))
        if (self.decoder is not None) != (self.objective in written):
            raise ValueError(
                f"objective = {self.objective!r}: {', '.join(written)} are for families with an "
                "encoder and a decoder (marian, t5, bart), and they learn by nothing else"
            )
        if self.objective not in get_args(Damage) and self.corruption != Corruption():
            raise ValueError(f"corruption: objective = {self.objective!r} has none; leave it out")
        causal = self.model.attention.causal
        if self.decoder is None and causal != (self.objective == "next"):
            fits = "next" if causal else "masked"
            raise ValueError(
                f"objective = {self.objective!r}: a model whose tokens see "
                f"{'those before them alone' if causal else 'all others'} "
                f'(model.attention.causal) learns by "{fits}"'
            )
        if self.objective == "masked":
            return
        usual = plain(Masking())
        for name, value in plain(self.masking).items():
            if value != usual[name]:
                raise ValueError(
                    f"masking.{name}: objective = {self.objective!r} masks no words; leave it out"
                )
        if self.generator is not None or self.teacher is not None:
            raise ValueError("generator, teacher: next words are learned without; leave them out")
        if self.sampling.first_length is not None and self.decoder is not None:
            raise ValueError("sampling.first_length: pairs are as long as they are; leave it out")
        if self.sampling.pairs != "none":
            raise ValueError(
                f"sampling.pairs = {self.sampling.pairs!r}: next words are learned from running "
                'text; set it to "none"'
            )


FREE = (
    "loader_processes",
    "shard_optimizer",
    "log_every",
    "evaluate_every",
    "save_every",
    "keep",
    "track",
    "peak_flops",
    "max_batch_tokens",
)
"""Settings of `train` that may differ when a run is resumed."""


def read_run_file(path: str | Path) -> dict[str, Any]:
    """Read a run file, or the run file of bertkit with a bare name, as plain data.

    Raises:
        ConfigError: If it is missing or malformed.
    """
    return read_toml_by_name(path, CONFIGS)


def read_config(data: Mapping[str, Any], tokenizer: Tokenizer) -> PretrainConfig:
    """Return the settings of a run, with the vocabulary size of the tokenizer by default.

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
            f"model.vocab: {config.model.vocab} rows cannot hold the tokenizer's "
            f"{tokenizer.vocab_size} pieces; leave it out"
        )
    return config


def complete(data: Mapping[str, Any], *, vocab: int, pad: int) -> PretrainConfig:
    """Return the settings of a run, with the defaults of its family and its vocabulary.

    Args:
        data: Content of the run file.
        vocab: Size of the vocabulary.
        pad: Id of the padding token.

    Raises:
        ConfigError: If a setting is invalid or no model of the family can have its value.
    """
    family = _family(data)
    name = family.name
    if isinstance(data.get("model"), Mapping):
        model = data["model"]
        known = {**family.usual, "vocab": vocab}
        if "pad" in family.roles:
            known["pad_id"] = pad
        if family.decoder is not None:
            usual = {**family.decoder.usual, **{n: known[n] for n in ("vocab", "pad_id")}}
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
        data = {**data, "model": merged(known, model)}
    config = decode(PretrainConfig, data)
    family.write_config(config.model, config.decoder)
    if frozenset(heads_of(config)) not in family.architectures:
        if config.generator is not None:
            raise ConfigError(
                f"generator: a folder of {name} cannot hold the head that learns from one; choose "
                'family = "electra", or leave it out'
            )
        raise ConfigError(
            f"sampling.pairs = {config.sampling.pairs!r}: a folder of {name} cannot hold the head "
            "that learns it; choose another, or none"
        )
    return config


def _family(data: Mapping[str, Any]) -> Family:
    name = data.get("family", BERT.name)
    if name not in FAMILIES:
        raise ConfigError(f"family: no family {name!r}; {did_you_mean(str(name), FAMILIES)}")
    return FAMILIES[name]


def heads_of(config: PretrainConfig) -> tuple[str, ...]:
    """The heads that a run teaches."""
    if config.objective != "masked":
        return ("lm",)
    if config.generator is not None:
        return ("rtd",)
    return ("mlm",) if config.sampling.pairs == "none" else ("mlm", config.sampling.pairs)
