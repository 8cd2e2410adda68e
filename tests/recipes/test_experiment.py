"""Experiments: variants, combinations of settings, and seeds."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.factories import tiny_elmo, tiny_folder
from tests.recipes.experiments import plan, rows

import bertkit
from bertkit import cli
from bertkit.errors import CheckpointError, ConfigError, DataError, DeviceError, TrainingError
from bertkit.extensions.classic.families.lstm import LSTM_LM
from bertkit.extensions.classic.word_vectors import Vectors
from bertkit.extensions.generation.families.gpt2 import GPT2
from bertkit.recipes.experiment import EXPERIMENTS, Cell
from bertkit.text.vocabulary_training import train as train_tokenizer

GRID = {"learning_rate": [1e-9, 2e-2], "epochs": [1, 4]}
BEST = "learning_rate=0.02,epochs=4"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> Path:
    tokenizer = train_tokenizer(english[:5], kind="wordpiece", size=300)
    folder = tmp_path_factory.mktemp("experiment") / "base"
    return tiny_folder(folder, tokenizer, "mlm", "nsp", hidden=32, intermediate=32)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for name, examples in {"train": rows(64), "dev": rows(16, 100), "test": rows(8, 200)}.items():
        lines = (json.dumps(row) + "\n" for row in examples)
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


def test_grid_selects_best_combination_and_scores_test_once(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    found = bertkit.experiment(plan(base, grid=GRID, settings={"test": rows(8, 200)}), out=out)[""]
    assert found["best"] == BEST  # The rate 1e-9 changes nothing; one epoch changes less than four.
    assert found["metric"] == "accuracy"
    assert 0 <= found["test_accuracy"]["mean"] <= 1
    assert [path.parent.parent.name for path in out.rglob("test.json")] == [BEST]
    assert [path.parent.parent.name for path in out.rglob("*.safetensors")] == [BEST]
    card = (out / BEST / "seed-0" / "README.md").read_text("utf-8")
    assert "Its settings were also selected on dev, from 4 combinations." in card
    assert "## Scores on test" in card
    assert bertkit.pipeline("classify", out / BEST / "seed-0")(["the loop number 3"])
    shown = capsys.readouterr().err
    assert re.search(rf"^4 of 4: {BEST}/seed-0: accuracy \d\.\d{{4}}$", shown, re.M)
    assert f"{BEST}: best accuracy on dev of 4 combinations" in shown
    assert "| learning_rate |" in shown
    assert "epoch 1: " not in shown


def test_variants_from_file(base: Path, files: Path, tmp_path: Path) -> None:
    toml = tmp_path / "rates.toml"
    toml.write_text(
        """
        seeds = 2
        [settings]
        task = "classify"
        train = "train.jsonl"
        dev = "dev.jsonl"
        test = "test.jsonl"
        batch_size = 8
        precision = "fp32"
        [variants.low]
        learning_rate = 1e-9
        [variants.high]
        learning_rate = 2e-2
        epochs = 4
        """,
        encoding="utf-8",
    )
    out = tmp_path / "out"
    words = ["experiment", str(toml), "--settings.model", str(base), "--data", str(files)]
    assert cli.run([*words, "--out", str(out)]) == 0
    record = json.loads((out / "experiment.json").read_text("utf-8"))["result"]
    assert list(record) == ["low", "high"]
    assert record["high"]["accuracy"]["mean"] > record["low"]["accuracy"]["mean"]
    assert len(record["high"]["test_accuracy"]["each"]) == 2
    assert (out / "experiment.html").exists()
    assert len(list(out.rglob("model.safetensors"))) == 4  # The weights of all variants are kept.
    more = [*words, "--out", str(tmp_path / "one"), "--variant", "low", "--seeds", "1"]
    assert cli.run(more) == 0
    assert [path.name for path in (tmp_path / "one").iterdir() if path.is_dir()] == ["low"]


def test_resume_skips_finished_runs(base: Path, tmp_path: Path) -> None:
    out, rates = tmp_path / "out", [1e-9, 2e-2]
    first = bertkit.experiment(plan(base, grid={"learning_rate": rates}), out=out)
    times = {path: path.stat().st_mtime_ns for path in out.rglob("journal.jsonl")}
    (out / "learning_rate=1e-09/seed-0/scores.json").unlink()  # The run looks interrupted.
    more = plan(base, grid={"learning_rate": [*rates, 1e-8]})
    again = bertkit.experiment(more, out=out, resume=True)
    assert again == first
    changed = {path.parent.parent.name for path, t in times.items() if path.stat().st_mtime_ns != t}
    assert changed == {"learning_rate=1e-09"}
    assert (out / "learning_rate=1e-08/seed-0/scores.json").exists()
    with pytest.raises(ConfigError, match="already exists"):
        bertkit.experiment(more, out=out)
    with pytest.raises(TrainingError, match="every run failed: train: the examples have changed"):
        bertkit.experiment(
            plan(base, settings={"train": rows(62)}, grid=more["grid"]), out=out, resume=True
        )


def test_resume_keeps_weights_if_another_run_is_selected(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, grid = tmp_path / "out", {"learning_rate": [2e-2], "epochs": [1, 4]}
    bertkit.experiment(plan(base, grid=grid), out=out)
    (kept,) = out.rglob("model.safetensors")
    monkeypatch.setattr(Cell, "rank", lambda cell: -cell.scores[0][cell.metric])
    with pytest.raises(CheckpointError, match="its weights were deleted when another run"):
        bertkit.experiment(plan(base, grid=grid), out=out, resume=True)
    assert kept.exists()


def test_keep_all_weights(base: Path, tmp_path: Path) -> None:
    bertkit.experiment(plan(base, grid={"epochs": [1, 2]}, keep="all"), out=tmp_path / "out")
    assert len(list((tmp_path / "out").rglob("model.safetensors"))) == 2


def test_failed_runs_do_not_stop_others(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    variants = {"long": {"max_length": 5000}, "steep": {"learning_rate": 1e30}, "good": {}}
    found = bertkit.experiment(plan(base, variants=variants, seeds=2), out=out)
    assert len(found["good"]["accuracy"]["each"]) == 2
    assert list(found["long"]["failed"]) == ["long/seed-0", "long/seed-1"]
    assert "length must be at most 32 tokens, got 5000" in found["long"]["failed"]["long/seed-0"]
    assert "3 of 6: steep/seed-0: failed: step" in capsys.readouterr().err
    assert json.loads((out / "experiment.json").read_text("utf-8"))["result"] == found
    with pytest.raises(TrainingError, match=r"every run failed: step \d+"):
        bertkit.experiment(plan(base, grid={"learning_rate": [1e30]}), out=tmp_path / "none")
    with pytest.raises(TrainingError, match=r"every run failed: .*none/such"):
        bertkit.experiment(plan(base, settings={"model": "none/such"}), out=tmp_path / "no")


def test_printed_file_is_the_same_experiment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--out", str(tmp_path / "out"), "--print-config"]
    changes = ["--settings.epochs", "7", "--seeds", "2"]
    assert cli.run(["experiment", "transfer", *changes, *words]) == 0
    printed = capsys.readouterr().out
    file = tmp_path / "printed.toml"
    file.write_text(printed, encoding="utf-8")
    assert cli.run(["experiment", str(file), *words]) == 0
    assert capsys.readouterr().out == printed
    found, original = (
        tomllib.loads(p.read_text("utf-8")) for p in (file, EXPERIMENTS / "transfer.toml")
    )
    assert (found["settings"]["epochs"], found["seeds"]) == (7, 2)
    assert found["variants"] == original["variants"]
    assert not (tmp_path / "out").exists()


def test_variants_can_be_run_one_after_another(base: Path, tmp_path: Path) -> None:
    variants, out = {"a": {}, "b": {"epochs": 2}}, tmp_path / "out"
    bertkit.experiment(plan(base, variants=variants), variants=["a"], out=out)
    found = bertkit.experiment(plan(base, variants=variants), variants=["b"], out=out, resume=True)
    assert list(found) == ["a", "b"]
    record = json.loads((out / "experiment.json").read_text("utf-8"))
    assert record["result"] == found
    assert record["plan"]["settings"]["epochs"] == 1
    assert record["plan"]["settings"]["train"] == "list"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid": {"lerning_rate": [1e-4]}}, "lerning_rate=0.0001: .*'learning_rate'"),
        ({"grid": {"learning_rate": [1e-4, "fast"]}}, "learning_rate: expected `float`, got `str`"),
        ({"grid": {"epochs": [0, 1]}}, "epochs: expected `int` >= 1"),
        ({"grid": {"epochs": []}}, "grid.*length >= 1"),
        ({"grid": {"model": ["a/b", "a:b"]}}, "two combinations have the name model=a-b"),
        ({"settings": {"device": "cuda:99"}}, "device: .*cuda:99"),
        ({"grid": {"seed": [1, 2]}}, "grid.seed: the grid cannot contain seeds; set `seeds`"),
        ({"grid": {"regression": [True, False]}}, "scored by accuracy and pearson"),
        ({"recipe": "prepare"}, "recipe: invalid enum value 'prepare'"),
        ({"variants": {}}, "variants: expected `object` of length >= 1"),
        ({"variants": {"../up": {}}}, r"variants: '\.\./up' cannot be a directory name"),
        ({"seeds": 0}, "seeds: expected `int` >= 1"),
        ({"tries": 1}, "tries: no such setting"),
        ({"settings": {"metric": "nope"}}, "metric: classify does not have the score 'nope'"),
        ({"variants": {"": {}, "b": {}}}, "variants: '' cannot be a directory name"),
        ({"variants": {"seed-0": {}}}, "variants: 'seed-0' cannot be a directory name"),
    ],
)
def test_invalid_plan_is_rejected_before_work(
    changes: Mapping[str, Any], message: str, base: Path, tmp_path: Path
) -> None:
    numbers = [{**row, "label": str(n % 2 + 1)} for n, row in enumerate(rows(8))]
    given = plan(base, **changes)
    if "regression" in given.get("grid", {}):
        given["settings"] |= {"train": numbers, "dev": numbers}
    with pytest.raises((ConfigError, DeviceError), match=message):
        bertkit.experiment(given, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_invalid_test_rows_are_rejected_before_work(base: Path, tmp_path: Path) -> None:
    other = [{"text": "a class", "label": "another"}]
    with pytest.raises(DataError, match="label 'another' is not"):
        bertkit.experiment(plan(base, settings={"test": other}), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_transfer_compares_methods(
    base: Path, files: Path, tmp_path: Path, english: list[str]
) -> None:
    tokenizer = train_tokenizer(english[:5], kind="bpe", size=300, use="write")
    shape: dict[str, Any] = {"hidden": 32, "intermediate": 64, "dropout": 0.0}
    models = {"pretrained": base, "random": base, "elmo": tiny_elmo(tmp_path / "elmo")}
    for name, family in (("gpt", GPT2), ("lstm", LSTM_LM)):
        models[name] = tiny_folder(tmp_path / name, tokenizer, "lm", family=family, **shape)
    models["vectors"] = tmp_path / "vectors.txt"
    words = ["the", "class", "loop", "number"]
    table = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    Vectors(words, table).save(models["vectors"])
    variants = [f"--variants.{name}.model={model}" for name, model in models.items()]
    found = bertkit.experiment(
        "transfer",
        *variants,
        *(f"--settings.{name}={files / name}.jsonl" for name in ("train", "dev", "test")),
        *("--settings.batch_size=8", "--settings.precision=fp32", "--settings.epochs=8"),
        *(f"--variants.{name}.epochs=8" for name in models),
        *(f"--variants.{name}.learning_rate=1e-2" for name in models if name != "lstm"),
        "--variants.lstm.learning_rate=3e-2",
        out=tmp_path / "out",
    )
    assert [*found] == ["random", "vectors", "lstm", "elmo", "gpt", "pretrained"]
    for name, scores in found.items():
        assert scores["test_accuracy"]["mean"] > 0.8, name  # Random predictions reach 0.5.
    ran = [json.loads((tmp_path / "out" / n / "seed-0/run.json").read_text()) for n in found]
    assert [Path(run["model"]).name for run in ran] == [models[name].name for name in found]


def test_glue_reads_published_files(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentence = "it is the class of number {i}"
    forms = {
        "CoLA": ("gj04\t{label}\t\t" + sentence, ""),
        "MNLI": (
            "{i}\t" + sentence + "\tanother\tkind{label}",
            "index\tsentence1\tsentence2\tgold_label\n",
        ),
    }
    for folder, (form, first) in forms.items():
        (tmp_path / folder).mkdir()
        lines = "".join(form.format(i=i, label=i % 2) + "\n" for i in range(16))
        for name in ("train", "dev_matched" if folder == "MNLI" else "dev"):
            (tmp_path / folder / f"{name}.tsv").write_text(first + lines, encoding="utf-8")
    changes = ("settings.epochs=1", f"settings.model={base}")
    given: dict[str, Any] = {"data": tmp_path, "out": tmp_path / "out"}
    found = bertkit.experiment("glue", *changes, variants=["CoLA", "MNLI"], **given)
    assert [row["metric"] for row in found.values()] == ["matthews", "accuracy"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "glue").mkdir()  # An output directory may have this name.
    again = bertkit.experiment("glue", *changes, variants=["CoLA"], **given, resume=True)
    assert again["CoLA"] == found["CoLA"]
    with pytest.raises(ConfigError, match="glu: no such file; did you mean 'glue'"):
        bertkit.experiment("glu", **given)
    with pytest.raises(DataError, match=r"SST-2: .*SST-2.train\.tsv"):
        bertkit.experiment("glue", *changes, data=tmp_path, out=tmp_path / "all")
    with pytest.raises(ConfigError, match="variant 'COLA' not found; did you mean 'CoLA'"):
        bertkit.experiment("glue", *changes, variants=["COLA"], **given)
