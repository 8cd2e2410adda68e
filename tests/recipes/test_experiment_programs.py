"""Runs of experiments match separate runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.factories import tiny_folder, tiny_tokenizer
from tests.recipes.experiments import plan, rows

import bertkit
from bertkit.config import merged
from bertkit.errors import ConfigError, DataError
from bertkit.recipes.run_file import read_run_file
from bertkit.storage import sha256
from bertkit.text.vocabulary_training import train as train_tokenizer


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> Path:
    tokenizer = train_tokenizer(english[:5], kind="wordpiece", size=300)
    folder = tmp_path_factory.mktemp("experiment") / "base"
    return tiny_folder(folder, tokenizer, "mlm", "nsp", hidden=32, intermediate=32)


def test_runs_equal_single_fine_tunings(base: Path, tmp_path: Path) -> None:
    given = {"learning_rate": 5e-3, "seed": 3, "dev": 0.25}
    found = bertkit.experiment(plan(base, seeds=2, settings=given), out=tmp_path / "out")[""]
    alone = plan(base, settings=given)["settings"]
    scores = bertkit.finetune(**alone, out=tmp_path / "alone")
    weights = [
        sha256(folder / "model.safetensors")
        for folder in (tmp_path / "alone", *sorted((tmp_path / "out").glob("seed-*")))
    ]
    assert weights[0] == weights[1]
    assert weights[0] != weights[2]
    assert found["accuracy"]["each"][0] == scores["accuracy"]
    held = [json.loads(p.read_text("utf-8"))["data"] for p in tmp_path.glob("out/*/run.json")]
    assert held[0] == held[1]  # All seeds use the same held-out rows.


def test_distillation_run_matches_a_separate_run(base: Path, tmp_path: Path) -> None:
    data = {"train": rows(32), "dev": rows(8, 100)}
    bertkit.finetune("classify", base, **data, out=tmp_path / "teacher", epochs=1)
    settings = {"teacher": str(tmp_path / "teacher"), "layers": 1, "epochs": 1, **data}
    variants: dict[str, Any] = {"labels only": {"outputs": 0.0, "states": 0.0}, "all": {}}
    found = bertkit.experiment(
        {"recipe": "distill", "settings": settings, "variants": variants}, out=tmp_path / "out"
    )
    assert list(found) == ["labels only", "all"]
    bertkit.distill(**settings, out=tmp_path / "alone")
    paths = (tmp_path / "alone", tmp_path / "out/all/seed-0", tmp_path / "out/labels only/seed-0")
    separate, selected, labels_only = (sha256(path / "model.safetensors") for path in paths)
    assert separate == selected != labels_only


def test_best_pretraining_run_matches_a_separate_run(
    base: Path, english: list[str], tmp_path: Path
) -> None:
    (tmp_path / "text").mkdir()
    for number, text in enumerate(english[:20]):
        (tmp_path / "text" / f"{number}.txt").write_text(text, encoding="utf-8")
    tokenizer = train_tokenizer(english[:5], kind="wordpiece", size=300)
    bertkit.prepare([tmp_path / "text"], tokenizer=tokenizer, out=tmp_path / "corpus")
    shape = {"layers": 1, "hidden": 16, "heads": 2, "intermediate": 16, "max_positions": 32}
    train = {"steps": 4, "batch_size": 4, "warmup_steps": 1, "evaluate_samples": 8}
    settings: dict[str, Any] = {
        "config": "bert-tiny",
        "corpus": str(tmp_path / "corpus"),
        "model": shape,
        "sampling": {"length": 32},
        "train": train,
    }
    found = bertkit.experiment(
        {
            "recipe": "pretrain",
            "settings": settings,
            "grid": {"train.learning_rate": [0.0001, 0.01]},
        },
        out=tmp_path / "out",
    )[""]
    assert found["best"] == "train.learning_rate=0.01"
    assert found["metric"] == "mlm_loss"
    final_losses = [
        json.loads(line)["held_out"]["mlm"]
        for path in sorted((tmp_path / "out").glob("*/seed-0/journal.jsonl"))
        for line in path.read_text("utf-8").splitlines()
        if "held_out" in line
    ]
    assert found["mlm_loss"]["mean"] == pytest.approx(min(final_losses))
    changes = {
        "model": shape,
        "sampling": {"length": 32},
        "train": {**train, "learning_rate": 0.01},
    }
    data = merged(read_run_file("bert-tiny"), changes)
    alone = bertkit.pretrain(data, corpus=tmp_path / "corpus", out=tmp_path / "alone")
    assert np.isfinite(alone["mlm_loss"])
    run = tmp_path / "out" / "train.learning_rate=0.01" / "seed-0"
    assert sha256(run / "model.safetensors") == sha256(tmp_path / "alone" / "model.safetensors")


@pytest.mark.parametrize("name", ["task", "model", "train", "dev"])
def test_missing_setting_is_reported(name: str, base: Path, tmp_path: Path) -> None:
    given = plan(base)
    del given["settings"][name]
    with pytest.raises(ConfigError, match=f"settings.{name}: this setting is required"):
        bertkit.experiment(given, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_misspelled_setting_is_reported_before_the_missing_one(base: Path, tmp_path: Path) -> None:
    given = plan(base)
    given["settings"]["modle"] = given["settings"].pop("model")
    with pytest.raises(ConfigError, match="modle: finetune has no such setting"):
        bertkit.experiment(given, out=tmp_path / "out")


def test_pretraining_is_checked_before_the_first_run(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"config": "bert-tiny", "corpus": str(tmp_path / "none")}
    with pytest.raises(DataError, match="none"):
        bertkit.experiment({"recipe": "pretrain", "settings": settings}, out=tmp_path / "out")
    tokenizer = tiny_tokenizer("abc")
    (tmp_path / "a.txt").write_text("a b. c a.", encoding="utf-8")
    bertkit.prepare([tmp_path / "a.txt"], tokenizer=tokenizer, out=tmp_path / "corpus")
    settings |= {"corpus": str(tmp_path / "corpus")}
    variants = {"a": {}, "b": {"train": {"learning_rat": 1.0}}}
    with pytest.raises(ConfigError, match=r"b: train\.learning_rat: .*'learning_rate'"):
        bertkit.experiment(
            {"recipe": "pretrain", "settings": settings, "variants": variants}, out=tmp_path / "out"
        )
    assert not (tmp_path / "out").exists()
