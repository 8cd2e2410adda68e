"""Experiments, which compare runs with different variants, combinations of settings, and seeds."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter
from msgspec import Meta, structs

from bertkit.checkpoint.run_directory import EXPERIMENT
from bertkit.config import (
    Count,
    Settings,
    decode,
    merged,
    nested,
    override,
    parse_changes,
    plain,
    read_toml_by_name,
)
from bertkit.console import say
from bertkit.data.row_errors import shorten_list
from bertkit.errors import BertkitError, CheckpointError, ConfigError, TrainingError, did_you_mean
from bertkit.metrics import mean_and_sd, worth
from bertkit.recipes.experiment_page import write_experiment_page
from bertkit.recipes.experiment_programs import FILES, Program, SharedExamples, open_program
from bertkit.recipes.runs import SEED_DIRECTORY, runs
from bertkit.storage import check_out, read_json, write_json

EXPERIMENTS = Path(__file__).parents[1] / "configs" / "experiments"
"""Directory of the experiments that are part of bertkit."""

OPTIONS = ("--out", "--data", "--seeds", "--variant", "--resume")
"""Options of the command that are not settings of an experiment."""

FORBIDDEN = re.compile(r"[^\w.+ -]")
"""Matches a character that must not occur in the name of a directory."""

UNSUITABLE = re.compile(rf"{FORBIDDEN.pattern}|^[. ]|[. ]$")
"""Matches names that the directory of a variant cannot have."""


class Experiment(Settings, frozen=True):
    """Content of an experiment file: the program, and the settings of its runs."""

    recipe: Literal["finetune", "distill", "pretrain"] = "finetune"
    """Program to run."""
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    """Settings of all runs: the arguments of the program's Python function, except `out`."""
    variants: Annotated[dict[str, dict[str, Any]], Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: {"": {}}
    )
    """Name of each variant, and the settings in which it differs from `settings`."""
    grid: dict[str, Annotated[list[Any], Meta(min_length=1)]] = msgspec.field(default_factory=dict)
    """Values to try for each setting. In every variant, all combinations of these values are run,
    and the combination with the best score on dev is selected."""
    seeds: Count = 1
    """Number of runs per combination. Their seeds are consecutive and begin with `seed`."""
    keep: Literal["best", "all"] = "best"
    """Fine-tuned weights to keep: only those of the best combination of each variant, or all."""


@dataclass
class Cell:
    """One combination of settings of a variant, with the results of its runs.

    Args:
        name: Directory of the runs within the output directory, such as
            `bert/learning_rate=1e-4,epochs=2`.
        program: The program with these settings.
        scores: Scores on dev of each run that finished, one run per seed.
        metric: Name of the score by which combinations are compared.
        failed: Error message of each run that failed, by the directory of the run.
    """

    name: str
    program: Program
    scores: list[Mapping[str, float]] = field(default_factory=list)
    metric: str = ""
    failed: dict[str, str] = field(default_factory=dict)

    def folders(self, out: Path) -> list[Path]:
        """Return the directories of the runs."""
        return [out / self.name / f"seed-{seed}" for seed in self.program.seeds]

    def rank(self) -> float:
        """Return the mean of `metric` over the runs, negated if lower values are better."""
        mean = self.summary()[self.metric]["mean"]
        return worth(-mean if self.metric.endswith(("loss", "perplexity")) else mean)

    def summary(self) -> dict[str, dict[str, Any]]:
        """Return, for each score, the mean, the standard deviation, and the values of all seeds."""
        names = [name for name in self.scores[0] if all(name in run for run in self.scores)]
        return {name: mean_and_sd([run[name] for run in self.scores]) for name in names}


