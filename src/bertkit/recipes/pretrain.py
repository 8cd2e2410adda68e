"""Pretrain a model from a prepared corpus: the whole run, top to bottom."""

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
from bertkit.console import say
from bertkit.engine.packed_linear import packed
from bertkit.errors import ConfigError, DataError
from bertkit.families import FAMILIES, Family
from bertkit.models.config import TransformerConfig
from bertkit.models.flops import Flops
from bertkit.models.model import Model, build
from bertkit.nn.embedding import hold_at_zero
from bertkit.nn.initialization import begin_at_zero
from bertkit.nn.precision import resolve, resolve_device
from bertkit.objectives.distill import Distillation
from bertkit.objectives.loss import Objective
from bertkit.objectives.pretrain import masked_words_of
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
from bertkit.training.compiled import compile_blocks
from bertkit.training.distributed import joined
from bertkit.training.master_weights import Masters
from bertkit.training.run import Resume, Run
from bertkit.training.state import State
from bertkit.training.teacher import begin_as, check_length
from bertkit.training.trackers import check_tracker


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

    Processes that torchrun started train together.

    Args:
        settings: Settings of a run file: a mapping, a path, or the name of a run file of bertkit.
        corpus: Corpus directory or URL.
        out: Run directory. It is a model directory that `bertkit.load` and transformers load, with
            checkpoints, a journal and a loss curve.
        resume: Whether to resume the run; "auto" starts it if there is no checkpoint.
        start_from: Model to continue; its shape must be the shape in `settings`. Default: newly
            initialized weights.

    Returns:
        The held-out scores after the last step, in the first process.

    Raises:
        ConfigError, DataError, CheckpointError: If the input cannot be used. Most checks run before
            training.
        TrainingError: If training fails.
    """
    if not isinstance(settings, Mapping):
        settings = read_run_file(settings)
    if other := PRETRAININGS.get(str(settings.get("family"))):
        return other.run(settings, corpus=corpus, out=out, resume=resume)
    with joined() as ranks:
        run = Run(Path(out), resume=resume, ranks=ranks)
        return _pretrain(run, settings, corpus, start_from)


def _pretrain(
    run: Run, settings: Mapping[str, Any], corpus: Path | str, start_from: Loaded | None
) -> dict[str, float]:
    text = config_class(settings).open_text(corpus)
    tokenizer = text.tokenizer()
    if start_from is not None:
        _same_vocabulary(tokenizer, corpus, start_from)
    config = read_config(with_parts(settings, run), tokenizer)
    train = config.train
    device = resolve_device(train.device, "train.device")
    dtype = resolve(train.precision, device)
    # Only Transformers have attention dropout.
    warn(train, attention_dropout=getattr(config.model, "attention_dropout", 0.0), device=device)
    teacher = _teacher(config, corpus, tokenizer)
    # The directory of a model may contain another model when the run is resumed.
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
    folder = _Folder(run, learner, tokenizer, start_from, FAMILIES[config.family])
    folder.begin()
    if start == 0:
        say(
            f"{sum(w.numel() for w in state.masters.weights.values()):,} parameters, "
            f"{'fp32' if dtype == torch.float32 else 'bf16'}, "
            f"{len(samples.main):,} samples an epoch, {text.tokens:,} tokens"
        )
    scores = learn(
        run,
        learner.objective,
        samples.batches,
        plan,
        train,
        folder=folder,
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


def _same_vocabulary(tokenizer: Tokenizer, corpus: Path | str, model: Loaded) -> None:
    """Raises: DataError for a model with another vocabulary than the corpus has."""
    if model.tokenizer.fingerprint != tokenizer.fingerprint:
        raise DataError(
            f"{corpus}: made with another vocabulary than {model.folder}; prepare it again with "
            f"--tokenizer {model.folder}"
        )


@dataclass(frozen=True)
class _Learner:
    """A model that learns, and by what it is judged on held-out text."""

    model: Model
    """With what only the objective needs, such as a generator."""
    published: Model
    """What the run's folder is to hold: the same weights under the heads that it teaches."""
    objective: Objective
    judged: Model
    judge: Objective
    generator: Model | None


