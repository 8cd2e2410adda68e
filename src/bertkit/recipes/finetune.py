"""Fine-tune a model on labelled examples of any task, keep its best epoch, and score it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from bertkit.checkpoint.pooling import read_pooling
from bertkit.checkpoint.run_directory import SCORES
from bertkit.config import (
    Count,
    Positive,
    Rate,
    Seed,
    Settings,
    plain,
    with_keywords,
    with_keywords_told,
)
from bertkit.console import say
from bertkit.data.labels import listed
from bertkit.data.shuffling import Permutation
from bertkit.errors import ConfigError, DataError
from bertkit.families import Family
from bertkit.models.lora import LORA_RATE, LoRA, add_lora, freeze, rate_factor, unfreeze
from bertkit.nn.precision import Precision, resolve, resolve_device
from bertkit.objectives.auxiliary_lm import WithNextWords
from bertkit.objectives.loss import Objective
from bertkit.recipes.data_checks import check_rows
from bertkit.recipes.finetune_report import finish, finished
from bertkit.synonyms import check_keywords
from bertkit.tasks.examples import Examples, RowsLike, check_examples
from bertkit.tasks.held_out import take_rows
from bertkit.tasks.task import Feature, Reading, Task
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.epochs import Epochs, check_metric, grown
from bertkit.training.loop import steps
from bertkit.training.master_weights import Masters, rows_read
from bertkit.training.optimizer import CRF_RATE, adamw
from bertkit.training.reference_model import with_start
from bertkit.training.run import Resume, Run
from bertkit.training.schedule import schedule
from bertkit.training.state import State
from bertkit.training.task_model import opened
from bertkit.training.teacher import TaskTeacher
from bertkit.training.trackers import Track, check_tracker, tracked


class Finetune(Settings, frozen=True):
    """Defaults that work for most tasks of the BERT paper (appendix A.3)."""

    epochs: Count = 3
    """Number of passes over the training examples."""
    batch_size: Count = 32
    """Examples a step (windows, where a task reads long texts in windows)."""
    learning_rate: Positive | None = None
    """Peak learning rate; by default a value for the hidden size, and a larger one for LoRA."""
    warmup: Rate = 0.1
    """Warmup of the learning rate, as a fraction of the steps."""
    weight_decay: Annotated[float, Meta(ge=0.0)] = 0.01
    """Weight decay of AdamW."""
    layer_decay: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    """Layer-wise learning rate decay: factor from each layer to the one below it; 1 is none."""
    frozen_layers: Annotated[int, Meta(ge=0)] = 0
    """Number of frozen layers, from the bottom; the embeddings are frozen, too."""
    gradual_unfreezing: bool = False
    """Gradual unfreezing: train the heads in the first epoch and one more layer in each other
    epoch, from the top; the embeddings with the last layer (Howard & Ruder 2018)."""
    lora: LoRA = LoRA()
    max_grad_norm: Positive = 1.0
    """Gradient clipping: the largest norm of the gradient."""
    metric: str | None = None
    """Dev score by which the best epoch is chosen, such as f1; by default the task's."""
    patience: Count | None = None
    """Early stopping: number of epochs without a better dev score before training stops."""
    seed: Seed = 0
    """Random seed."""
    length: Count | None = None
    """Maximum length (max_length) of a sequence in tokens; by default the model's."""
    max_batch_tokens: Count = 8192
    """Tokens per forward pass. A larger batch uses gradient accumulation; results do not change."""
    precision: Precision = "auto"
    """Mixed precision (bf16) or fp32; fp16 is not supported. Auto uses bf16 if it is faster."""
    device: str = "auto"
    """Device, such as cpu or cuda; auto uses a GPU if there is one."""
    lm_weight: Annotated[float, Meta(ge=0.0)] | None = None
    """Weight of the loss of next words beside the task's, in a causal model that labels or scores
    texts (λ in Radford et al. 2018, equation 5); 0.5 by default, 0 learns none."""
    save_minutes: Annotated[float, Meta(ge=0.0)] = 5.0
    """Minutes between the checkpoints that --resume goes on from."""
    track: Track = "none"
    """Experiment tracker that records losses and scores."""


