"""Fine-tuning on labeled examples of any task, with selection of the best epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from msgspec import Meta

from bertkit import tasks
from bertkit.batch import Batch, by_length
from bertkit.checkpoint import hub
from bertkit.checkpoint.adapter import base_of
from bertkit.checkpoint.directory import Loaded
from bertkit.checkpoint.pooling_files import read_pooling
from bertkit.checkpoint.run_directory import SCORES
from bertkit.config import (
    Count,
    Positive,
    Rate,
    Seed,
    Settings,
    document_keywords,
    plain,
    with_keywords,
)
from bertkit.console import say
from bertkit.data.labels import join_labels
from bertkit.data.shuffling import Permutation
from bertkit.errors import ConfigError, DataError
from bertkit.models.lora import LORA_RATE, LoRA, add_lora, freeze, rate_factor, unfreeze
from bertkit.models.model import Model
from bertkit.nn.precision import Precision, resolve, resolve_device
from bertkit.objectives.auxiliary_lm import WithAuxiliaryLM
from bertkit.objectives.loss import Objective
from bertkit.recipes.data_checks import check_rows
from bertkit.recipes.finetune_report import finish, finished
from bertkit.synonyms import check_keywords
from bertkit.tasks.capabilities import NeedsReference, UsesDecoder, UsesPooling
from bertkit.tasks.contrastive import training_units
from bertkit.tasks.examples import Examples, RowsLike, check_examples
from bertkit.tasks.held_out import take_rows
from bertkit.tasks.task import Feature, Reading, Task, is_builtin, make_batch, policy_of_files
from bertkit.training.checkpoints import State
from bertkit.training.distributed import Ranks, connect
from bertkit.training.epochs import Epochs, check_metric, vocab_resized
from bertkit.training.loop import steps
from bertkit.training.master_weights import Masters, find_used_rows
from bertkit.training.optimizer import CRF_RATE, adamw
from bertkit.training.run import Resume, Run
from bertkit.training.schedule import schedule
from bertkit.training.task_model import load_for_finetuning
from bertkit.training.teacher import TaskTeacher
from bertkit.training.trackers import Track, check_tracker, tracked


class Finetune(Settings, frozen=True):
    """Settings of fine-tuning. The defaults suit most tasks of the BERT paper (appendix A.3)."""

    epochs: Count = 3
    """Number of passes over the training examples."""
    batch_size: Count = 32
    """Number of examples per step. In tasks that split long texts, each window is an example."""
    learning_rate: Positive | None = None
    """Peak learning rate. The default depends on the model's hidden size and, in most tasks, is 10
    times higher with LoRA."""
    warmup: Rate = 0.1
    """Fraction of the steps during which the learning rate increases linearly to its peak."""
    weight_decay: Annotated[float, Meta(ge=0.0)] = 0.01
    """Weight decay of matrices. Biases and normalization weights are not decayed."""
    layer_decay: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    """Layer-wise learning rate decay: the learning rate of a layer is the rate of the layer above
    it, multiplied by this factor. 1 means no decay."""
    frozen_layers: Annotated[int, Meta(ge=0)] = 0
    """Number of frozen layers, counted from the bottom. The embeddings are then also frozen."""
    gradual_unfreezing: bool = False
    """Whether to train only the heads in the first epoch, and to unfreeze one more layer in each
    following epoch, from the top down and the embeddings last (Howard & Ruder 2018)."""
    random_weights: bool = False
    """Whether to start from random weights instead of the model's weights, as a baseline."""
    lora: LoRA = LoRA()
    features: str | None = None
    """Hidden states of the model on which a new BiLSTM is trained. The model itself is frozen. For
    one layer, use embeddings, 3, or -1 (the last layer). For several layers, use sum:, mix:
    (weighted sum with trained weights) or concat:, followed by -4 (the last four layers), all, or 0
    (all layers and the embeddings), such as concat:-4."""
    max_grad_norm: Positive = 1.0
    """Maximum norm of the gradient (gradient clipping)."""
    metric: str | None = None
    """Score on dev by which the best epoch is selected, such as f1. Default: the task's main
    score."""
    patience: Count | None = None
    """Number of epochs without a better dev score after which training stops (early stopping)."""
    seed: Seed = 0
    """Random seed for the weights of the new head, the order of examples, and dropout."""
    max_length: Count | None = None
    """Maximum sequence length in tokens. Default: the model's maximum length."""
    max_batch_tokens: Count = 8192
    """Maximum number of tokens per forward pass. A step with more tokens takes several passes, and
    their gradients are summed in fp32 (gradient accumulation)."""
    precision: Precision = "auto"
    """Mixed precision (bf16) or fp32; fp16 is not supported. Auto uses bf16 if it is faster."""
    device: str = "auto"
    """Device, such as cpu or cuda:1; auto uses a GPU if one is available."""
    lm_weight: Annotated[float, Meta(ge=0.0)] | None = None
    """Weight of the causal LM loss that is added to the task loss when a causal model is trained on
    labels or choices (λ in Radford et al. 2018, equation 5). Default: 0.5; 0 disables it."""
    save_minutes: Annotated[float, Meta(ge=0.0)] = 5.0
    """Number of minutes between the checkpoints from which --resume continues."""
    track: Track = "none"
    """Experiment tracker that records losses and scores."""

    def __post_init__(self) -> None:
        is_changed = self.frozen_layers or self.gradual_unfreezing or self.random_weights
        if self.features is not None and (is_changed or self.layer_decay < 1 or self.lora.rank):
            names = "frozen_layers, gradual_unfreezing, layer_decay, lora, or random_weights"
            raise ValueError(f"features cannot be combined with {names}; remove these settings")
        if not self.lora.rank and self.lora != LoRA():
            raise ValueError("lora.rank is 0, so the other settings of lora have no effect; set it")


