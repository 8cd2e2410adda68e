"""Training loop of pretraining, with logging, evaluation and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from bertkit.batch import Batch
from bertkit.checkpoint.run_directory import RUN
from bertkit.config import Settings, as_toml, flat, plain
from bertkit.console import say
from bertkit.data.corpus import PreparedText
from bertkit.data.corpus_volumes import sampling_version
from bertkit.errors import ConfigError, DataError, TrainingError
from bertkit.models.flops import peak_of
from bertkit.models.model import Model
from bertkit.objectives.loss import Objective
from bertkit.recipes.run_file import FREE, Train
from bertkit.storage import read_json, sha256, write_text
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.checkpoints import State
from bertkit.training.data_loader import prefetched, processes_for
from bertkit.training.distributed import Ranks
from bertkit.training.loop import Step, evaluate, steps
from bertkit.training.master_weights import Masters
from bertkit.training.optimizer import OPTIMIZERS, Sharded
from bertkit.training.run import Run, Show
from bertkit.training.schedule import Schedule, schedule
from bertkit.training.trackers import tracked
from bertkit.training.weight_average import TailAverage
from bertkit.view.runs import draw

RUN_FILE = "run.toml"
"""Name of the file in a run directory that contains all settings, also those with defaults."""

DECAY_FRACTION = 0.4
"""Default fraction of the steps during which the schedule "wsd" decays the learning rate."""


@dataclass(frozen=True)
class HeldOut:
    """Evaluation on held-out text. The scores are written to the journal of the run."""

    run: Run
    model: Model
    objective: Objective
    batches: list[Batch]
    every: int
    """Number of steps between evaluations."""
    sample: Callable[[], str] | None = None
    """Function that generates a sample text, if the model is generative."""

    def scores(self, step: int) -> dict[str, float]:
        """Evaluate the model after a step, if an evaluation is due.

        Returns:
            The loss and accuracy of each head, or an empty dict if no evaluation is due or another
            process evaluates.

        Raises:
            TrainingError: If a loss is not finite.
        """
        if not (self.batches and self.run.ranks.first) or not (
            step in (0, self.run.total) or step % self.every == 0
        ):
            return {}
        journal = self.run.journal
        records = [r for r in journal.records() if r["step"] == step and "held_out_accuracy" in r]
        if not records:  # Otherwise, a killed run has already written the scores of this step.
            losses, accuracy = evaluate(self.model, self.objective, self.batches)
            for name, loss in losses.items():
                if not math.isfinite(loss):
                    raise TrainingError(
                        f"step {step}: the held-out loss of {name} is {loss:g}; start over with a "
                        "lower learning rate or a longer warmup"
                    )
            records = [{"step": step, "held_out": losses, "held_out_accuracy": accuracy}]
            summary = "  ".join(f"{name} {loss:.3f}" for name, loss in losses.items())
            say(f"step {step} held out  {summary}")
            if self.sample is not None:
                records[0]["written"] = text = self.sample()
                say(f"step {step} sample: {text!r}")
            journal.write(records[0])
            draw(self.run.out)
        return {
            f"{name}_{kind}": value
            for key, kind in (("held_out", "loss"), ("held_out_accuracy", "accuracy"))
            for name, value in records[0][key].items()
        }


def learn(
    run: Run,
    objective: Objective,
    batches: Callable[[int], list[Batch]],
    plan: Schedule,
    train: Train,
    *,
    show: Show,
    held_out: HeldOut,
    start: int,
    flops: Callable[[Batch], int] | None = None,
) -> dict[str, float]:
    """Run the training steps after `start`, and return the scores on held-out text at the end.

    Args:
        run: The run.
        objective: Function that computes the loss of a batch.
        batches: Function that returns the batches of a step for this process.
        plan: Schedule of the learning rate.
        train: Settings of training.
        show: Function that writes the weights of a checkpoint to the model files of the run
            directory.
        held_out: Evaluation on held-out text.
        start: Number of finished steps.
        flops: Function that returns the number of floating-point operations of a batch. It is used
            to log the model FLOPS utilization (MFU) if the peak FLOP/s of the device is known.

    Returns:
        The loss and accuracy of each head on held-out text after the last step.

    Raises:
        KeyboardInterrupt: If a signal requested a stop. A checkpoint of the current step is saved
            before.
    """
    ranks = run.ranks
    masters, optimizer = run.state.masters, run.state.optimizer
    device = next(iter(masters.weights.values())).device
    peak = train.peak_flops or peak_of(str(device), masters.dtype)
    flops_of_step: list[int] = []
    loaders = train.loader_processes
    if loaders is None:
        loaders = processes_for(device.type)
    with (
        run.learning("pretraining", start=start),
        prefetched(batches, range(start, train.steps), processes=loaders) as groups,
        # The tracker starts a thread, which must happen after the loader processes are forked.
        tracked(train.track, run, start=start),
    ):
        scores = held_out.scores(start)
        for step in steps(
            masters,
            objective,
            groups if flops is None or peak is None else _count(groups, flops, flops_of_step),
            optimizer,
            plan,
            max_grad_norm=train.max_grad_norm or math.inf,
            seed=train.seed,
            start=start,
            ranks=ranks,
            stopping=lambda: run.stopping,
        ):
            number, last = step.number, step.number == train.steps
            _add_to_average(run.state, number, last=last)
            log = last or number % train.log_every == 0
            seconds = step.seconds + step.data_wait
            mfu = {"mfu": flops_of_step[0] / seconds / peak} if flops_of_step and peak else {}
            run.show(number, _note(step, mfu), line=log)
            stopping = step.stopping and not last
            if ranks.first:
                if log:
                    run.journal.write({**step.record, **mfu})
                if stopping:
                    draw(run.out)
            # The evaluation comes before saving, so that weights with a non-finite loss are not
            # saved.
            if not stopping:
                scores = held_out.scores(number) or scores
            if last or number % train.save_every == 0 or stopping:
                _check_finite(masters, number)
                run.save(number, keep=train.keep, show=show)
            if stopping:
                run.stop(number)
    if ranks.first:
        draw(run.out)
    return scores


def _add_to_average(state: State, step: int, *, last: bool) -> None:
    """Add the weights after a step to the average. After the last step, replace them with it."""
    if state.average is not None:
        state.average.add(step)
        if last:
            state.average.put()
            state.masters.update_model()


def _check_finite(masters: Masters, step: int) -> None:
    """Check that the weights are finite before they are saved.

    A weight that is not finite would also make the next loss not finite, but the step may be the
    last one.

    Raises:
        TrainingError: If a weight is NaN or infinite.
    """
    if not all(weight.isfinite().all() for weight in masters.weights.values()):
        raise TrainingError(
            f"step {step}: weights are no longer finite; start over with a lower learning rate or "
            "a longer warmup"
        )


def begin(run: Run, state: State, config: Settings, steps: int) -> int:
    """Start or resume a run, and write a run file with all settings to the run directory.

    Args:
        run: The run.
        state: Weights and optimizer state.
        config: Settings of the run.
        steps: Total number of steps.

    Returns:
        The number of finished steps.
    """
    start = run.begin(state, steps)
    if run.ranks.first:
        write_text(run.out / RUN_FILE, as_toml(config))
    return start


def check_record(
    run: Run,
    config: Settings,
    text: PreparedText,
    tokenizer: Tokenizer,
    extra: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Check that a run is resumed with the settings, text and tokenizer with which it started.

    Args:
        run: The run.
        config: Settings of the run.
        text: Text of the run.
        tokenizer: Tokenizer of the text.
        extra: Other values that must not change. Only `start`, the directory of the start model,
            may change.

    Raises:
        ConfigError: If settings differ, or this version of bertkit builds different samples.
        DataError: If the text or its tokenizer differs.
    """
    errors = {
        "draws": ConfigError(
            f"{run.out}: this version of bertkit builds different samples; use the old version"
        ),
        "tokenizer": DataError(
            f"{text.place}: the tokenizer differs from that of {run.out}; use the corpus of the run"
        ),
        "corpus": DataError(
            f"{text.place}: the corpus differs from that of {run.out}; use the corpus of the run"
        ),
    }
    record = {
        "config": plain(config),
        **extra,
        "corpus": sha256(text.folder / "manifest.json"),
        "corpus_folder": text.place,
        "tokenizer": tokenizer.fingerprint,
        "draws": sampling_version(text),
    }
    free = ("corpus_folder", "start", *(f"config.train.{name}" for name in FREE))
    run.check(record, free=free, errors=errors)


