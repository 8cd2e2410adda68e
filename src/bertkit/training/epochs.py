"""The epochs of a fine-tuning: each is scored on dev, and the best is the run's model."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from bertkit import memory
from bertkit.checkpoint.adapter import write_adapter
from bertkit.checkpoint.directory import Loaded, load, save
from bertkit.checkpoint.run_directory import CHECKPOINTS, RUN, SCORES
from bertkit.config import decode
from bertkit.console import quietly, say
from bertkit.engine.engine import Engine
from bertkit.errors import CheckpointError, ConfigError, TrainingError, did_you_mean
from bertkit.metrics import worth
from bertkit.models.lora import adapters, merged
from bertkit.models.model import Model
from bertkit.storage import fits, read_json, sha256, write_json
from bertkit.tasks.capabilities import Calibrated, compute_label_report
from bertkit.tasks.confusion import LabelReport, by_label
from bertkit.tasks.contrastive import Contrastive
from bertkit.tasks.task import (
    Feature,
    Reading,
    Task,
    by_example,
    group,
    policy_of_files,
    run_head,
)
from bertkit.tasks.trained_columns import with_columns
from bertkit.training.dev_loss import dev_loss
from bertkit.training.run import Run

WEIGHTS = ".safetensors"
ADAPTER_DIRECTORY = "adapter"
"""The folder in which a run's adapters are, beside the model that has them merged."""

BEST_PREFIX = "best_"
"""Begins the names of scores on rows to which the task was tuned: the best that it can have there.
So does SQuAD's script (`best_f1`)."""

Record = dict[str, Any]


def grown(loaded: Loaded) -> bool:
    """Whether a vocabulary has more tokens than that of the folder, for which a folder of adapters
    has no place.
    """
    usual = loaded.settings.get(loaded.family.settings["vocab"], loaded.family.vocab)
    return bool(loaded.model.config.vocab != usual)


