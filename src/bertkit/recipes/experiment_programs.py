"""Programs that experiments run: fine-tuning, distillation, and pretraining."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit import tasks
from bertkit.checkpoint.run_directory import SCORES, TEST
from bertkit.config import Settings, merged, override, with_keywords
from bertkit.console import quietly
from bertkit.engine.engine import MAX_BATCH_TOKENS
from bertkit.errors import CheckpointError, ConfigError
from bertkit.nn.precision import resolve, resolve_device
from bertkit.objectives.distill import Terms
from bertkit.pipelines import answering
from bertkit.recipes.distill import distill
from bertkit.recipes.final_test import read_test, score_test
from bertkit.recipes.finetune import Finetune, finetune
from bertkit.recipes.model_card import write_card
from bertkit.recipes.model_sizes import PRETRAININGS
from bertkit.recipes.pretrain import pretrain
from bertkit.recipes.pretrain_config import PretrainConfig, TestScorer, config_class, read_config
from bertkit.recipes.run_file import read_run_file
from bertkit.storage import read_json, sha256, write_json
from bertkit.tasks.capabilities import Calibrated
from bertkit.tasks.examples import Examples, check_examples
from bertkit.tasks.held_out import take_rows
from bertkit.tasks.task import Reading, Task, policy_of_files
from bertkit.training.dev_loss import dev_loss
from bertkit.training.epochs import check_metric, drop_weights, read_scores

Scores = Mapping[str, float]

FILES = ("train", "dev", "test")
"""Names of the settings that contain examples."""


class SharedExamples:
    """Cache of examples, so that each file is read only once for all runs.

    Args:
        data: Directory to which paths are relative. Default: the current directory.
    """

    def __init__(self, data: Path | None) -> None:
        self.data = data
        self._read: dict[Any, dict[str, Examples]] = {}

    def take(
        self,
        task: type[Task[Any, Any]],
        settings: Mapping[str, Any],
        options: Any,
        reading: Reading,
        seed: int,
    ) -> dict[str, Examples]:
        """Read the examples of the settings `train`, `dev` and `test` for a task.

        Args:
            task: Class of the task.
            settings: Settings of the run.
            options: Options of the task.
            reading: Columns and format of the files.
            seed: Random seed that decides which examples of train are held out.

        Returns:
            The examples, under the names train, dev and, if it is set, test.

        Raises:
            ConfigError: If train or dev is missing.
            DataError: If a file is missing or has an invalid row.
        """
        for name in ("train", "dev"):
            _required(settings, name)
        files = [self.locate(settings.get(name)) for name in FILES]
        names = (file if isinstance(file, str | Path | float) else id(file) for file in files)
        key = (task, repr(options), repr(reading), seed, *names)
        if key not in self._read:
            train, dev, test = files
            self._read[key] = take_rows(task, train, dev, test, reading, options=options, seed=seed)
        return self._read[key]

    def locate(self, file: Any) -> Any:
        """Return the path of a file in the data directory. Return rows in memory unchanged."""
        return self.data / file if self.data and isinstance(file, str | Path) else file


@dataclass(frozen=True)
class FinetuningProgram:
    """Program that fine-tunes or distills a model.

    Args:
        function: `finetune` or `distill`.
        arguments: Arguments of the function, except the examples and the seed.
        task: Class of the task.
        data: Examples under the names train, dev and, optionally, test.
        device: Device of the computation.
        seeds: Seeds of the runs.
        metric: Name of the score by which runs are compared.
    """

    function: Callable[..., Scores]
    arguments: Mapping[str, Any]
    task: type[Task[Any, Any]]
    data: Mapping[str, Examples]
    device: str
    seeds: range
    metric: str | None

    def run(self, seed: int, out: Path) -> tuple[str, Scores]:
        """Start or resume the run with this seed; return the metric's name, and the best scores."""
        train, dev = self.data["train"], self.data["dev"]
        with quietly():
            scores = self.function(
                **self.arguments, train=train, dev=dev, seed=seed, out=out, resume="auto"
            )
        skipped = ("epoch", *read_test(out))
        scores = {name: score for name, score in scores.items() if name not in skipped}
        return read_scores(out / SCORES)["metric"], scores

    def dev_loss(self, folders: Sequence[Path]) -> float:
        """Return the mean loss of the runs on dev. It is inf if weights of a run were deleted."""
        return sum(map(self._loss, folders)) / len(folders)

    def _loss(self, folder: Path) -> float:
        if not any(folder.glob("*.safetensors")):
            return math.inf
        with quietly():
            model = answering(folder, self.task)
            features = model.task.features(
                self.data["dev"].examples,
                model.loaded.tokenizer,
                model.loaded.length,
                long=policy_of_files(model.task),
                labeled=True,
            )
        return dev_loss(model.task, model.loaded.model, features, MAX_BATCH_TOKENS)

    def drop_weights(self, folders: Sequence[Path]) -> None:
        """Delete the weights of runs that finished."""
        for folder in folders:
            drop_weights(folder)

    def score_test(self, folder: Path, num_candidates: int) -> Scores:
        """Score a selected run on the test set, if it has no test scores, and write its model card.

        Raises:
            CheckpointError: If the weights were deleted when another combination was selected.
        """
        if not any(folder.glob("*.safetensors")):
            raise CheckpointError(
                f"{folder}: this run is now the best, but its weights were deleted when another "
                "run was selected; delete the directory and use --resume"
            )
        if "test" in self.data and not (folder / TEST).exists():
            score_test(folder, self.task, self.data["test"], self.device)
        write_card(folder, read_scores(folder / SCORES), num_candidates=num_candidates)
        return read_test(folder)