def default_learning_rate(task: Task[Any, Any], hidden: int, lora_rank: int = 0) -> float:
    """Return the default peak learning rate.

    For hidden sizes of 768 and more, the rate is 5e-5, as in the paper. For smaller hidden sizes,
    it is higher, up to 3e-4. Tasks that compare the texts of a step with each other always use
    5e-5, because a higher rate destroys similarities that the model has learned. With LoRA, the
    rate is ten times higher, except in these tasks and in generative tasks, in which a higher rate
    was not tested.

    Args:
        task: The task.
        hidden: Hidden size of the model.
        lora_rank: Rank of the LoRA adapters, or 0 if the model has no adapters.

    Source:
        Devlin et al. 2019, appendix A.3; Turc et al. 2019 for small models, with rates up to 3e-4;
        measurements in notes/2026-11.md. Yang et al. 2022 also scale Adam's rate with the width.
    """
    if task.batching == "step":
        return 5e-5
    factor = rate_factor(lora_rank, head=task.head, batching=task.batching)
    return round(min(3e-4, 5e-5 * max(1.0, 768 / hidden)) * factor, 12)


FREE = ("save_minutes", "max_batch_tokens", "track")
"""Settings that may change when a run is resumed."""


@document_keywords(Finetune, Reading)
@check_keywords
def finetune(
    task: str | type[Task[Any, Any]],
    model: str | Path | Loaded,
    *,
    train: RowsLike,
    dev: RowsLike | float,
    test: RowsLike | float | None = None,
    out: Path | str,
    settings: Finetune | Mapping[str, Any] | None = None,
    options: Settings | Mapping[str, Any] | None = None,
    reading: Reading | Mapping[str, Any] | None = None,
    resume: Resume = False,
    teacher: TaskTeacher | None = None,
    on_epoch: Callable[[int, Mapping[str, float]], object] | None = None,
    **keywords: Any,
) -> dict[str, float]:
    """Fine-tune a model for a task, and write the model of the best epoch.

    If torchrun started several processes, they train one model (data parallelism). Only the first
    process scores it and returns the scores.

    Args:
        task: Name of a task, a task of your own as module:Class, or a class.
        model: Model directory, hub id, or loaded model. A loaded model is not changed.
        train: Labeled examples: a file, a DataFrame or other rows, or examples of the task.
        dev: Examples on which every epoch is scored, to select the best epoch, or the fraction of
            train to hold out, such as 0.1.
        test: Examples on which only the selected epoch is scored, once, or the fraction of train to
            hold out.
        out: Output directory. It must not exist, unless the run is resumed.
        settings: Training settings. They can also be passed as keywords, such as `epochs=2`.
        options: Options of the task. They can also be passed as keywords, such as
            `class_weights="balanced"`. `bertkit finetune TASK --help` describes them.
        reading: Columns and format of files. They can also be passed as keywords, such as
            `text_column="review"`.
        resume: Whether to resume an interrupted run. The final weights are the same as without an
            interruption. "auto" resumes the run if it exists, and otherwise starts it.
        teacher: Teacher model for distillation. The model learns from its outputs and hidden
            states.
        on_epoch: Function that is called after each epoch, with the epoch's number and dev scores.
        **keywords: Settings, options and columns, as listed below.

    Returns:
        The scores of the best epoch on dev and on the test set, if there is one. The name of a
        score starts with `test_` if the score was computed on the test set. It starts with `best_`
        if an option, such as a threshold, was optimized on dev.

    Raises:
        ConfigError: If a setting is invalid or `out` exists. It is raised before training starts.
        DataError: If an example is invalid. It is raised before training starts.

    Tasks and their options:
        answer: window_overlap, question_tokens, answer_tokens, best, no_answer,
            null_threshold
        chat: no options
        choose: no options
        classify: pairs, regression, multi_label, threshold, tune_threshold, thresholds,
            calibrate, temperature, both_orders, contrastive, class_weights
        dpo: beta
        respond: turns, negatives
        seq2seq: prompt
        similarity: loss, scale, margin, highest, pooling, dense, activation,
            dimensions, prompt, pair_prompt
        summarize: sentences, block_trigrams
        tag: crf, scheme
    """
    kind = task if isinstance(task, type) else tasks.find(str(task))
    training, task_options, columns = with_keywords(
        "finetune", {Finetune: settings, kind.Options: options, Reading: reading}, keywords
    )
    if teacher is not None and training.lm_weight:
        raise ConfigError("lm_weight cannot be combined with a teacher; remove lm_weight")
    if training.features is not None and (teacher is not None or isinstance(model, Loaded)):
        raise ConfigError("features requires a model directory or hub id, without a teacher")
    check_tracker(training.track, "track")
    with connect() as ranks:
        run = Run(out, resume=resume, ranks=ranks)
        device = resolve_device(training.device)
        dtype = resolve(training.precision, device)
        data = take_rows(kind, train, dev, test, columns, options=task_options, seed=training.seed)
        fitted = _task(kind, model, data, task_options)
        check_metric(fitted, training.metric)
        _check_record(run, fitted, model, data, training, columns, teacher)
        if resume and (run.out / SCORES).exists():
            return finished(run)

        check_rows(fitted, data, task_options)
        learner = _learner(fitted, model, data, training, teacher, device, dtype)
        return _train(run, learner, data, training, on_epoch)