def usual_rate(task: Task[Any, Any], hidden: int, lora_rank: int = 0) -> float:
    """The peak learning rate of a model whose states have so many numbers: the paper's 5e-5 at
    BERT-base's 768 and above, more the narrower a model is, at most 3e-4. Where the texts of a step
    are compared with each other it is 5e-5: what a model knows of likeness is easily lost. Adapters
    learn at ten times that, but for these tasks and those that write, where it was not tried.

    Source: Devlin et al. 2019, appendix A.3; of narrow ones Turc et al. 2019, whose list ends at
    3e-4, and notes/2026-11.md. Yang et al. 2022 have Adam's rate fall with the width, too.
    """
    if task.batching == "step":
        return 5e-5
    factor = rate_factor(lora_rank, head=task.head, batching=task.batching)
    return round(min(3e-4, 5e-5 * max(1.0, 768 / hidden)) * factor, 12)


FREE = ("save_minutes", "max_batch_tokens", "track")
"""Settings that may differ when a run is resumed."""


@with_keywords_told(Finetune, Reading)
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
    """Fit a task and return the dev scores of the best epoch, whose weights `out` holds.

    Where dev taught the task something, such as a threshold, their names begin with `best_`.
    `task` is a name, module:Class, or a class; `options` are the task's own; `train` and `dev`
    files, DataFrames or other rows (`data.given`), or examples. `test`, the same, is scored once,
    by the chosen epoch; the names of its scores begin with `test_`. A number for `dev` or `test` is
    the share of train held out for it. Settings (`Finetune`), options and columns (`Reading`) may
    be plain data, and any of them a keyword: `epochs=2, text_column="review"`. `bertkit finetune
    TASK --help` describes the options, such as `class_weights="balanced"`. A model that is loaded
    stays as it is. With a `teacher` the model learns from its outputs and states, too. `on_epoch`
    is called with each epoch's number and dev scores. The same call with `resume` goes on after a
    kill, to the same weights.
    Raises: ConfigError when `out` is in use, DataError for examples that do not fit, before work.

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
    kind = tasks.find(task) if isinstance(task, str) else task
    settings, options, reading = grouped(kind, settings, options, reading, keywords)
    run = Run(out, resume=resume)
    if teacher is not None and settings.lm_weight:
        raise ConfigError("lm_weight: a student learns from its teacher; leave it out")
    check_tracker(settings.track, "track")
    device = resolve_device(settings.device)
    dtype = resolve(settings.precision, device)
    data = take_rows(kind, train, dev, test, reading, options=options, seed=settings.seed)
    train, dev = data["train"], data["dev"]
    fitted = _task(kind, model, data, options)
    check_metric(fitted, settings.metric)
    _check_record(run, fitted, model, data, settings, reading, teacher)
    if resume and (run.out / SCORES).exists():
        return finished(run.out)

    check_rows(fitted, data, options)
    torch.manual_seed(settings.seed)
    loaded, lm_weight = opened(model, fitted, settings.lm_weight if teacher is None else 0.0)
    fitted = fitted.with_decoder(loaded.begin, loaded.target)
    network = loaded.model.to(device)
    length = _length(settings, loaded.length, network.config.max_positions)
    freeze(network, settings.frozen_layers)
    if settings.lora.rank:
        if loaded.base is not None:
            raise ConfigError(
                f"lora.rank: {loaded.folder} holds adapters itself; take the whole model that they "
                "were merged into"
            )
        sizes = partial(loaded.family.sizes, config=network.config)
        if grown(loaded):
            say("adapters have no place for added tokens: the run keeps the merged model alone")
        add_lora(network, settings.lora, sizes, frozen_layers=settings.frozen_layers)
        network.to(device)
    parts = ("encoder.", "decoder.", f"heads.{fitted.head}.")
    learn = (name for name, weight in network.named_parameters() if weight.requires_grad)
    if not any(name.startswith(parts) for name in learn):
        raise ConfigError(
            f"frozen_layers: {settings.frozen_layers}; nothing is left that could learn "
            f"{fitted.name}, which has no head of its own; freeze fewer"
        )
    features, dev_features = _features(fitted, loaded.tokenizer, length, train, dev)
    objective: Objective = fitted.loss
    if lm_weight:
        objective = WithNextWords(fitted.loss_of, head=fitted.head, weight=lm_weight)
    if teacher is not None:
        teacher.check(fitted, network)
        features = teacher.annotate(fitted, features, settings.max_batch_tokens)
        objective = teacher.objective(fitted, network)
        network = objective.learner.to(device)

    units = fitted.units(features, settings.seed)
    per_epoch = math.ceil(len(units) / settings.batch_size)
    total = per_epoch * settings.epochs
    rate = settings.learning_rate or usual_rate(fitted, network.config.hidden, settings.lora.rank)
    # batches of a task of one's own may hold tokens that no feature has
    rows = rows_read(network, [f.encoding.ids for f in features]) if fitted.ours() else {}
    state = _state(settings, rate, Masters(network, dtype, rows), loaded.family)
    warmup_steps = round(settings.warmup * total)
    plan = schedule("linear", steps=total, warmup_steps=warmup_steps, decay_steps=0)
    start = run.begin(state, total)
    # run.json says what was asked for, and what is written from here on says what was done
    run.record = {**run.record, "settings": {**run.record["settings"], "learning_rate": rate}}
    max_batch_tokens = settings.max_batch_tokens
    if fitted.from_start:
        features, dev_features = with_start(
            run, fitted, features, dev_features, start=start, max_batch_tokens=max_batch_tokens
        )
        units = fitted.units(features, settings.seed)
    epochs = Epochs(
        run,
        fitted,
        loaded,
        length,
        features,
        dev.examples,
        dev_features,
        max_batch_tokens,
        settings.metric,
    )
    groups = _groups(fitted, units, settings, start)
    if settings.gradual_unfreezing:
        groups = _unfreezing(groups, state, per_epoch, start, settings.epochs)

    with (
        run.learning("fine-tuning", start=start, discard=True),
        tracked(settings.track, run, start=start),
    ):
        for step in steps(
            state.masters,
            objective,
            groups,
            state.optimizer,
            plan,
            max_grad_norm=settings.max_grad_norm,
            seed=settings.seed,
            start=start,
        ):
            run.show(step.number, f"loss {step.loss:.3f}")
            run.journal.write(step.record)
            if step.number % per_epoch == 0:
                scores = epochs.score(step.number, step.number // per_epoch)
                if on_epoch is not None:
                    on_epoch(step.number // per_epoch, scores)
                if epochs.exhausted(settings.patience):
                    break
            if step.number < total and (run.stopping or run.due(settings.save_minutes)):
                run.save(step.number, keep=1)
                if run.stopping:
                    run.stop(step.number)
    return finish(run, fitted, epochs, data)


def grouped(
    kind: type[Task[Any, Any]],
    settings: Finetune | Mapping[str, Any] | None,
    options: Settings | Mapping[str, Any] | None,
    reading: Reading | Mapping[str, Any] | None,
    keywords: Mapping[str, Any],
) -> tuple[Finetune, Settings, Reading]:
    """Each group whole, with what was given for it as a keyword. Raises: ConfigError."""
    groups: dict[type[Settings], Settings | Mapping[str, Any] | None] = {
        Finetune: settings,
        kind.Options: options,
        Reading: reading,
    }
    first, second, third = with_keywords("finetune", groups, keywords)
    return first, second, third


def _task(
    kind: type[Task[Any, Any]],
    model: str | Path | Loaded,
    data: Mapping[str, Examples],
    options: Settings,
) -> Task[Any, Any]:
    """The task that the training examples pose to the model.

    Raises: DataError for an example that does not fit.
    """
    task = kind.from_examples(data["train"].examples, options)
    for rows in data.values():
        check_examples(task, rows.examples)
    if isinstance(model, Loaded):
        return task.with_pooling(model.pooling)
    return task.with_pooling(read_pooling(base_of(hub.resolve(model)))[0])


def _check_record(
    run: Run,
    task: Task[Any, Any],
    model: str | Path | Loaded,
    data: Mapping[str, Examples],
    settings: Finetune,
    reading: Reading | None,
    teacher: TaskTeacher | None,
) -> None:
    """Raises: ConfigError or DataError when the folder is another run's; files may have moved."""
    run.check(
        {
            "task": task.settings()["bertkit"]["task"],
            "model": str(model.folder if isinstance(model, Loaded) else model),
            **(teacher.record if teacher is not None else {}),
            "settings": plain(settings),
            "reading": plain(reading or Reading()),
            "data": {name: rows.record for name, rows in data.items()},
        },
        free=(
            *(f"settings.{name}" for name in FREE),
            *(f"data.{name}.{key}" for name in data for key in ("file", "name")),
        ),
        refusals={
            f"data.{name}.sha256": DataError(
                f"{name}: not the rows that {run.out} began with; resume with the same, or start "
                "another run"
            )
            for name in data
        },
    )