@dataclass(frozen=True)
class PretrainingProgram:
    """Program that pretrains a model with the settings of a run file.

    Args:
        settings: Settings of the run file.
        corpus: Directory or address of the corpus.
        seeds: Seeds of the runs.
        test: Name and hash of the test set, and the function that scores a run on it; None if there
            is no test set.
    """

    settings: Mapping[str, Any]
    corpus: str
    seeds: range
    test: tuple[Mapping[str, str], TestScorer] | None
    metric: None = None

    def run(self, seed: int, out: Path) -> tuple[str, Scores]:
        """Start or resume the run with this seed; return the name of the metric, and the scores."""
        settings = override(self.settings, [("train.seed", str(seed))])
        with quietly():
            scores = pretrain(settings, corpus=self.corpus, out=out, resume="auto")
        return next(iter(scores)), scores

    def dev_loss(self, folders: Sequence[Path]) -> float:
        """Return 0, because the loss is already the score by which runs are compared."""
        return 0.0

    def drop_weights(self, folders: Sequence[Path]) -> None:
        """Delete nothing, because the weights are the result of pretraining."""

    def score_test(self, folder: Path, num_candidates: int) -> Scores:
        """Score a run on the test set, unless the run already has scores on this test set."""
        if self.test is not None:
            record, score = self.test
            path = folder / TEST
            stored = read_json(path, CheckpointError, "delete the file") if path.exists() else None
            if not isinstance(stored, dict) or stored.get("sha256") != record["sha256"]:
                with quietly():
                    write_json(path, {**record, "scores": score(folder)})
        return read_test(folder)


Program = FinetuningProgram | PretrainingProgram


def open_program(
    recipe: str, settings: Mapping[str, Any], seeds: int, examples: SharedExamples
) -> Program:
    """Check the settings of a program, and return the program.

    Args:
        recipe: Name of the program: finetune, distill or pretrain.
        settings: Settings of the program.
        seeds: Number of seeds.
        examples: Cache of the examples.

    Raises:
        ConfigError: If a setting is invalid.
        DataError: If a file is missing or has an invalid row.
    """
    programs: dict[str, Callable[..., Program]] = {
        "finetune": _finetuning,
        "distill": _distillation,
        "pretrain": _pretraining,
    }
    return programs[recipe](settings, seeds, examples)


