"""Evaluation after each epoch of fine-tuning, and selection of the best epoch."""

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
from bertkit.tasks.task import Feature, Reading, Task, by_example, group, policy_of_files, run_head
from bertkit.tasks.trained_columns import with_columns
from bertkit.training.dev_loss import dev_loss
from bertkit.training.run import Run

WEIGHTS = ".safetensors"
ADAPTER_DIRECTORY = "adapter"
"""Subdirectory that contains the LoRA adapters. The run directory contains the merged model."""

BEST_PREFIX = "best_"
"""Prefix of scores on the same examples on which the task was calibrated. Such scores are upper
bounds. The evaluation script of SQuAD uses the same prefix (`best_f1`)."""

Record = dict[str, Any]


def vocab_resized(loaded: Loaded) -> bool:
    """Return whether the vocabulary size differs from the size in the checkpoint.

    If so, LoRA adapters are not saved separately, because an adapter directory cannot store the
    resized embedding.
    """
    saved = loaded.settings.get(loaded.family.settings["vocab"], loaded.family.vocab)
    return bool(loaded.model.config.vocab != saved)


class Epochs:
    """Scores of all epochs of a run, and the model of the best epoch.

    A resumed run keeps the scores of its earlier epochs.

    Args:
        run: Run directory.
        task: The task.
        loaded: The loaded model, with all its heads. Only the head of the task is saved.
        learned: Features of train.
        examples: Examples of dev.
        features: Features of dev.
        max_batch_tokens: Maximum number of tokens per batch.
        metric: Name of the score by which the best epoch is selected. Default: the task's metric.
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
        self.records = [r for r in scored if self._score_name(r["scores"]) in r["scores"]]
        # The directory contains the model of the last epoch with hashes. This is the best epoch,
        # unless `_is_overwritten` returns True.
        written = (r for r in reversed(self.records) if "sha256" in r)
        best = next(written, None) or max(self.records, key=self._score, default=None)
        self._best: Record | None = best
        self._answered: tuple[Task[Any, Any], Sequence[Any]] | None = None
        self._resumed = self._best is not None
        self._set_message()

    @property
    def best(self) -> Record:
        """Record of the best epoch so far. It exists if an epoch has been scored."""
        assert self._best is not None
        return self._best

    def score(self, step: int, number: int) -> dict[str, float]:
        """Score an epoch on dev, and save the model if the epoch is the best so far.

        Args:
            step: Last step of the epoch.
            number: Number of the epoch, from 1.

        Returns:
            The scores, by name.

        Raises:
            ConfigError: If dev does not have the score by which the best epoch is selected.
        """
        model = self.run.state.masters.whole()
        if isinstance(self.task, Contrastive):
            self.task.fit_head(model, self.learned, self.max_batch_tokens)
        task, answers = self._predict(self.task, model)
        scores = task.score(answers, self.examples)
        if isinstance(task, Calibrated) and task.chosen_on(self.task):
            scores = {BEST_PREFIX + name: score for name, score in scores.items()}
        record: Record = {"step": step, "epoch": number, "scores": scores}
        self.records.append(record)
        listed = "  ".join(f"{name} {value:.4f}" for name, value in scores.items())
        say(f"epoch {number}: {listed}")
        if self._score_name(scores) not in scores:
            listed = ", ".join(scores)
            raise ConfigError(f"metric: dev has no score {self.metric!r}; use one of {listed}")
        lost = self._is_overwritten()
        if lost and self._score(record) <= self._score(self.best):
            say(f"the best epoch was overwritten before the run stopped; epoch {number} is kept")
        if self._best is None or lost or self._is_better(record, model):
            self._save(task, model)
            record["sha256"] = _hashes(self.run.out)
            self._best, self._answered = record, (task, answers)
            self._set_message()
        self.run.journal.write(record)
        return scores

    def _is_better(self, record: Record, model: Model) -> bool:
        """Return whether an epoch is better than the best so far.

        If the scores are equal, the epoch with the lower loss on dev is better.
        """
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
                self.examples, loaded.tokenizer, loaded.length, long=long, labeled=True
            )
            return loaded.model.encoder.precompute(features)

    def _is_overwritten(self) -> bool:
        """Return whether the directory contains the model of a later epoch than the best record.

        This happens if a run stops after saving the model of an epoch and before the next
        checkpoint. The resumed run repeats the epoch. Only the first call after resuming can return
        True.
        """
        if not self._resumed:
            return False
        self._resumed = False
        weights = {n: h for n, h in self.best.get("sha256", {}).items() if n.endswith(WEIGHTS)}
        return _changed(self.run.out, weights) is not None

    def check_best(self) -> None:
        """Raise TrainingError if no epoch has a finite value of the score for the best epoch."""
        if self._score(self.best) == -math.inf:
            raise TrainingError(
                f"dev: {self._score_name(self.best['scores'])} is not finite in any epoch; reduce "
                "the learning rate, or use another --metric"
            )

    def should_stop(self, patience: int | None) -> bool:
        """Return whether to stop because of `patience`, and print a message if so."""
        waited = self.records[-1]["epoch"] - self.best["epoch"]
        if patience is None or waited < patience:
            return False
        say(f"stopped early: no better score for {waited} epoch{'s' * (waited > 1)}")
        return True

    def report_best(self) -> None:
        """Print which epoch is saved, unless it is the last epoch."""
        if self.best["epoch"] < self.records[-1]["epoch"]:
            say(f"{self.run.best} by {self._score_name(self.best['scores'])}")

    def answers(self) -> Sequence[Any]:
        """Return the predictions of the best epoch on dev.

        Raises:
            CheckpointError: If the saved model has changed.
        """
        return self._best_predictions()[1]

    def _best_predictions(self) -> tuple[Task[Any, Any], Sequence[Any]]:
        """Return the calibrated task of the best epoch, and its predictions on dev."""
        if self._answered is None:  # The best epoch ended before the run was resumed.
            task, out = self.task, self.run.out
            check_published(out, self.best.get("sha256", {}))
            with quietly():  # Hide the warning that the run is not finished.
                saved = load(out, heads={task.head: task.build_head}, labels=task.labels)
            restored = type(task).restore(task.labels, saved.settings)
            self._answered = self._predict(restored, saved.model)
        return self._answered

    def calibration(self) -> dict[str, float]:
        """Compute the calibration error of the best epoch on dev; see `Calibrated.calibration`."""
        task, answers = self._best_predictions()
        return task.calibration(answers, self.examples) if isinstance(task, Calibrated) else {}

    def report(self) -> LabelReport | None:
        """Compute the scores of each label on dev, if the task has labels."""
        return compute_label_report(self.task, self.answers(), self.examples)

    def result(self, report: LabelReport | None = None) -> Record:
        """Return the content of `scores.json`, which marks the run as finished.

        Args:
            report: Scores of each label on dev.
        """
        scores = {**self.best["scores"], "epoch": self.best["epoch"]}
        record = {
            **self.run.record,
            "metric": self._score_name(scores),
            "dev": _finite(scores),
            **by_label(report),
            **({"calibration": errors} if (errors := self.calibration()) else {}),
            "epochs": [{"epoch": r["epoch"], **_finite(r["scores"])} for r in self.records],
            "sha256": self.best.get("sha256", {}),
        }
        record["digest"] = _digest(record)
        return record

    def _predict(self, task: Task[Any, Any], model: Model) -> tuple[Task[Any, Any], Sequence[Any]]:
        """Predict on dev in fp32. Return the task, calibrated on dev, and its predictions."""
        engine = Engine(model, max_batch_tokens=self.max_batch_tokens)
        head = engine.model.heads[task.head]
        rows = run_head(task, engine, self.features)
        outputs = by_example(self.examples, group(self.features), rows)
        answers = task.answers(outputs, head)
        fitted = task.calibrated(answers, self.examples) if isinstance(task, Calibrated) else task
        if fitted is not task:
            answers = fitted.answers(outputs, head)
        return fitted, answers

    def _save(self, task: Task[Any, Any], trained: Model) -> None:
        """Save the model with merged adapters and only the head of the task, and the adapters."""
        out, loaded = self.run.out, self.loaded
        model = Model(trained.encoder, {task.head: trained.heads[task.head]}, trained.decoder)
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
        if adapters(model) and not vocab_resized(loaded):
            write_adapter(
                out / ADAPTER_DIRECTORY, model, loaded.family, base=self.run.record["model"]
            )

    def _score(self, record: Record) -> float:
        return worth(record["scores"][self._score_name(record["scores"])])

    def _score_name(self, scores: Mapping[str, float]) -> str:
        """Return the name of the score by which the best epoch is selected."""
        return self.metric if self.metric in scores else BEST_PREFIX + self.metric

    def _set_message(self) -> None:
        """Set the message about the saved model, which is added to error messages of the run."""
        if self._best is not None:
            self.run.best = f"{self.run.out} contains epoch {self.best['epoch']}, the best"


def _finite(scores: Mapping[str, float]) -> dict[str, float]:
    """Return only the finite scores, because JSON cannot represent others."""
    return {name: score for name, score in scores.items() if math.isfinite(score)}


def check_metric(task: Task[Any, Any], metric: str | None) -> None:
    """Check that a task has the score by which the best epoch is selected.

    Args:
        task: The task.
        metric: Name of the score, or None for the task's default.

    Raises:
        ConfigError: If the task does not have the score.
    """
    if metric is not None and metric not in task.score_names:
        raise ConfigError(
            f"metric: {task.name} does not have the score {metric!r} with these settings; "
            f"{did_you_mean(metric, task.score_names)}"
        )


def read_scores(path: Path) -> Record:
    """Read the scores of a finished run.

    Args:
        path: Path of `scores.json`.

    Returns:
        The content of the file.

    Raises:
        CheckpointError: If the file is damaged.
    """
    remedy = "start over in another --out"
    record = read_json(path, CheckpointError, remedy)
    match record:
        case {"metric": str(name), "dev": {**scores}} if name in scores:
            if record.get("digest") in (None, _digest(record)):
                assert isinstance(record, dict)
                return record
    raise CheckpointError(f"{path}: damaged; {remedy}")


def drop_weights(out: Path) -> None:
    """Delete the weights of a finished run, and their hashes in `scores.json`."""
    record = read_scores(out / SCORES)
    hashes = record.get("sha256", {})
    remaining = {name: value for name, value in hashes.items() if not name.endswith(WEIGHTS)}
    if remaining != hashes:
        record["sha256"] = remaining
        record["digest"] = _digest(record)
        write_json(out / SCORES, record)
    for path in out.rglob(f"*{WEIGHTS}"):
        path.unlink()


def check_published(out: Path, hashes: Mapping[str, str]) -> None:
    """Check that the files of the model have not changed since they were written.

    Args:
        out: Run directory.
        hashes: SHA-256 hash of each file, by its path in the run directory.

    Raises:
        CheckpointError: If a file is missing or has changed.
    """
    if (name := _changed(out, hashes)) is not None:
        raise CheckpointError(
            f"{out / name}: missing, damaged or changed; start over in another --out"
        )


def _changed(out: Path, hashes: Mapping[str, str]) -> str | None:
    """Return the name of the first file that is missing or has changed, or None."""
    for name, expected in hashes.items():
        path = out / name
        if not fits(path, memory.installed()) or sha256(path) != expected:
            return name
    return None


def _digest(record: Mapping[str, Any]) -> str:
    """Return a hash of a record, without the digest that it contains."""
    rest = {name: value for name, value in record.items() if name != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _hashes(out: Path) -> dict[str, str]:
    """Return the hash of each file of the model, by its path in the run directory."""
    # Checkpoints are excluded, because another process may write them at the same time.
    parts = [path for path in out.iterdir() if path.name != CHECKPOINTS]
    paths = sorted([*parts, *(file for part in parts for file in part.rglob("*"))])
    return {
        path.relative_to(out).as_posix(): sha256(path)
        for path in paths
        if path.suffix in (".json", ".txt", WEIGHTS) and path.name not in (RUN, SCORES)
    }