def _features(
    task: Task[Any, Any], tokenizer: Tokenizer, length: int, train: Examples, dev: Examples
) -> tuple[list[Feature], list[Feature]]:
    """Those of train, with targets, and of dev; which examples were cut is said."""
    policy = task.long_of_files()
    made = []
    for name, data in (("train", train), ("dev", dev)):
        features = task.features(
            data.examples, tokenizer, length, long=policy, labelled=name == "train"
        )
        cut = {f.example for f in features if f.truncated}
        if cut and policy == "truncate":
            say(f"{name}: {len(cut):,} examples are longer than {length} tokens and were cut")
        made.append(features)
    learned, count = made[0], len(train.examples)
    labels = f"; labels: {listed(task.labels)}" if task.labels else ""
    sequences = f" in {len(learned):,} sequences" if len(learned) != count else ""
    say(f"{task.name}: {count:,} examples{sequences}{labels}")
    return made[0], made[1]


def _length(settings: Finetune, usual: int, longest: int) -> int:
    if settings.length is not None and settings.length > longest:
        raise ConfigError(f"length: {settings.length} is longer than the model's {longest} tokens")
    return settings.length or usual


def _state(settings: Finetune, rate: float, masters: Masters, family: Family) -> State:
    optimizer = adamw(
        {name: w for name, w in masters.weights.items() if w.requires_grad},
        learning_rate=rate,
        weight_decay=settings.weight_decay,
        layer_decay=settings.layer_decay,
        crf_rate=CRF_RATE / (LORA_RATE if settings.lora.rank else 1.0),
    )
    return State(masters, optimizer, family)


