"""Tables of runs: differing settings, duration, scores, and means over seeds."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.factories import tiny_folder

from bertkit import cli
from bertkit.errors import CheckpointError
from bertkit.metrics import mean_and_sd
from bertkit.recipes.finetune import Finetune, finetune
from bertkit.recipes.runs import runs
from bertkit.tasks.classify import Classify
from bertkit.tasks.labeled_text import LabelExample
from bertkit.text.vocabulary_training import train as train_tokenizer


def rows(count: int) -> list[LabelExample]:
    words = [("class", "thing"), ("loop", "doing")]
    pairs = [(i, *words[i % 2]) for i in range(count)]
    return [LabelExample(f"the {w} number {i}", None, label, f"rows:{i}") for i, w, label in pairs]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    tokenizer = train_tokenizer(english[:5], kind="wordpiece", size=300)
    base = tiny_folder(folder / "base", tokenizer, "mlm", "nsp", hidden=16, intermediate=16)
    given: dict[str, Any] = {"train": rows(32), "dev": rows(8)}
    settings = Finetune(epochs=2, batch_size=8, precision="fp32")
    for seed in range(2):
        out = folder / "a_b" / f"seed-{seed}"
        finetune(Classify, base, out=out, settings=replace(settings, seed=seed), **given)
    slower = Finetune(epochs=2, batch_size=16, precision="fp32")
    finetune(Classify, base, out=folder / "slower", settings=slower, **given)
    return folder


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def test_table_averages_seeds_and_shows_differing_settings(tuned: Path) -> None:
    found = table(runs([str(tuned / "a_b"), str(tuned / "slower")], format="csv") or "")
    seeds, slower = found
    assert seeds["run"] == "a_b (2 seeds)"
    assert slower["run"] == "slower"
    assert (seeds["batch_size"], slower["batch_size"]) == ("8", "16")
    assert (seeds["steps"], slower["steps"]) == ("8", "4")
    assert not {"seed", "epochs", "epoch"} & seeds.keys()
    accuracies = [
        json.loads(path.read_text("utf-8"))["dev"]["accuracy"]
        for path in (tuned / "a_b").glob("*/scores.json")
    ]
    summary = mean_and_sd(accuracies)
    assert float(seeds["accuracy"]) == pytest.approx(summary["mean"], abs=1e-5)
    assert ("accuracy_sd" in seeds) == (summary["sd"] > 0)
    accuracy = json.loads((tuned / "slower" / "scores.json").read_text("utf-8"))["dev"]["accuracy"]
    assert float(slower["accuracy"]) == pytest.approx(accuracy, abs=1e-5)
    tokens = [int(row["tokens"]) for row in found]
    assert tokens[0] == tokens[1] > 0  # Both runs use two epochs of the same examples.
    assert all(re.fullmatch(r"\d+\.\d{4}", row["minutes"]) for row in found)


def test_runs_command_writes_tables_and_plot(
    tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture, out = tmp_path / "curves.svg", tmp_path / "table.tex"
    assert cli.run(["runs", str(tuned), "--plot", str(picture)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len({len(line) for line in lines}) == 1  # The columns are aligned.
    assert lines[0].startswith("| run")
    assert set(lines[1]) == {"|", "-"}
    assert len(lines) == 4
    svg = picture.read_text(encoding="utf-8")
    assert ">accuracy<" in svg
    assert svg.count('class="line') == 2 * 3  # One line per run in the plot, and one in the legend.
    assert cli.run(["runs", str(tuned), "--format", "latex", "--out", str(out)]) == 0
    assert capsys.readouterr().out == ""
    for words in (["--out", str(out)], ["--plot", str(picture)]):
        assert cli.run(["runs", str(tuned), *words]) == 2
        assert f"{words[1]} already exists; choose another {words[0]}" in capsys.readouterr().err
    assert picture.read_text(encoding="utf-8") == svg
    latex = out.read_text(encoding="utf-8")
    assert latex.startswith("\\begin{tabular}{l")
    assert "batch\\_size" in latex
    assert latex.count(" \\\\\n") == 3


def write_run(folder: Path, record: Any, *lines: Any) -> str:
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")
    journal = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "journal.jsonl").write_text(journal, encoding="utf-8")
    return str(folder)


def test_pretraining_totals_include_steps_between_records(tmp_path: Path) -> None:
    fast = {"tokens": 100, "tokens_per_second": 50.0, "data_wait": 1.0, "loss": 3.0}
    held_out = {"held_out": {"mlm": 2.5}, "held_out_accuracy": {"mlm": 0.25}}
    lines = ({"step": 10, **fast}, {"step": 20, **fast}, {"step": 20, **held_out})
    folder = write_run(tmp_path / "run", {"config": {"train": {"steps": 20}}}, *lines)
    (row,) = table(runs([folder], format="csv") or "")
    assert row == {
        "run": "run", "steps": "20", "tokens": "2000", "minutes": "1.0000",
        "mlm_loss": "2.5", "mlm_accuracy": "0.25",
    }  # fmt: skip


def test_runs_of_different_types_show_only_scores(tuned: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "run", {"config": {"train": {"steps": 20}}})
    (tuned / "slower" / "test.json").write_text('{"scores": {"accuracy": 0.75}}', encoding="utf-8")
    try:
        found = table(runs([str(tuned / "slower"), other], format="csv") or "")
    finally:
        (tuned / "slower" / "test.json").unlink()
    assert [row["run"] for row in found] == ["slower", "run"]
    assert not {"batch_size", "steps.train", "train.steps"} & found[0].keys()
    assert found[0]["test_accuracy"] == "0.75"


def test_runs_escapes_names_and_accepts_unstarted_runs(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a|b_%", {"config": {"model": "x&y"}})
    other = write_run(tmp_path / "c", {})
    assert (runs([folder, other]) or "").splitlines()[2].startswith("| a\\|b_%")
    assert r"a|b\_\%" in (runs([folder, other], format="latex") or "")
    with pytest.raises(CheckpointError, match="not a run directory"):
        runs([str(tmp_path / "none")])
