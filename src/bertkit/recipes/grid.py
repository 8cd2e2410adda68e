"""Fine-tunings with each combination of some settings, as one table; the best by dev is kept."""

from __future__ import annotations

import itertools
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertkit import tasks
from bertkit.checkpoint.run_directory import GRID, SCORES
from bertkit.config import Settings, decode, override, paths, plain
from bertkit.console import quietly, say
from bertkit.data.row_errors import some
from bertkit.errors import CheckpointError, ConfigError, TrainingError, did_you_mean
from bertkit.models.lora import rate_factor
from bertkit.recipes.data_checks import check_answers, check_rows, show_labels, unlearned
from bertkit.recipes.final_test import read_test, score_test
from bertkit.recipes.finetune import Finetune, finetune
from bertkit.recipes.finetune_report import best_run, describe, publish
from bertkit.recipes.runs import runs
from bertkit.recipes.seeds import finetune_seeds
from bertkit.storage import check_out, write_json
from bertkit.tasks.confusion import read_report
from bertkit.tasks.examples import RowsLike, check_examples
from bertkit.tasks.held_out import take_rows
from bertkit.tasks.task import Reading, Task
from bertkit.training.epochs import drop_weights, read_scores, read_seeds

MAX_RUNS = 100
"""Runs that are begun without asking."""

NAME = re.compile(r"[^\w.+]")
"""What a folder's name has not."""


def finetune_grid(
    grid: Sequence[str],
    count: int,
    task: str | type[Task[Any, Any]],
    model: str | Path,
    *,
    train: RowsLike,
    dev: RowsLike | float,
    test: RowsLike | float | None = None,
    out: Path | str,
    settings: Finetune | None = None,
    options: Settings | Mapping[str, Any] | None = None,
    reading: Reading | None = None,
    resume: bool = False,
    keep_all: bool = False,
    **rest: Any,
) -> dict[str, Any]:
    """Fine-tune with each combination of values, and `count` seeds of each; the best one's scores.

    A line of `grid` is `learning_rate=1e-4,3e-4`, of a setting or of an option of the task. Each
    combination is a folder of its own in `out`, which becomes the model of the best by dev; `test`
    scores that one alone, once. The folders of others keep all but their weights, unless
    `keep_all`. What is finished is not run again with `resume`. A combination that does not learn,
    such as one whose loss is not finite, is told, and the others go on.
    Raises: ConfigError for a value that does not fit, before the first run; TrainingError where no
    combination learned.
    """
    kind, out = tasks.find(task) if isinstance(task, str) else task, Path(out)
    settings = settings or Finetune()
    if not isinstance(options, Settings):
        options = decode(kind.Options, dict(options or {}))
    tries = _tries(grid, options)
    _ask(math.prod(len(values) for values in tries.values()) * count)
    cells = _cells(tries, kind, settings, options)
    check_out(out, resume=resume)
    data = take_rows(kind, train, dev, test, reading, options=options, seed=settings.seed)
    rows, scored, held = data["train"], data["dev"], data.get("test")
    posed = kind.from_examples(rows.examples, options)
    asked = {(its.metric, str(own)): own for its, own in cells.values()}
    metrics = {
        metric or kind.from_examples(rows.examples, own).metric
        for (metric, _), own in asked.items()
    }
    if len(metrics) > 1:
        raise ConfigError(
            f"grid: combinations are scored by {' and '.join(sorted(metrics))}, which do not "
            "compare; run them apart"
        )
    if held is not None:
        check_examples(posed, held.examples)
    check_rows(posed, data, options)
    say(f"grid: {len(cells):,} combinations, each told when it is done")
    scores: dict[str, dict[str, float]] = {}
    metric = best = ""
    failed: TrainingError | None = None
    for place, (name, (its, own)) in enumerate(cells.items(), 1):
        given: dict[str, Any] = {"train": rows, "dev": scored, "settings": its, "options": own}
        given |= {"reading": reading, "out": out / name, "resume": "auto" if resume else False}
        try:
            with quietly():
                if count == 1:
                    finetune(kind, model, **given, **rest)
                else:
                    finetune_seeds(count, kind, model, **given, **rest)
        except TrainingError as error:  # what it took to learn that may have been hours
            failed = error
            say(f"{place} of {len(cells)}: {name}: failed: {error}")
            continue
        scores[name] = _scores(out / name)
        metric = metric or read_scores(out / name / SCORES)["metric"]
        say(f"{place} of {len(cells)}: {name}: {metric} {scores[name][metric]:.4f}")
        before, best = best, _best(out, scores, metric, kind, scored.examples)
        if not keep_all:
            for worse in {before, name} - {best, ""}:
                for folder in (*(out / worse).glob("seed-*"), out / worse):
                    drop_weights(folder)
    if failed is not None and not scores:
        raise failed
    if not _whole(out / best):
        raise CheckpointError(
            f"{out / best}: is the best now, and its weights were not kept; remove the folder, and "
            "go on with --resume"
        )
    say(runs([str(out / name) for name in scores]) or "")
    _say_best(best, {name: those[metric] for name, those in scores.items()}, metric)
    publish(out / best, out, of=len(scores))
    record = read_scores(out / SCORES)
    report = read_report(record)
    show_labels(report, "dev")
    rates = [read_scores(out / one / SCORES)["settings"]["learning_rate"] for one in scores]
    rank = record["settings"]["lora"]["rank"]
    factor = rate_factor(rank, head=posed.head, batching=posed.batching)
    check_answers(
        report,
        "dev",
        unlearned=unlearned(posed, record["dev"], scored.examples),
        settings=record["settings"],
        rates=rates,
        factor=factor,
    )
    if held is not None:
        score_test(out, kind, held, settings.device)
        describe(out, of=len(scores))
    write_json(out / GRID, {"grid": list(grid), "metric": metric, "best": best, "scores": scores})
    return {"best": best, **scores[best], **read_test(out)}