@dataclass
class _Learner:
    """A model to fine-tune, with its task, its objective and the encoded examples."""

    task: Task[Any, Any]
    loaded: Loaded
    network: Model
    dtype: torch.dtype
    objective: Objective
    features: list[Feature]
    dev_features: list[Feature]


def _learner(
    task: Task[Any, Any],
    model: str | Path | Loaded,
    data: Mapping[str, Examples],
    settings: Finetune,
    teacher: TaskTeacher | None,
    device: str,
    dtype: torch.dtype,
) -> _Learner:
    """Load the model, freeze or adapt its layers, and encode the examples.

    Raises:
        ConfigError: If no weight would be trained, or a setting does not fit the model.
    """
    torch.manual_seed(settings.seed)
    loaded, lm_weight = load_for_finetuning(
        model,
        task,
        settings.lm_weight if teacher is None else 0.0,
        features=settings.features,
        random_weights=settings.random_weights,
    )
    if isinstance(task, UsesDecoder):
        task = task.with_decoder(loaded.begin, loaded.target)
    network = loaded.model.to(device)
    loaded = replace(loaded, length=_length(settings, loaded))
    freeze(network, settings.frozen_layers)
    if settings.lora.rank:
        _add_adapters(loaded, settings)
        network.to(device)
    _check_trainable(network, task, settings)
    features, dev_features = _features(task, loaded, data["train"], data["dev"])
    objective: Objective = task.loss
    if lm_weight:
        objective = WithAuxiliaryLM(task.loss_of, head=task.head, weight=lm_weight)
    if teacher is not None:
        teacher.check(task, network)
        features = teacher.annotate(task, features, settings.max_batch_tokens)
        distillation = teacher.objective(task, network)
        objective, network = distillation, distillation.learner.to(device)
    return _Learner(task, loaded, network, dtype, objective, features, dev_features)