def _unfreezing(
    groups: Iterator[list[Batch]], state: State, per_epoch: int, start: int, epochs: int
) -> Iterator[list[Batch]]:
    """The same groups; before the first of each epoch one layer more begins to learn."""
    model, learned = state.masters.model, tuple(state.learned)
    if still := unfreeze(model, learned, epochs - 1):
        say(
            f"gradual_unfreezing: {epochs} epochs are too few for all: {still} of the layers, the "
            "embedding counted as one, do not learn"
        )
    for step, batches in enumerate(groups, start):
        unfreeze(model, learned, step // per_epoch)
        yield batches


def _groups(
    task: Task[Any, Any], units: Sequence[list[Feature]], settings: Finetune, start: int
) -> Iterator[list[Batch]]:
    """The batches of every step after `start`; the order depends on (seed, epoch) alone.

    A unit is what must be learned from together: the choices of a question, else one sequence.
    """
    lengths = [sum(f.tokens for f in unit) for unit in units]
    per_epoch = math.ceil(len(units) / settings.batch_size)
    order = np.empty(0, dtype=np.int64)
    for step in range(start, per_epoch * settings.epochs):
        epoch, number = divmod(step, per_epoch)
        if number == 0 or step == start:
            order = Permutation(len(units), settings.seed, epoch)(np.arange(len(units)))
        drawn = order[number * settings.batch_size : (number + 1) * settings.batch_size].tolist()
        sizes = [lengths[place] for place in drawn]
        budget = sum(sizes) if task.batching == "step" else settings.max_batch_tokens
        yield [
            task.batch([feature for place in places for feature in units[drawn[place]]])
            for places in by_length(sizes, budget)
        ]