def _learner(
    config: PretrainConfig,
    teacher: Loaded | None,
    start_from: Loaded | None,
    device: str,
    dtype: torch.dtype,
) -> _Learner:
    """Raises: ConfigError for a student that cannot follow its teacher, or begin as it."""
    heads = config.heads
    model = (
        build(config.model, heads, decoder=config.decoder)
        if start_from is None
        else start_from.model
    )
    if FAMILIES[config.family].zero_pad:
        hold_at_zero(model.encoder.embedding.tokens, config.model.pad_id)
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
            raise ConfigError("train.zero_init: the model starts from another; leave it out")
        begin_at_zero(model)
    if teacher is not None:
        objective = _taught_by(teacher.model, model, config, device, dtype)
        model = objective.learner
    model.to(device)
    kept = {head: model.heads[head] for head in heads}
    published = Model(model.encoder, kept, model.decoder)
    if generator is not None:
        return _Learner(model, published, objective, model, objective, generator)
    return _Learner(model, published, objective, published, masked_words, None)


def _teacher(config: PretrainConfig, corpus: Path | str, tokenizer: Tokenizer) -> Loaded | None:
    """Raises: CheckpointError, ConfigError or DataError for one that cannot teach this corpus."""
    if config.teacher is None:
        return None
    place = config.teacher.model
    teacher = load(place)
    if "mlm" not in teacher.model.heads:
        raise ConfigError(f"teacher.model: {place} has no masked-LM head to learn from")
    _same_vocabulary(tokenizer, corpus, teacher)
    for name in ("length", "first_length"):
        check_length(teacher.model, getattr(config.sampling, name) or 0, f"sampling.{name}")
    return teacher


def _taught_by(
    teacher: Model, model: Model, config: PretrainConfig, device: str, dtype: torch.dtype
) -> Distillation:
    """The objective of a model with a teacher, whose weights it may begin with.

    Raises: ConfigError for a student that cannot follow its teacher, or begin as it.
    """
    assert config.teacher is not None
    if config.teacher.start:
        begin_as(model, teacher)
    return Distillation(
        masked_words_of,
        teacher=packed(teacher.to(device), dtype),
        student=model,
        head="mlm",
        terms=config.terms,
        layers=config.teacher.follow,
        single_label=True,
    )


@dataclass(frozen=True)
class _Folder:
    """The model folder that a run makes; it pools vectors as the one does that it starts from."""

    run: Run
    learner: _Learner
    tokenizer: Tokenizer
    start_from: Loaded | None
    family: Family

    def begin(self) -> None:
        """Write it, or mend that of a run that goes on, whatever has happened to its files."""
        if not self.run.ranks.first:
            return
        if self.run.checkpoint is None:
            self.write()
        else:
            with self.run.mending():
                self.write()
                self.show(self.run.checkpoint, {})

    def write(self, learned: Mapping[str, Tensor] = MappingProxyType({})) -> None:
        """Write the whole folder, without what only the objective needs; a generator's inside.

        Weights that are not in `learned` are written as they are.
        """
        masters, family = self.run.state.masters, self.family
        pooling = length = generation = None
        if self.start_from is not None and "lm" in self.learner.published.heads:
            generation = self.start_from.generation_settings
        if self.start_from is not None and self.start_from.pooling is not None:
            pooling, length = self.start_from.pooling, self.start_from.length
        all_of_them = {**masters.weights, **learned}
        by_id = {id(weight): all_of_them[n] for n, weight in masters.model.named_parameters()}

        def weights(model: Model) -> dict[str, Tensor]:
            return {name: by_id[id(weight)] for name, weight in model.named_parameters()}

        out, model, generator = self.run.out, self.learner.published, self.learner.generator
        save(
            out,
            model,
            self.tokenizer,
            family,
            weights=weights(model),
            pooling=pooling,
            length=length,
            generation=generation,
        )
        if generator is not None:
            save(
                out / GENERATOR_HEAD, generator, self.tokenizer, family, weights=weights(generator)
            )

    def show(self, checkpoint: Path, weights: Mapping[str, Tensor]) -> None:
        """Make a checkpoint's weights those of the folder."""
        if len(self.learner.model.heads) == len(self.learner.published.heads):
            self.run.publish(checkpoint)
        else:
            self.write(weights)


def _flops(config: PretrainConfig, model: Model) -> Flops | None:
    """Return the counter of a step's FLOPs; None if the formula does not cover the model, or the
    step computes a second model."""
    alone = config.teacher is None and config.generator is None
    return Flops(model) if alone and isinstance(config.model, TransformerConfig) else None


def _held_out(
    run: Run, learner: _Learner, tokenizer: Tokenizer, batches: list[Batch], every: int
) -> HeldOut:
    model = learner.judged
    writes = "lm" in model.heads and model.decoder is None
    written = partial(PIPELINES["generate"].sample, model, tokenizer) if writes else None
    return HeldOut(run, model, learner.judge, batches, every, written)