def _add_adapters(loaded: Loaded, settings: Finetune) -> None:
    """Add LoRA adapters to a model.

    Raises:
        ConfigError: If the model directory contains only adapters.
    """
    if loaded.base is not None:
        raise ConfigError(
            f"lora.rank: {loaded.folder} contains only LoRA adapters; use the directory of the "
            "merged model"
        )
    sizes = partial(loaded.family.sizes, config=loaded.model.config)
    if vocab_resized(loaded):
        say("LoRA adapters cannot store added tokens; only the merged model is saved")
    add_lora(loaded.model, settings.lora, sizes, frozen_layers=settings.frozen_layers)


def _check_trainable(network: Model, task: Task[Any, Any], settings: Finetune) -> None:
    """Check that at least one weight of the model is trained.

    Raises:
        ConfigError: If all weights are frozen.
    """
    parts = ("encoder.", "decoder.", f"heads.{task.head}.")
    trained = (name for name, weight in network.named_parameters() if weight.requires_grad)
    if not any(name.startswith(parts) for name in trained):
        raise ConfigError(
            f"frozen_layers = {settings.frozen_layers} leaves no trainable weights, because "
            f"{task.name} has no head weights; reduce frozen_layers"
        )


def _train(
    run: Run,
    learner: _Learner,
    data: Mapping[str, Examples],
    settings: Finetune,
    on_epoch: Callable[[int, Mapping[str, float]], object] | None,
) -> dict[str, float]:
    """Train, score each epoch on dev, and return the scores of the best epoch."""
    task, network = learner.task, learner.network
    units = training_units(task, learner.features, settings.seed)
    if (most := min(len(units), settings.batch_size)) < run.ranks.world:
        raise ConfigError(f"a step has only {most} examples; start at most {most} processes")
    per_epoch = math.ceil(len(units) / settings.batch_size)
    total = per_epoch * settings.epochs
    rate = settings.learning_rate or network.encoder.learning_rate
    rate = rate or default_learning_rate(task, network.config.hidden, settings.lora.rank)
    state = _state(settings, rate, learner)
    warmup_steps = round(settings.warmup * total)
    plan = schedule("linear", steps=total, warmup_steps=warmup_steps, decay_steps=0)
    if settings.patience is not None and settings.patience >= settings.epochs:
        say(f"warning: patience = {settings.patience} has no effect in {settings.epochs} epochs")
    start = run.begin(state, total)
    # run.json contains the learning rate as it was set, and is already written. The files that
    # are written from here on contain the rate that is used.
    run.record = {**run.record, "settings": {**run.record["settings"], "learning_rate": rate}}
    epochs = _epochs(run, learner, data["dev"], settings, start)
    units = training_units(task, learner.features, settings.seed)  # they may have references now
    groups = _groups(task, units, settings, start, run.ranks)
    if settings.gradual_unfreezing:
        groups = _unfreezing(groups, state, per_epoch, start, settings.epochs)

    with (
        run.learning("fine-tuning", start=start, discard=True),
        tracked(settings.track, run, start=start),
    ):
        for step in steps(
            state.masters,
            learner.objective,
            groups,
            state.optimizer,
            plan,
            max_grad_norm=settings.max_grad_norm,
            seed=settings.seed,
            start=start,
            ranks=run.ranks,
            stopping=lambda: run.stopping,
        ):
            run.show(step.number, f"loss {step.loss:.3f}")
            if run.ranks.first:
                run.journal.write(step.record)
            if step.number % per_epoch == 0:
                stop = False
                if run.ranks.first:
                    scores = epochs.score(step.number, step.number // per_epoch)
                    if on_epoch is not None:
                        on_epoch(step.number // per_epoch, scores)
                    stop = epochs.should_stop(settings.patience)
                if run.ranks.value_of_first(stop):
                    break
            if step.number < total and (step.stopping or run.due(settings.save_minutes)):
                run.save(step.number, keep=1)
                if step.stopping:
                    run.stop(step.number)
    return finish(run, task, epochs, data) if run.ranks.first else {}


def _epochs(run: Run, learner: _Learner, dev: Examples, settings: Finetune, start: int) -> Epochs:
    """Return the epochs of a run.

    If the task compares the model with the initial model, the outputs of the initial model are
    added to the features first.
    """
    task, max_batch_tokens = learner.task, settings.max_batch_tokens
    if isinstance(task, NeedsReference):
        learner.features, learner.dev_features = task.add_reference(
            run,
            task,
            learner.features,
            learner.dev_features,
            start=start,
            max_batch_tokens=max_batch_tokens,
        )
    return Epochs(
        run,
        task,
        learner.loaded,
        learner.features,
        dev.examples,
        learner.dev_features,
        max_batch_tokens,
        settings.metric,
    )


def _task(
    kind: type[Task[Any, Any]],
    model: str | Path | Loaded,
    data: Mapping[str, Examples],
    options: Settings,
) -> Task[Any, Any]:
    """Return the task with the labels of the training examples and the pooling of the model.

    Raises:
        DataError: If an example is invalid.
    """
    task = kind.from_examples(data["train"].examples, options)
    for rows in data.values():
        check_examples(task, rows.examples)
    if not isinstance(task, UsesPooling):
        return task
    if isinstance(model, Loaded):
        return task.with_pooling(model.pooling)
    return task.with_pooling(read_pooling(base_of(hub.resolve(model)))[0])


def _check_record(
    run: Run,
    task: Task[Any, Any],
    model: str | Path | Loaded,
    data: Mapping[str, Examples],
    settings: Finetune,
    reading: Reading,
    teacher: TaskTeacher | None,
) -> None:
    """Check that a directory to resume was created with the same settings and examples.

    The files of the examples may have been moved.

    Raises:
        ConfigError: If a setting differs.
        DataError: If the examples differ.
    """
    run.check(
        {
            "task": task.settings()["bertkit"]["task"],
            "model": str(model.folder if isinstance(model, Loaded) else model),
            **(teacher.record if teacher is not None else {}),
            "settings": plain(settings),
            "reading": plain(reading),
            "data": {name: rows.record for name, rows in data.items()},
        },
        free=(
            *(f"settings.{name}" for name in FREE),
            *(f"data.{name}.{key}" for name in data for key in ("file", "name")),
        ),
        errors={
            f"data.{name}.sha256": DataError(
                f"{name}: the examples have changed since the run {run.out} started; resume with "
                "the original examples, or start a new run"
            )
            for name in data
        },
    )


def _features(
    task: Task[Any, Any], loaded: Loaded, train: Examples, dev: Examples
) -> tuple[list[Feature], list[Feature]]:
    """Encode the examples of train, with their targets, and of dev, and log truncated examples."""
    policy, length = policy_of_files(task), loaded.length
    encoded = []
    for name, data in (("train", train), ("dev", dev)):
        features = task.features(
            data.examples, loaded.tokenizer, length, long=policy, labeled=name == "train"
        )
        truncated = {f.example for f in features if f.truncated}
        if truncated and policy == "truncate":
            say(f"{name}: {len(truncated):,} examples were truncated to {length} tokens")
        encoded.append(loaded.model.encoder.precompute(features))
    learned, count = encoded[0], len(train.examples)
    labels = f"; labels: {join_labels(task.labels)}" if task.labels else ""
    sequences = f" in {len(learned):,} sequences" if len(learned) != count else ""
    say(f"{task.name}: {count:,} examples{sequences}{labels}")
    return encoded[0], encoded[1]


def _length(settings: Finetune, loaded: Loaded) -> int:
    """Return the maximum sequence length, or raise ConfigError if the model does not support it."""
    longest = loaded.model.config.max_positions
    if settings.max_length is not None and settings.max_length > longest:
        raise ConfigError(f"max_length must be at most {longest} tokens, got {settings.max_length}")
    return settings.max_length or loaded.length


def _state(settings: Finetune, rate: float, learner: _Learner) -> State:
    """Return the optimizer and the weights that it updates."""
    network = learner.network
    # A third-party task may add tokens to batches that do not occur in the features.
    ids = [feature.encoding.ids for feature in learner.features]
    rows = find_used_rows(network, ids) if is_builtin(type(learner.task)) else {}
    masters = Masters(network, learner.dtype, rows)
    optimizer = adamw(
        {name: weight for name, weight in masters.weights.items() if weight.requires_grad},
        learning_rate=rate,
        weight_decay=settings.weight_decay,
        layer_decay=settings.layer_decay,
        crf_rate=CRF_RATE / (LORA_RATE if settings.lora.rank else 1.0),
    )
    return State(masters, optimizer, learner.loaded.family)


def _unfreezing(
    groups: Iterator[list[Batch]], state: State, per_epoch: int, start: int, epochs: int
) -> Iterator[list[Batch]]:
    """Yield the batches of each step, and unfreeze one more layer at the start of each epoch."""
    model, learned = state.masters.model, tuple(state.learned)
    if frozen := unfreeze(model, learned, epochs - 1):
        say(
            f"warning: gradual_unfreezing: {epochs} epochs are too few; {frozen} layers (including "
            "the embedding) are never trained"
        )
    for step, batches in enumerate(groups, start):
        unfreeze(model, learned, step // per_epoch)
        yield batches


def _groups(
    task: Task[Any, Any],
    units: Sequence[list[Feature]],
    settings: Finetune,
    start: int,
    ranks: Ranks,
) -> Iterator[list[Batch]]:
    """Yield this process's batches of each step, in an order that depends on seed and epoch.

    The first examples of an epoch are added to a step that has fewer examples than processes.

    Args:
        task: The task.
        units: Features that must be in the same step, such as the choices of a question.
        settings: Settings of training.
        start: Number of finished steps.
        ranks: Processes of the run.

    """
    shared = task.batching == "step" and ranks.world > 1
    lengths = [sum(f.tokens for f in unit) for unit in units]
    per_epoch = math.ceil(len(units) / settings.batch_size)
    order = np.empty(0, dtype=np.int64)
    for step in range(start, per_epoch * settings.epochs):
        epoch, number = divmod(step, per_epoch)
        if number == 0 or step == start:
            order = Permutation(len(units), settings.seed, epoch)(np.arange(len(units)))
        batch = order[number * settings.batch_size : (number + 1) * settings.batch_size].tolist()
        batch += order[: max(0, ranks.world - len(batch))].tolist()
        if not shared:
            batch = batch[ranks.rank :: ranks.world]
        sizes = [lengths[unit] for unit in batch]
        budget = sum(sizes) if task.batching == "step" else settings.max_batch_tokens
        parts = [[f for i in part for f in units[batch[i]]] for part in by_length(sizes, budget)]
        yield [replace(make_batch(task, part), part=ranks.rank, shared=shared) for part in parts]