def with_parts(settings: Mapping[str, Any], run: Run) -> Mapping[str, Any]:
    """Return the settings of a run. If there are several processes, set `train.parts`.

    The default number of parts is the number of processes. A resumed run keeps its number of parts,
    because its samples depend on it.
    """
    train = settings.get("train", {})
    if not isinstance(train, Mapping) or "parts" in train:
        return settings
    parts = run.ranks.value_of_first(_recorded_parts(run)) or run.ranks.world
    return settings if parts == 1 else {**settings, "train": {**train, "parts": parts}}


def _recorded_parts(run: Run) -> int:
    """Return the number of parts of a resumed run, or 0 if it is unknown."""
    if not (run.resumed and run.ranks.first):
        return 0
    record = read_json(run.out / RUN, ConfigError, "start over in another --out")
    parts = flat(record).get("config.train.parts") if isinstance(record, dict) else None
    return parts if type(parts) is int else 0


def batches_of_step(
    train: Train, parts: range, step: int, batches: Callable[[int, int], list[Batch]]
) -> list[Batch]:
    """Return the batches of some parts of a step.

    Args:
        train: Settings of training.
        parts: Indices of the parts.
        step: Number of the step, from 0.
        batches: Function that returns batches, given the index of their first sample in the
            endless sequence of samples, and the number of samples.
    """
    return [
        replace(batch, part=part, window=train.window(step))
        for part in parts
        for batch in batches(*train.samples_of(step, part))
    ]