class Epochs:
    """Scores after each epoch, those before a resumption included.

    `loaded` is the model as it was opened, with all its heads; the folder holds the task's alone.
    `learned` are the features of train, `examples` and `features` those of dev.
    """

    def __init__(
        self,
        run: Run,
        task: Task[Any, Any],
        loaded: Loaded,
        learned: Sequence[Feature],
        examples: Sequence[Any],
        features: Sequence[Feature],
        max_batch_tokens: int,
        metric: str | None = None,
    ) -> None:
        self.run, self.task, self.loaded = run, task, loaded
        self.examples, self.features, self.learned = examples, features, learned
        self.max_batch_tokens = max_batch_tokens
        self.metric = metric or task.metric
        scored = (r for r in run.journal.records() if "epoch" in r and "scores" in r)
        self.records = [r for r in scored if self._named(r["scores"]) in r["scores"]]
        # the last that was written is what the folder holds, and the best but for `_overtaken`
        written = (r for r in reversed(self.records) if "sha256" in r)
        best = next(written, None) or max(self.records, key=self._score, default=None)
        self.best: Record | None = best
        self._answered: tuple[Task[Any, Any], Sequence[Any]] | None = None
        self._resumed = self.best is not None
        self._say_best()

    def score(self, step: int, number: int) -> dict[str, float]:
        """Score the epoch that ends with `step`; the best so far becomes the run's model."""
        whole = self.run.state.masters.whole()
        if isinstance(self.task, Contrastive):
            self.task.fit_head(whole, self.learned, self.max_batch_tokens)
        task, answers = self._answer(self.task, whole)
        scores = task.score(answers, self.examples)
        if isinstance(task, Calibrated) and task.chosen_on(self.task):
            scores = {BEST_PREFIX + name: score for name, score in scores.items()}
        record: Record = {"step": step, "epoch": number, "scores": scores}
        self.records.append(record)
        listed = "  ".join(f"{name} {value:.4f}" for name, value in scores.items())
        say(f"epoch {number}: {listed}")
        if self._named(scores) not in scores:
            listed = ", ".join(scores)
            raise ConfigError(f"metric: dev has no score {self.metric!r}; it has {listed}")
        lost = self._overtaken()
        if lost and self.best is not None and self._score(record) <= self._score(self.best):
            say("the best epoch was overwritten before the run was stopped: this one is kept now")
        if self.best is None or lost or self._is_better(record, whole):
            self._save(task, whole)
            record["sha256"] = _hashes(self.run.out)
            self.best, self._answered = record, (task, answers)
            self._say_best()
        self.run.journal.write(record)
        return scores

    def _is_better(self, record: Record, model: Model) -> bool:
        """Return whether an epoch has a higher score than the best, or the same and less loss."""
        assert self.best is not None
        if self._score(record) != self._score(self.best) or self._score(record) == -math.inf:
            return self._score(record) > self._score(self.best)
        if "dev_loss" not in self.best:
            with quietly():
                heads = {self.task.head: self.task.build_head}
                saved = load(self.run.out, heads=heads, labels=self.task.labels)
            self.best["dev_loss"] = self._loss(saved.model)
        record["dev_loss"] = self._loss(model)
        return bool(record["dev_loss"] < self.best["dev_loss"])

    def _loss(self, model: Model) -> float:
        """Compute the loss on dev."""
        return dev_loss(self.task, model, self._labeled_features, self.max_batch_tokens)

    @cached_property
    def _labeled_features(self) -> Sequence[Feature]:
        """Features of dev with targets."""
        task, loaded = self.task, self.loaded
        long = policy_of_files(task)
        with quietly():
            features = task.features(
                self.examples, loaded.tokenizer, loaded.length, long=long, labelled=True
            )
            return loaded.model.encoder.precompute(features)

    def _overtaken(self) -> bool:
        """Whether the folder holds a later epoch than the best one that is known: its run ended
        before the next checkpoint, and the epoch is learned again.
        """
        if not self._resumed:
            return False
        assert self.best is not None
        self._resumed = False
        weights = {n: h for n, h in self.best.get("sha256", {}).items() if n.endswith(WEIGHTS)}
        return _changed(self.run.out, weights) is not None

    def check_best(self) -> None:
        """Raises: TrainingError where no epoch has a score to choose by."""
        assert self.best is not None
        if self._score(self.best) == -math.inf:
            raise TrainingError(
                f"dev: {self._named(self.best['scores'])} of every epoch is no number; learn at a "
                "lower rate, or choose by another score (--metric)"
            )

    def exhausted(self, patience: int | None) -> bool:
        """Whether as many epochs were no better than the best; it is said."""
        assert self.best is not None
        waited = self.records[-1]["epoch"] - self.best["epoch"]
        if patience is None or waited < patience:
            return False
        say(f"no better for {waited} epochs: stopped")
        return True

    def say_kept(self) -> None:
        """Say which epoch the folder holds, where it is not the last."""
        assert self.best is not None
        if self.best["epoch"] < self.records[-1]["epoch"]:
            say(f"{self.run.best} by {self._named(self.best['scores'])}")

    def answers(self) -> Sequence[Any]:
        """Those of the best epoch to dev. Raises: CheckpointError for a model that was changed."""
        return self._of_best()[1]

    def _of_best(self) -> tuple[Task[Any, Any], Sequence[Any]]:
        """The task as dev taught it, and the answers of the best epoch."""
        assert self.best is not None
        if self._answered is None:  # the best epoch was before the resumption
            task, out = self.task, self.run.out
            check_published(out, self.best.get("sha256", {}))
            with quietly():  # that the run has not ended is known
                saved = load(out, heads={task.head: task.build_head}, labels=task.labels)
            restored = type(task).restore(task.labels, saved.settings)
            self._answered = self._answer(restored, saved.model)
        return self._answered

    def calibration(self) -> dict[str, float]:
        """Compute the calibration error of the best epoch on dev; see `Calibrated.calibration`."""
        task, answers = self._of_best()
        return task.calibration(answers, self.examples) if isinstance(task, Calibrated) else {}

    def report(self) -> LabelReport | None:
        """Compute the scores of each label on dev, if the task has labels."""
        return compute_label_report(self.task, self.answers(), self.examples)

    def write(self, report: LabelReport | None = None) -> Record:
        """Write `scores.json`, and return what it says."""
        assert self.best is not None
        scores = {**self.best["scores"], "epoch": self.best["epoch"]}
        record = {
            **self.run.record,
            "metric": self._named(scores),
            "dev": _numbers(scores),
            **by_label(report),
            **({"calibration": said} if (said := self.calibration()) else {}),
            "epochs": [{"epoch": r["epoch"], **_numbers(r["scores"])} for r in self.records],
            "sha256": self.best.get("sha256", {}),
        }
        record["digest"] = _digest(record)
        write_json(self.run.out / SCORES, record)
        return record

    def _answer(self, task: Task[Any, Any], model: Model) -> tuple[Task[Any, Any], Sequence[Any]]:
        """The task with what dev teaches it, and its answers to the dev examples, in fp32."""
        engine = Engine(model, max_batch_tokens=self.max_batch_tokens)
        head = engine.model.heads[task.head]
        rows = run_head(task, engine, self.features)
        outputs = by_example(self.examples, group(self.features), rows)
        answers = task.answers(outputs, head)
        tuned = task.calibrated(answers, self.examples) if isinstance(task, Calibrated) else task
        if tuned is not task:
            answers = tuned.answers(outputs, head)
        return tuned, answers

    def _save(self, task: Task[Any, Any], whole: Model) -> None:
        """Write the model with the task's head alone, adapters merged, and beside it these."""
        out, loaded = self.run.out, self.loaded
        model = Model(whole.encoder, {task.head: whole.heads[task.head]}, whole.decoder)
        save(
            out,
            merged(model),
            loaded.tokenizer,
            loaded.family,
            labels=task.labels,
            settings=with_columns(task.settings(), decode(Reading, self.run.record["reading"])),
            length=loaded.length,
            generation=loaded.generation_settings if task.head == "lm" else None,
        )
        if adapters(model) and not grown(loaded):
            write_adapter(
                out / ADAPTER_DIRECTORY, model, loaded.family, base=self.run.record["model"]
            )

    def _score(self, record: Record) -> float:
        return worth(record["scores"][self._named(record["scores"])])

    def _named(self, scores: Mapping[str, float]) -> str:
        """The name of the score by which epochs are chosen."""
        return self.metric if self.metric in scores else BEST_PREFIX + self.metric

    def _say_best(self) -> None:
        if self.best is not None:
            self.run.best = f"{self.run.out} holds epoch {self.best['epoch']}, the best"


