"""Pretraining of a model on a prepared corpus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from bertkit.batch import Batch
from bertkit.checkpoint.directory import Loaded, load, save
from bertkit.config import document_keywords
from bertkit.console import say
from bertkit.engine.packed_linear import packed
from bertkit.errors import ConfigError, DataError
from bertkit.families import FAMILIES, Family
from bertkit.models.config import TransformerConfig
from bertkit.models.flops import Flops
from bertkit.models.model import Model, build
from bertkit.nn.embedding import freeze_at_zero
from bertkit.nn.initialization import zero_init_residuals
from bertkit.nn.precision import resolve, resolve_device
from bertkit.objectives.distill import Distillation
from bertkit.objectives.loss import Objective
from bertkit.objectives.pretrain import compute_mlm_loss
from bertkit.objectives.pretrain import pretrain as masked_words
from bertkit.objectives.replaced_tokens import GENERATOR_HEAD, replaced_tokens, with_generator
from bertkit.pipelines import PIPELINES
from bertkit.recipes.model_sizes import PRETRAININGS
from bertkit.recipes.pretrain_card import write_pretraining_card
from bertkit.recipes.pretrain_config import PretrainConfig, config_class, read_config
from bertkit.recipes.pretrain_samples import RunSamples
from bertkit.recipes.pretrain_steps import (
    HeldOut,
    begin,
    check_record,
    learn,
    optimization,
    tail_average,
    warn,
    with_parts,
)
from bertkit.recipes.run_file import read_run_file
from bertkit.synonyms import check_keywords
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.checkpoints import State
from bertkit.training.compiled import compile_blocks
from bertkit.training.distributed import connect
from bertkit.training.master_weights import Masters
from bertkit.training.run import Resume, Run
from bertkit.training.teacher import check_length, copy_layers
from bertkit.training.trackers import check_tracker


@document_keywords(PretrainConfig, title="Settings (a.b = 1 is {'a': {'b': 1}})")
@check_keywords
def pretrain(
    settings: Mapping[str, Any] | Path | str,
    *,
    corpus: Path | str,
    out: Path | str,
    resume: Resume = False,
    start_from: Loaded | None = None,
) -> dict[str, float]:
    """Pretrain a model on a corpus.

    If torchrun starts several processes, they train one model together (data parallelism).

    Args:
        settings: The settings listed below, as a mapping, the path of a run file, or the name of a
            built-in run file. `model` also contains the settings of the architecture, such as
            the fields of `TransformerConfig`.
        corpus: Corpus directory or URL.
        out: Run directory. It contains the model, which `bertkit.load` and transformers can load,
            and checkpoints, a journal and a loss curve.
        resume: Whether to resume the run. "auto" starts the run if `out` does not contain one.
        start_from: Model whose pretraining is continued. Its configuration must match `settings`.
            By default, the weights are newly initialized.

    Returns:
        The scores on held-out text after the last step. In a distributed run, only the first
        process returns scores.

    Raises:
        ConfigError: If a setting is not valid.
        DataError: If the corpus is not valid or its vocabulary differs from the model's.
        CheckpointError: If a model or checkpoint cannot be loaded.
        TrainingError: If training fails.
    """
    if not isinstance(settings, Mapping):
        settings = read_run_file(settings)
    if extension := PRETRAININGS.get(str(settings.get("family"))):
        return extension.run(settings, corpus=corpus, out=out, resume=resume)
    with connect() as ranks:
        run = Run(Path(out), resume=resume, ranks=ranks)
        return _pretrain(run, settings, corpus, start_from)


def _pretrain(
    run: Run, settings: Mapping[str, Any], corpus: Path | str, start_from: Loaded | None
) -> dict[str, float]:
    text = config_class(settings).open_text(corpus)
    tokenizer = text.tokenizer()
    if start_from is not None:
        _check_vocabulary(tokenizer, corpus, start_from)
    config = read_config(with_parts(settings, run), tokenizer)
    train = config.train
    device = resolve_device(train.device, "train.device")
    dtype = resolve(train.precision, device)
    # Only Transformers have attention dropout.
    warn(train, attention_dropout=getattr(config.model, "attention_dropout", 0.0), device=device)
    teacher = _teacher(config, corpus, tokenizer)
    # The hashes of the weights are recorded, because a model directory may change before the run
    # is resumed.
    models = {"teacher": teacher, "start": start_from}
    weights = {name: model.weights_hash() for name, model in models.items() if model is not None}
    origin = {} if start_from is None else {"start": str(start_from.folder.resolve())}
    check_record(run, config, text, tokenizer, {"weights": weights, **origin})
    samples = RunSamples(text, tokenizer, config, run.ranks)
    check_tracker(train.track, "train.track")

    torch.manual_seed(train.seed)
    learner = _learner(config, teacher, start_from, device, dtype)
    masters = Masters(learner.model, dtype)
    if train.compile:
        compile_blocks(learner.model)
    optimizer, plan = optimization(train, masters, run.ranks)
    state = State(masters, optimizer, FAMILIES[config.family], tail_average(train, masters))
    start = begin(run, state, config, train.steps)
    directory = _ModelDirectory(run, learner, tokenizer, start_from, FAMILIES[config.family])
    directory.begin()
    if start == 0:
        say(
            f"{sum(w.numel() for w in state.masters.weights.values()):,} parameters, "
            f"{'fp32' if dtype == torch.float32 else 'bf16'}, "
            f"{len(samples.main):,} samples per epoch, {text.tokens:,} tokens"
        )
    scores = learn(
        run,
        learner.objective,
        samples.batches,
        plan,
        train,
        show=directory.show,
        held_out=_held_out(run, learner, tokenizer, samples.evaluation(), train.evaluate_every),
        start=start,
        flops=_flops(config, learner.model),
    )
    if run.ranks.first:
        write_pretraining_card(
            run.out,
            config,
            base=None if start_from is None else str(start_from.folder),
            corpus=text.place,
            tokens=text.tokens,
            mask="".join(tokenizer.pieces([tokenizer.mask])) if "mlm" in config.heads else "",
            scores=scores,
        )
    return scores


def _check_vocabulary(tokenizer: Tokenizer, corpus: Path | str, model: Loaded) -> None:
    """Raise DataError if the vocabulary of a model differs from the vocabulary of the corpus."""
    if model.tokenizer.fingerprint != tokenizer.fingerprint:
        raise DataError(
            f"{corpus}: its vocabulary differs from the vocabulary of {model.folder}; run bertkit "
            f"prepare with --tokenizer {model.folder}"
        )


@dataclass(frozen=True)
class _Learner:
    """Model to train, its objective, and the model and objective for evaluation."""

    model: Model
    """Model with all trained weights, including parts that only the objective needs."""
    published: Model
    """Model that is saved in the run directory. It shares its weights with `model`."""
    objective: Objective
    eval_model: Model
    eval_objective: Objective
    generator: Model | None
    """Generator of replaced token detection (ELECTRA)."""


def _learner(
    config: PretrainConfig,
    teacher: Loaded | None,
    start_from: Loaded | None,
    device: str,
    dtype: torch.dtype,
) -> _Learner:
    """Build the model and its objective.

    Raises:
        ConfigError: If the sizes of the model and its teacher do not match, or `zero_init` is set
            although the run starts from a model.
    """
    heads = config.heads
    model = (
        build(config.model, heads, decoder=config.decoder)
        if start_from is None
        else start_from.model
    )
    if FAMILIES[config.family].zero_pad:
        freeze_at_zero(model.encoder.embedding.tokens, config.model.pad_id)
    train = config.train
    objective: Objective = partial(
        masked_words, smoothing=train.label_smoothing, z_loss=train.z_loss
    )
    generator = None
    if config.generator is not None:
        model, generator = with_generator(model, config.generator)
        objective = replaced_tokens(config.generator.weight)
    if train.zero_init:
        if start_from is not None:
            raise ConfigError("train.zero_init requires newly initialized weights; remove it")
        zero_init_residuals(model)
    if teacher is not None:
        objective = _distillation(teacher.model, model, config, device, dtype)
        model = objective.learner
    model.to(device)
    published = Model(model.encoder, {head: model.heads[head] for head in heads}, model.decoder)
    if generator is not None:
        return _Learner(model, published, objective, model, objective, generator)
    return _Learner(model, published, objective, published, masked_words, None)


def _teacher(config: PretrainConfig, corpus: Path | str, tokenizer: Tokenizer) -> Loaded | None:
    """Load the teacher, if the run has one.

    Raises:
        CheckpointError: If the teacher cannot be loaded.
        ConfigError: If the teacher has no masked-LM head, or does not support the length of the
            samples.
        DataError: If the vocabulary of the teacher differs from the vocabulary of the corpus.
    """
    if config.teacher is None:
        return None
    teacher = load(config.teacher.model)
    if "mlm" not in teacher.model.heads:
        raise ConfigError(
            f"teacher.model: {config.teacher.model} has no masked-LM head; use another teacher"
        )
    _check_vocabulary(tokenizer, corpus, teacher)
    for name in ("length", "first_length"):
        check_length(teacher.model, getattr(config.sampling, name) or 0, f"sampling.{name}")
    return teacher


def _distillation(
    teacher: Model, model: Model, config: PretrainConfig, device: str, dtype: torch.dtype
) -> Distillation:
    """Return the distillation objective.

    If `teacher.start` is set, the student is first initialized from the teacher.

    Raises:
        ConfigError: If the sizes of the student and the teacher do not match.
    """
    assert config.teacher is not None
    if config.teacher.start:
        copy_layers(model, teacher)
    return Distillation(
        compute_mlm_loss,
        teacher=packed(teacher.to(device), dtype),
        student=model,
        head="mlm",
        terms=config.terms,
        layers=config.teacher.follow,
        single_label=True,
    )


@dataclass(frozen=True)
class _ModelDirectory:
    """Writer of the model in the run directory.

    If the run continues the pretraining of a model, the pooling, length and generation settings of
    that model are also written.
    """

    run: Run
    learner: _Learner
    tokenizer: Tokenizer
    start_from: Loaded | None
    family: Family

    def begin(self) -> None:
        """Write the model of a new run, or repair the files of a resumed run.

        Only the first process writes.
        """
        if not self.run.ranks.first:
            return
        if self.run.checkpoint is None:
            self.write()
        else:
            with self.run.repairing():
                self.write()
                self.show(self.run.checkpoint, {})

    def write(self, weights: Mapping[str, Tensor] = MappingProxyType({})) -> None:
        """Write the published model. If there is a generator, write it to a subdirectory.

        Args:
            weights: Weights to write instead of the current weights, by name.
        """
        masters, family = self.run.state.masters, self.family
        pooling = length = generation = None
        if self.start_from is not None and "lm" in self.learner.published.heads:
            generation = self.start_from.generation_settings
        if self.start_from is not None and self.start_from.pooling is not None:
            pooling, length = self.start_from.pooling, self.start_from.length
        values = {**masters.weights, **weights}
        by_id = {id(weight): values[n] for n, weight in masters.model.named_parameters()}

        def weights_of(model: Model) -> dict[str, Tensor]:
            return {name: by_id[id(weight)] for name, weight in model.named_parameters()}

        out, model, generator = self.run.out, self.learner.published, self.learner.generator
        save(
            out,
            model,
            self.tokenizer,
            family,
            weights=weights_of(model),
            pooling=pooling,
            length=length,
            generation=generation,
        )
        if generator is not None:
            out /= GENERATOR_HEAD
            save(out, generator, self.tokenizer, family, weights=weights_of(generator))

    def show(self, checkpoint: Path, weights: Mapping[str, Tensor]) -> None:
        """Write the weights of a checkpoint to the model files of the run directory.

        Args:
            checkpoint: Checkpoint directory.
            weights: Weights of the checkpoint, by name.
        """
        if len(self.learner.model.heads) == len(self.learner.published.heads):
            self.run.publish(checkpoint)
        else:
            self.write(weights)


def _flops(config: PretrainConfig, model: Model) -> Flops | None:
    """Return a function that counts the FLOPs of a batch, or None if they cannot be counted.

    They can be counted only for Transformers, and only without a teacher or generator.
    """
    is_single = config.teacher is None and config.generator is None
    return Flops(model) if is_single and isinstance(config.model, TransformerConfig) else None


def _held_out(
    run: Run, learner: _Learner, tokenizer: Tokenizer, batches: list[Batch], every: int
) -> HeldOut:
    model = learner.eval_model
    is_generative = "lm" in model.heads and model.decoder is None
    sample = partial(PIPELINES["generate"].sample, model, tokenizer) if is_generative else None
    return HeldOut(run, model, learner.eval_objective, batches, every, sample)