def optimization(train: Train, masters: Masters, ranks: Ranks) -> tuple[Any, Schedule]:
    """Build the optimizer and the learning rate schedule of a run.

    Args:
        train: Settings of training.
        masters: Master weights of the model.
        ranks: Processes of the run.

    Returns:
        The optimizer, sharded if `train.shard_optimizer` is set, and the schedule.

    Raises:
        ConfigError: If a setting does not apply to any weight.
    """
    settings: dict[str, Any] = {
        "learning_rate": train.learning_rate,
        "weight_decay": train.weight_decay,
        "betas": train.betas,
        "eps": train.eps,
        "embedding_learning_rate": train.embedding_learning_rate,
    }
    if train.optimizer == "muon":
        settings |= {
            "momentum": train.momentum,
            "adamw_learning_rate": train.adamw_learning_rate,
            "adamw_weight_decay": train.adamw_weight_decay,
        }
    build: Any = OPTIMIZERS[train.optimizer]
    optimizer = build(masters.weights, **settings)
    if train.shard_optimizer and ranks.world > 1:
        optimizer = Sharded(optimizer, masters.weights, ranks)
    plan = schedule(
        train.schedule,
        steps=train.steps,
        warmup_steps=train.warmup_steps,
        decay_steps=_decay_steps(train),
    )
    return optimizer, plan


def tail_average(train: Train, masters: Masters) -> TailAverage | None:
    """Return the average over the last steps, or None if `train.average_steps` is 0."""
    if not train.average_steps:
        return None
    return TailAverage(masters.weights, after=train.steps - train.average_steps)


def warn(train: Train, *, attention_dropout: float, device: str) -> None:
    """Print warnings about settings that are valid but probably mistakes.

    Args:
        train: Settings of training.
        attention_dropout: Dropout probability of attention weights.
        device: The device.
    """
    if device.startswith("cuda") and attention_dropout:
        say(
            f"model.attention_dropout = {attention_dropout:g} disables the fast attention kernel "
            "of GPUs; set it to 0"
        )
    if train.warmup_steps >= train.steps:
        say(
            f"train.warmup_steps = {train.warmup_steps} is not less than train.steps = "
            f"{train.steps}: the learning rate never reaches its peak; set it to "
            f"{max(1, train.steps // 20)}, for example"
        )
    decay, stable = _decay_steps(train), train.steps - max(1, train.warmup_steps)
    if train.schedule == "wsd" and decay > stable and train.warmup_steps < train.steps:
        say(
            f"train.warmup_steps = {train.warmup_steps} and {decay} decay steps are more than "
            f"train.steps = {train.steps}: the learning rate never reaches its peak; set "
            f"train.decay_steps to {min(stable, round(DECAY_FRACTION * train.steps))}, for example"
        )
    if train.batch_warmup_steps > train.steps:
        say(
            f"train.batch_warmup_steps = {train.batch_warmup_steps} is more than train.steps = "
            f"{train.steps}: the batch never grows to {train.batch_size} samples; set it to "
            f"{max(1, train.steps // 2)}, for example"
        )


def _decay_steps(train: Train) -> int:
    return train.decay_steps or round(DECAY_FRACTION * train.steps)


def _count(
    groups: Iterator[list[Batch]], flops: Callable[[Batch], int], flops_of_step: list[int]
) -> Iterator[list[Batch]]:
    """Yield the batches of each step, after storing their number of FLOPs in `flops_of_step`."""
    for group in groups:
        flops_of_step[:] = [sum(map(flops, group))]
        yield group


def _note(step: Step, mfu: Mapping[str, float]) -> str:
    parts = "  ".join(f"{name} {value:.3f}" for name, value in step.parts.items())
    suffix = "".join(f"  {name} {value:.1%}" for name, value in mfu.items())
    return f"loss {step.loss:.3f}  {parts}  {step.tokens / step.seconds:,.0f} tokens/s{suffix}"
