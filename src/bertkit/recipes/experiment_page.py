"""The HTML page of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit.config import flat
from bertkit.recipes.final_test import TEST_PREFIX
from bertkit.recipes.runs import table_of_runs
from bertkit.view.chart import score_bars
from bertkit.view.figures import Table
from bertkit.view.page import write_report


def write_experiment_page(out: Path, record: Mapping[str, Any]) -> None:
    """Write `experiment.html`, with charts of the selected combinations and a table of all runs.

    Args:
        out: Directory of the experiment.
        record: Content of `experiment.json`.
    """
    names, rows = table_of_runs([out])
    results = record["result"].values()
    failed = [item for result in results for item in result.get("failed", {}).items()]
    settings = [(name, str(value)) for name, value in flat(record["plan"]).items()]
    write_report(
        out / "experiment.html",
        "experiment.html",
        charts=_charts(record["result"]),
        runs=Table("Runs", rows, names),
        failed=Table("Failed", failed, ("run", "message")),
        settings=Table("Settings", settings),
    )


def _charts(result: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return charts of the compared scores on dev and, if there is a test set, on test.

    If the score compared on dev was not computed on the test set, the first score of the test set
    is shown instead.
    """
    charts = {}
    result = {name: row for name, row in result.items() if "best" in row}
    for metric in dict.fromkeys(row["metric"] for row in result.values()):
        rows = {name: row for name, row in result.items() if row["metric"] == metric}
        expected = TEST_PREFIX + metric.removeprefix("best_")
        tests = [score for row in rows.values() for score in row if score.startswith(TEST_PREFIX)]
        test = expected if expected in tests else next(iter(tests), expected)
        for score, split in ((metric, "dev"), (test, "test")):
            scores = {name or "runs": row[score] for name, row in rows.items() if score in row}
            if scores:
                charts[f"{score.removeprefix(TEST_PREFIX)} on {split}"] = score_bars(scores, score)
    return charts