def _tries(grid: Sequence[str], options: Settings) -> dict[str, list[str]]:
    """The values of each setting or option of the task that the lines name, as they are written.

    Raises: ConfigError for a line or a name that does not fit.
    """
    tries: dict[str, list[str]] = {}
    for line in grid:
        name, _, values = line.partition("=")
        each = [value.strip() for value in values.split(",")]
        name = name.strip().replace("-", "_")
        if not all(each):
            raise ConfigError(f"grid: {line!r} is not like learning_rate=1e-4,3e-4")
        known = [*paths(Finetune), *options.__struct_fields__]
        if name not in known:
            raise ConfigError(f"grid: {name}: no such setting; {did_you_mean(name, known)}")
        if name in tries:
            raise ConfigError(f"grid: {name}: is named twice; give all its values in one line")
        if name == "seed":
            raise ConfigError("grid: seed: nothing to choose among; take --seeds")
        tries[name] = list(dict.fromkeys(each))
    return tries


def _cells(
    tries: Mapping[str, Sequence[str]],
    kind: type[Task[Any, Any]],
    settings: Finetune,
    options: Settings,
) -> dict[str, tuple[Finetune, Settings]]:
    """By the name of its folder each combination, as settings and options of the task.

    Raises: ConfigError for a value that does not fit.
    """
    cells = {}
    for values in itertools.product(*tries.values()):
        cell = list(zip(tries, values, strict=True))
        asked = [one for one in cell if one[0] in paths(Finetune)]
        of_task = [one for one in cell if one not in asked]
        folder = ",".join(f"{name}={NAME.sub('-', value)}" for name, value in cell)
        if folder in cells:
            raise ConfigError(f"grid: {folder}: two combinations have this name; leave one out")
        cells[folder] = (
            decode(Finetune, override(plain(settings), asked)),
            decode(kind.Options, override(plain(options), of_task)),
        )
    return cells


def _say_best(best: str, scores: Mapping[str, float], metric: str) -> None:
    """Say which combination is kept, and which others are as good by their `scores`."""
    as_good = [name for name, score in scores.items() if score == scores[best] and name != best]
    if as_good and len(as_good) + 1 == len(scores):
        say(
            f"{best}: kept, and no better than the others: by {metric} on dev all {len(scores)} "
            "are alike; more rows of dev, or values further apart, may tell them apart"
        )
        return
    chosen = f"the best of {len(scores)} by {metric} on dev"
    say(f"{best}: {chosen}, which chose it; expect a little less of others")
    if as_good:
        say(f"as good on dev: {some(map(repr, as_good))}")


def _best(
    out: Path,
    scores: Mapping[str, Mapping[str, float]],
    metric: str,
    kind: type[Task[Any, Any]],
    dev: Sequence[Any],
) -> str:
    """Return the combination with the highest score, and of equal ones the lowest loss on dev.

    Of equal combinations, those with weights precede the others.
    """
    names = sorted(scores, key=lambda name: not _whole(out / name))
    each = [scores[name][metric] for name in names]
    return best_run([out / name for name in names], each, kind, dev).relative_to(out).as_posix()


def _whole(folder: Path) -> bool:
    """Whether a run's weights are there."""
    return any(folder.glob("*.safetensors"))


def _scores(folder: Path) -> dict[str, float]:
    """Those of a run on dev; the means of several seeds."""
    if seeds := read_seeds(folder):
        return {name: score["mean"] for name, score in seeds.items()}
    scores = read_scores(folder / SCORES)["dev"]
    return {name: score for name, score in scores.items() if name != "epoch"}


def _ask(count: int) -> None:
    """Raises: ConfigError for more runs than anybody may have meant, unless they say so."""
    if count <= MAX_RUNS:
        return
    sentence = f"grid: {count:,} runs, and {MAX_RUNS} are begun without asking"
    if not sys.stdin.isatty():
        raise ConfigError(f"{sentence}; name fewer values, or start it at a terminal")
    print(f"{sentence}. Begin? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ConfigError(f"{sentence}; name fewer values")