def experiment(
    file: str | Path | Mapping[str, Any],
    /,
    *changes: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)],
    out: Path | str,
    data: Path | str | None = None,
    seeds: Count | None = None,
    variants: Sequence[str] | None = None,
    resume: bool = False,
    print_config: Annotated[bool, Parameter(negative="", show=False)] = False,
) -> dict[str, Any]:
    """Run a program with several settings and seeds, and compare scores.

    Each run has the directory OUT/VARIANT/COMBINATION/seed-N. If a run fails, its error is printed,
    and the experiment continues. In each variant, the combination with the best mean score on dev
    is selected. Only its runs are scored on the test set, once. OUT also contains experiment.json
    and experiment.html. `bertkit runs OUT` prints the table of runs in other formats.

    Args:
        file: TOML file of the experiment, or the name of an experiment that is part of bertkit,
            such as glue. Options change its settings, such as --settings.model MODEL.
        changes: Settings to change, such as settings.epochs=3.
        out: Output directory. It must not exist.
        data: Directory to which the paths of train, dev and test are relative. Default: the
            current directory.
        seeds: Number of seeds. It replaces the number in the file.
        variants: Name of a variant to run; repeat the option for each variant. Default: all.
        resume: Whether to continue an experiment that was interrupted or extended.
        print_config: Whether to return the complete experiment file, with the changed settings,
            instead of running it.

    Returns:
        The result of each variant, by its name: the name and the run directories of the best
        combination, the metric, the mean, the standard deviation and the values of each score, and
        the error messages of failed runs. If `print_config` is set, the content of the experiment
        file instead.

    Raises:
        ConfigError: If a setting is invalid. It is raised before the first run. If settings do not
            suit the model, only the affected runs fail.
        DataError: If a file is missing or has an invalid row. It is raised before the first run.
        TrainingError: If every run failed.
    """
    plan, out = _read(file, changes, seeds), Path(out)
    for name in variants or ():
        if name not in plan.variants:
            raise ConfigError(f"variant {name!r} not found; {did_you_mean(name, plan.variants)}")
    if print_config:
        return _record(plan)
    check_out(out, resume=resume)
    examples = SharedExamples(None if data is None else Path(data))
    cells = {name: _cells(plan, name, examples) for name in variants or plan.variants}
    total = plan.seeds * sum(map(len, cells.values()))
    say(f"experiment: {total:,} runs")
    done, results = 0, _results(out)
    for variant, combinations in cells.items():
        for cell in combinations:
            _run(cell, out, done, total)
            done += plan.seeds
        results[variant] = _result(combinations, out, keep=plan.keep)
    if not any("best" in result for result in results.values()):
        first = next(text for result in results.values() for text in result["failed"].values())
        raise TrainingError(f"experiment: every run failed: {first}")
    results = {name: results[name] for name in plan.variants if name in results}
    record = {"plan": _record(plan), "result": results}
    write_json(out / EXPERIMENT, record)
    write_experiment_page(out, record)
    say(runs([str(out)]) or "")
    return results


def _results(out: Path) -> dict[str, Any]:
    """Return the earlier result of each variant, or an empty dict for a new experiment."""
    if not (out / EXPERIMENT).exists():
        return {}
    record = read_json(out / EXPERIMENT, CheckpointError, "delete the file and use --resume")
    return dict(record["result"])


def _read(
    file: str | Path | Mapping[str, Any], changes: Sequence[str], seeds: int | None
) -> Experiment:
    """Read an experiment file, and apply changes to its settings.

    Raises:
        ConfigError: If a setting is invalid.
    """
    source = file if isinstance(file, Mapping) else read_toml_by_name(file, EXPERIMENTS)
    plan = decode(Experiment, override(source, list(parse_changes(changes, OPTIONS))))
    if seeds is not None:
        plan = structs.replace(plan, seeds=seeds)
    for name in plan.variants:
        is_nameless = not name and len(plan.variants) > 1
        if is_nameless or UNSUITABLE.search(name) or SEED_DIRECTORY.fullmatch(name):
            raise ConfigError(f"variants: {name!r} cannot be a directory name; rename the variant")
    if "seed" in plan.grid:
        raise ConfigError("grid.seed: the grid cannot contain seeds; set `seeds` instead")
    return plan