def _numbers(scores: Mapping[str, float]) -> dict[str, float]:
    """Those that JSON can hold."""
    return {name: score for name, score in scores.items() if math.isfinite(score)}


def check_metric(task: Task[Any, Any], metric: str | None) -> None:
    """Raises: ConfigError for one by which the epochs of a task cannot be chosen."""
    if metric is not None and metric not in task.score_names:
        raise ConfigError(
            f"metric: {task.name} has here no score {metric!r} to choose an epoch by; "
            f"{did_you_mean(metric, task.score_names)}"
        )


def read_scores(path: Path) -> Record:
    """What `Epochs.write` wrote. Raises: CheckpointError when it is damaged."""
    remedy = "start over in another --out"
    record = read_json(path, CheckpointError, remedy)
    match record:
        case {"metric": str(name), "dev": {**scores}} if name in scores:
            if record.get("digest") in (None, _digest(record)):
                assert isinstance(record, dict)
                return record
    raise CheckpointError(f"{path}: damaged; {remedy}")


def drop_weights(out: Path) -> None:
    """Take the weights of a finished run away; scores.json no longer vouches for them."""
    record = read_scores(out / SCORES)
    hashes = record.get("sha256", {})
    kept = {name: one for name, one in hashes.items() if not name.endswith(WEIGHTS)}
    if kept != hashes:
        record["sha256"] = kept
        record["digest"] = _digest(record)
        write_json(out / SCORES, record)
    for path in out.rglob(f"*{WEIGHTS}"):
        path.unlink()


def check_published(out: Path, hashes: Mapping[str, str]) -> None:
    """Raises: CheckpointError for a file of the model that is not as its epoch wrote it."""
    if (name := _changed(out, hashes)) is not None:
        raise CheckpointError(
            f"{out / name}: damaged, or changed since; run again in another --out"
        )


def _changed(out: Path, hashes: Mapping[str, str]) -> str | None:
    """The first of these files that is not there, or another."""
    for name, written in hashes.items():
        path = out / name
        if not fits(path, memory.installed()) or sha256(path) != written:
            return name
    return None


def _digest(record: Mapping[str, Any]) -> str:
    """A hash of all that scores.json says beside it."""
    rest = {name: value for name, value in record.items() if name != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _hashes(out: Path) -> dict[str, str]:
    """Return the hashes of the model's files, by their paths in the run directory."""
    # Another process may write checkpoints at the same time.
    parts = [path for path in out.iterdir() if path.name != CHECKPOINTS]
    paths = sorted([*parts, *(file for part in parts for file in part.rglob("*"))])
    return {
        path.relative_to(out).as_posix(): sha256(path)
        for path in paths
        if path.suffix in (".json", ".txt", WEIGHTS) and path.name not in (RUN, SCORES)
    }
