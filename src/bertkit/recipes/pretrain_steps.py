"""The steps of a pretraining: what is logged, scored, saved and shown on the way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from torch import Tensor

from bertkit.batch import Batch
from bertkit.checkpoint.run_directory import RUN
from bertkit.config import Settings, as_toml, flat, plain
from bertkit.console import say
from bertkit.data.corpus import PreparedText
from bertkit.data.corpus_volumes import draws_of
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
from bertkit.training.run import Run
from bertkit.training.schedule import Schedule, schedule
from bertkit.training.trackers import tracked
from bertkit.training.weight_average import TailAverage
from bertkit.view.runs import draw

RUN_FILE = "run.toml"
"""In the folder of a pretraining: what was asked, with every default."""

DECAY_FRACTION = 0.4
"""Share of the steps in which `wsd` decays, where none is given."""


class RunFolder(Protocol):
    """The model folder that a run makes."""

    def show(self, checkpoint: Path, weights: Mapping[str, Tensor]) -> None:
        """Make a checkpoint's weights those of the folder; `weights` are these, by our names."""


@dataclass(frozen=True)
class HeldOut:
    """Evaluation on held-out text, whose scores are written to the journal."""

    run: Run
    model: Model
    objective: Objective
    batches: list[Batch]
    every: int
    """Number of steps between evaluations."""
    sample: Callable[[], str] | None = None
    """Function that generates a sample text, for generative models."""

    def scores(self, step: int) -> dict[str, float]:
        """Evaluate the model after a step.

        Returns:
            Loss and accuracy of each head. Empty if this step is not evaluated, or if another
            process evaluates it.

        Raises:
            TrainingError: If a loss is not finite.
        """
        if not (self.batches and self.run.ranks.first) or not (
            step in (0, self.run.total) or step % self.every == 0
        ):
            return {}
        journal = self.run.journal
        records = [r for r in journal.records() if r["step"] == step and "held_out_accuracy" in r]
        if not records:  # A killed run may have written them.
            losses, accuracy = evaluate(self.model, self.objective, self.batches)
            for name, loss in losses.items():
                if not math.isfinite(loss):
                    raise TrainingError(
                        f"step {step}: the held-out loss of {name} is {loss:g}; start over with a "
                        "lower learning rate or a longer warmup"
                    )
            records = [{"step": step, "held_out": losses, "held_out_accuracy": accuracy}]
            numbers = "  ".join(f"{name} {loss:.3f}" for name, loss in losses.items())
            say(f"step {step} held out  {numbers}")
            if self.sample is not None:
                records[0]["written"] = text = self.sample()
                say(f"step {step} writes: {text!r}")
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
    folder: RunFolder,
    held_out: HeldOut,
    start: int,
    flops: Callable[[Batch], int] | None = None,
) -> dict[str, float]:
    """Take the steps after `start`, and return the held-out scores at the end.

    Args:
        run: The run.
        objective: Function that computes the loss of a batch.
        batches: Function that returns the batches of a step for this process.
        plan: Schedule of the learning rate.
        train: Settings of training.
        folder: Writer of the model directory.
        held_out: Evaluation on held-out text.
        start: Number of finished steps.
        flops: Function that returns the operations of a batch, to report the model FLOPS
            utilization (MFU) of devices with a known peak.

    Raises:
        KeyboardInterrupt: If a signal requested a stop, after that step was saved.
    """
    ranks = run.ranks
    masters, optimizer = run.state.masters, run.state.optimizer
    device = next(iter(masters.weights.values())).device
    peak = train.peak_flops or peak_of(str(device), masters.dtype)
    needed: list[int] = []
    loaders = train.loader_processes
    if loaders is None:
        loaders = processes_for(device.type)
    with (
        run.learning("pretraining", start=start),
        prefetched(batches, range(start, train.steps), processes=loaders) as coming,
        tracked(train.track, run, start=start),  # a thread, and behind the forks
    ):
        scores = held_out.scores(start)
        for step in steps(
            masters,
            objective,
            coming if flops is None or peak is None else _counted(coming, flops, needed),
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
            mfu = {"mfu": needed[0] / seconds / peak} if needed and peak is not None else {}
            run.show(number, _note(step, mfu), line=log)
            stopping = step.stopping and not last
            if ranks.first:
                if log:
                    run.journal.write({**step.record, **mfu})
                if stopping:
                    draw(run.out)
            if not stopping:  # before weights that it finds ruined would be saved and shown
                scores = held_out.scores(number) or scores
            if last or number % train.save_every == 0 or stopping:
                _check_finite(masters, number)
                run.save(number, keep=train.keep, show=folder.show)
            if stopping:
                run.stop(number)
    if ranks.first:
        draw(run.out)
    return scores


def _add_to_average(state: State, step: int, *, last: bool) -> None:
    """Add the weights after a step to their average, which replaces them after the last step."""
    if state.average is not None:
        state.average.add(step)
        if last:
            state.average.put()
            state.masters.update_model()


def _check_finite(masters: Masters, step: int) -> None:
    """Raises: TrainingError for weights that a step ruined; the loss of the next would say so, and
    there may be none.
    """
    if not all(weight.isfinite().all() for weight in masters.weights.values()):
        raise TrainingError(
            f"step {step}: weights are no longer finite; start over with a lower learning rate or "
            "a longer warmup"
        )


def begin(run: Run, state: State, config: Settings, steps: int) -> int:
    """Begin a run, and leave the run file in its folder that repeats it; the last step taken."""
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
    """Check that a resumed run has the settings, the text and the tokenizer that it began with.

    Args:
        run: The run.
        config: Its settings.
        text: Its text.
        tokenizer: Tokenizer of the text.
        extra: Other values that must not change, except the directory of the `start` model.

    Raises:
        ConfigError: If settings differ, or this version of bertkit takes other samples.
        DataError: If the text or its tokenizer differs.
    """
    errors = {
        "draws": ConfigError(
            f"{run.out}: began with a version that draws other samples; resume it with that version"
        ),
        "tokenizer": DataError(
            f"{text.place}: made with another tokenizer than {run.out}; resume with its own corpus"
        ),
        "corpus": DataError(
            f"{text.place}: not the corpus that {run.out} began with; resume with the same corpus"
        ),
    }
    record = {
        "config": plain(config),
        **extra,
        "corpus": sha256(text.folder / "manifest.json"),
        "corpus_folder": text.place,
        "tokenizer": tokenizer.fingerprint,
        "draws": draws_of(text),
    }
    free = ("corpus_folder", "start", *(f"config.train.{name}" for name in FREE))
    run.check(record, free=free, errors=errors)


def with_parts(settings: Mapping[str, Any], run: Run) -> Mapping[str, Any]:
    """Return the settings of a run, with `train.parts` set for several processes.

    The default is the number of processes; a resumed run keeps its number of parts, on which its
    samples depend.
    """
    train = settings.get("train", {})
    if not isinstance(train, Mapping) or "parts" in train:
        return settings
    parts = run.ranks.value_of_first(_recorded_parts(run)) or run.ranks.world
    return settings if parts == 1 else {**settings, "train": {**train, "parts": parts}}


def _recorded_parts(run: Run) -> int:
    """Return the number of parts of a run that is resumed; 0 if it is unknown."""
    if not (run.resumed and run.ranks.first):
        return 0
    record = read_json(run.out / RUN, ConfigError, "start over in another --out")
    parts = flat(record).get("config.train.parts") if isinstance(record, dict) else None
    return parts if type(parts) is int else 0


def batches_of_step(
    train: Train, parts: range, step: int, batches: Callable[[int, int], list[Batch]]
) -> list[Batch]:
    """The batches of these parts of a step, the first step being 0.

    `batches` are those of so many samples, from an index of the endless order on.
    """
    return [
        replace(batch, part=part, window=train.window(step))
        for part in parts
        for batch in batches(*train.samples_of(step, part))
    ]


def optimization(train: Train, masters: Masters, ranks: Ranks) -> tuple[Any, Schedule]:
    """The optimizer of a run, and how its learning rate goes.

    Raises: ConfigError where a setting has nothing to move.
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
    make: Any = OPTIMIZERS[train.optimizer]
    optimizer = make(masters.weights, **settings)
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
    """What the run ends with, where it is not the last step's weights."""
    if not train.average_steps:
        return None
    return TailAverage(masters.weights, after=train.steps - train.average_steps)


def warn(train: Train, *, attention_dropout: float, device: str) -> None:
    """Say what of a plan is allowed and hardly meant."""
    if device.startswith("cuda") and attention_dropout:
        say(
            f"model.attention_dropout = {attention_dropout:g}: a GPU's fast kernel has none, and a "
            "slow one runs; set it to 0"
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
            f"train.warmup_steps = {train.warmup_steps} and {decay} steps of decay are more than "
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


def _counted(
    groups: Iterator[list[Batch]], flops: Callable[[Batch], int], needed: list[int]
) -> Iterator[list[Batch]]:
    """The same groups; what each needs becomes the one number of `needed` as it comes."""
    for group in groups:
        needed[:] = [sum(map(flops, group))]
        yield group


def _note(step: Step, mfu: Mapping[str, float]) -> str:
    parts = "  ".join(f"{name} {value:.3f}" for name, value in step.parts.items())
    share = "".join(f"  {name} {value:.1%}" for name, value in mfu.items())
    return f"loss {step.loss:.3f}  {parts}  {step.tokens / step.seconds:,.0f} tokens/s{share}"