def _cells(plan: Experiment, variant: str, examples: SharedExamples) -> list[Cell]:
    """Check the settings and data of a variant, and return its combinations.

    Raises:
        ConfigError: If a setting is invalid, or scores cannot be compared.
        DataError: If a file is missing or has an invalid row.
    """
    cells: dict[str, Cell] = {}
    for values in itertools.product(*plan.grid.values()):
        combination = dict(zip(plan.grid, values, strict=True))
        parts = (f"{key}={FORBIDDEN.sub('-', str(value))}" for key, value in combination.items())
        name = "/".join(filter(None, [variant, ",".join(parts)]))
        if name in cells:
            raise ConfigError(f"grid: two combinations have the name {name}; remove one of them")
        settings = merged(merged(plan.settings, plan.variants[variant]), nested(combination))
        try:
            program = open_program(plan.recipe, settings, plan.seeds, examples)
        except BertkitError as error:
            raise type(error)(f"{name}: {error}" if name else str(error)) from None
        cells[name] = Cell(name, program)
    metrics = {cell.program.metric for cell in cells.values()}
    if len(metrics) > 1:
        raise ConfigError(
            f"grid: combinations are scored by {' and '.join(sorted(map(str, metrics)))}, which "
            "cannot be compared; use variants instead"
        )
    return list(cells.values())


def _run(cell: Cell, out: Path, done: int, total: int) -> None:
    """Run a combination with every seed."""
    pairs = zip(cell.folders(out), cell.program.seeds, strict=True)
    for number, (folder, seed) in enumerate(pairs, done + 1):
        name = str(folder.relative_to(out))
        try:
            cell.metric, scores = cell.program.run(seed, folder)
        except BertkitError as error:
            cell.failed[name] = str(error)
            say(f"{number:,} of {total:,}: {name}: failed: {error}")
        else:
            cell.scores.append(scores)
            say(f"{number:,} of {total:,}: {name}: {cell.metric} {scores[cell.metric]:.4f}")


def _result(cells: Sequence[Cell], out: Path, *, keep: str) -> dict[str, Any]:
    """Select the best combination of a variant, and return its scores.

    A combination with a failed run is not selected. The weights of the other combinations are
    deleted, unless `keep` is "all".
    """
    failed = {name: error for cell in cells for name, error in cell.failed.items()}
    finished = [cell for cell in cells if not cell.failed]
    if not finished:
        return {"failed": failed}
    best = _select(finished, out)
    folders = best.folders(out)
    tests = [best.program.score_test(folder, len(cells)) for folder in folders]
    for cell in finished:
        if cell is not best and keep == "best":
            cell.program.drop_weights(cell.folders(out))
    return {
        "best": best.name,
        "runs": [str(folder.relative_to(out)) for folder in folders],
        "metric": best.metric,
        **best.summary(),
        **{name: mean_and_sd([scores[name] for scores in tests]) for name in tests[0]},
        **({"failed": failed} if failed else {}),
    }


def _select(cells: Sequence[Cell], out: Path) -> Cell:
    """Return the combination with the best mean score. If scores are equal, compare dev losses."""
    ranks = [cell.rank() for cell in cells]
    equal = [cell for cell, rank in zip(cells, ranks, strict=True) if rank == max(ranks)]
    best = equal[0]
    if len(equal) > 1:
        best = min(equal, key=lambda cell: cell.program.dev_loss(cell.folders(out)))
    if len(cells) > 1:
        say(f"{best.name}: best {best.metric} on dev of {len(cells)} combinations")
    if others := [cell.name for cell in equal if cell is not best]:
        say(f"other combinations have the same score: {shorten_list(map(repr, others))}")
    return best


def _record(plan: Experiment) -> dict[str, Any]:
    """Convert the experiment to plain data, in which rows in memory are replaced by their type."""

    def without_rows(settings: Mapping[str, Any]) -> dict[str, Any]:
        kept = (str, float, Mapping)
        rows = {n: v for n, v in settings.items() if n in FILES and not isinstance(v, kept)}
        named = {n: str(v) if isinstance(v, Path) else type(v).__name__ for n, v in rows.items()}
        return {**settings, **named}

    variants = {name: without_rows(settings) for name, settings in plan.variants.items()}
    return plain(structs.replace(plan, settings=without_rows(plan.settings), variants=variants))