def _finetuning(
    settings: Mapping[str, Any], seeds: int, examples: SharedExamples
) -> FinetuningProgram:
    """Return a program that calls `bertkit.finetune`, whose arguments are `settings`."""
    task = tasks.find(_required(settings, "task"))
    arguments, keywords = _split(settings, ("task", "model", "settings", "options", "reading"))
    groups: dict[type[Settings], Any] = {
        Finetune: arguments.get("settings"),
        task.Options: arguments.get("options"),
        Reading: arguments.get("reading"),
    }
    training, options, reading = with_keywords("finetune", groups, keywords)
    _required(settings, "model")
    data = examples.take(task, settings, options, reading, training.seed)
    return _checked(finetune, {**arguments, **keywords}, task, options, data, training, seeds)


def _distillation(
    settings: Mapping[str, Any], seeds: int, examples: SharedExamples
) -> FinetuningProgram:
    """Return a program that calls `bertkit.distill`, whose arguments are `settings`."""
    teacher = _required(settings, "teacher")
    names = ("teacher", "task", "student", "layers", "follow", "settings", "terms", "reading")
    arguments, keywords = _split(settings, names)
    groups: dict[type[Settings], Any] = {
        Finetune: arguments.get("settings"),
        Terms: arguments.get("terms"),
        Reading: arguments.get("reading"),
    }
    training, _, reading = with_keywords("distill", groups, keywords)
    origin = answering(teacher, arguments.get("task")).task
    options = origin.uncalibrated() if isinstance(origin, Calibrated) else origin.options
    task = type(origin)
    data = examples.take(task, settings, options, reading, training.seed)
    return _checked(distill, {**arguments, **keywords}, task, options, data, training, seeds)


def _pretraining(
    settings: Mapping[str, Any], seeds: int, examples: SharedExamples
) -> PretrainingProgram:
    """Return a pretraining program from `config`, `corpus`, `test`, and settings of run files."""
    corpus = str(_required(settings, "corpus"))
    changes = {n: v for n, v in settings.items() if n not in ("config", "corpus", "test")}
    data = merged(read_run_file(settings["config"]) if "config" in settings else {}, changes)
    first, test, family = 0, None, str(data.get("family"))
    if family not in PRETRAININGS:
        text = config_class(data).open_text(corpus)
        config = read_config(data, text.tokenizer())
        resolve(config.train.precision, resolve_device(config.train.device, "train.device"))
        first = config.train.seed
        if "test" in settings:
            test = _read_test_set(config, examples.locate(settings["test"]))
    elif "test" in settings:
        raise ConfigError(f"test is not supported with family = {family!r}; remove test")
    return PretrainingProgram(data, corpus, range(first, first + seeds), test)


def _read_test_set(config: PretrainConfig, file: Any) -> tuple[Mapping[str, str], TestScorer]:
    """Return the name and the hash of a test set, and the function that scores a run on it."""
    if not isinstance(file, str | Path):
        raise ConfigError(f"test: expected a file, got {type(file).__name__}")
    with quietly():
        score = config.read_test(Path(file))
    return {"file": str(file), "sha256": sha256(Path(file))}, score


def _split(
    settings: Mapping[str, Any], names: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split settings into the settings with these names and all others, without `FILES`."""
    arguments = {name: value for name, value in settings.items() if name in names}
    rest = {n: value for n, value in settings.items() if n not in names and n not in FILES}
    return arguments, rest


def _required(settings: Mapping[str, Any], name: str) -> Any:
    if name not in settings:
        raise ConfigError(f"settings.{name}: this setting is required")
    return settings[name]


def _checked(
    function: Callable[..., Scores],
    arguments: Mapping[str, Any],
    task: type[Task[Any, Any]],
    options: Settings,
    data: Mapping[str, Examples],
    training: Finetune,
    seeds: int,
) -> FinetuningProgram:
    """Check the examples, and return the program that trains on them."""
    resolve(training.precision, resolve_device(training.device))
    fitted = task.from_examples(data["train"].examples, options)
    check_metric(fitted, training.metric)
    for part in data.values():
        check_examples(fitted, part.examples)
    return FinetuningProgram(
        function,
        {name: value for name, value in arguments.items() if name != "seed"},
        task,
        data,
        training.device,
        range(training.seed, training.seed + seeds),
        training.metric or fitted.metric,
    )
