"""A NaN loss stops the run; the message contains the last good checkpoint, which is usable."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from bertkit import cli
from bertkit.checkpoint.weights import read_tensors
from bertkit.objectives.loss import Loss
from bertkit.recipes import pretrain
from bertkit.storage import sha256


def words(world: Any, run: Path, *more: object) -> list[str]:
    command = ["pretrain", world.config, "--corpus", world.corpus, "--out", run, *more]
    return [str(word) for word in [*command, "--train.steps", 6]]


def objective_with_nan(step: int) -> Any:
    """Return the objective with a NaN loss in the batches of one step."""
    original, calls = pretrain.masked_words, {"step": 0, "counts": None}

    def objective(model: Any, batch: Any, totals: Any, **settings: Any) -> Loss:
        loss = original(model, batch, totals, **settings)
        if model.training and totals is not calls["counts"]:
            calls["counts"], calls["step"] = totals, calls["step"] + 1
        if model.training and calls["step"] == step:
            return Loss(loss.total * math.nan, {k: v * math.nan for k, v in loss.parts.items()})
        return loss

    return objective


def test_nan_loss_stops_run_and_keeps_checkpoint(
    world: Any, run_rejected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, whole = tmp_path / "run", tmp_path / "whole"
    with monkeypatch.context() as patch:
        patch.setattr(pretrain, "masked_words", objective_with_nan(5))
        message = run_rejected(*words(world, run))
    assert "step 5: the loss is nan" in message
    assert f"{run / 'checkpoints' / 'step-00000004'} is the last good checkpoint" in message
    lines = (run / "journal.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines if "loss" in json.loads(line)] == [
        1,
        2,
        3,
        4,
    ]
    assert cli.run(words(world, run, "--resume")) == 0
    assert cli.run(words(world, whole)) == 0
    assert sha256(run / "model.safetensors") == sha256(whole / "model.safetensors")


def test_too_high_learning_rate_stops_pretraining(
    world: Any, run_rejected: Any, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    message = run_rejected(
        *words(world, run, "--train.learning_rate", "1e30", "--train.warmup_steps", 0)
    )
    assert "lower learning rate" in message
    assert "nothing was saved yet" in message
    assert not (run / "checkpoints").exists()
    assert cli.run(["info", str(run)]) == 0


def test_nan_held_out_loss_stops_after_last_step(
    world: Any, run_rejected: Any, tmp_path: Path
) -> None:
    """No later training loss shows the NaN; the held-out loss does."""
    run, sound = tmp_path / "run", tmp_path / "sound"
    single_step = ("--train.steps", 1, "--train.warmup_steps", 0)
    message = run_rejected(*words(world, run), *single_step, "--train.learning_rate", "1e30")
    assert (
        "step 1: the held-out loss of mlm is nan; start over with a lower learning rate" in message
    )
    assert "nothing was saved yet" in message
    assert not (run / "checkpoints").exists()
    assert all(bool(w.isfinite().all()) for w in read_tensors(run).values())
    assert cli.run([*words(world, sound), *map(str, single_step)]) == 0  # the control
    assert (sound / "checkpoints" / "step-00000001").exists()


def test_diverged_finetuning_writes_nothing(world: Any, run_rejected: Any, tmp_path: Path) -> None:
    rows = "text\tlabel\n" + "a fine day\tyes\na grim day\tno\n" * 8
    (tmp_path / "rows.tsv").write_text(rows, encoding="utf-8")
    out = tmp_path / "out"
    command = ("finetune", "classify", "--model", world.model, "--out", out)
    files = ("--train", tmp_path / "rows.tsv", "--dev", tmp_path / "rows.tsv")
    message = run_rejected(
        *command, *files, "--learning-rate", "1e30", "--batch-size", 4, "--epochs", 1
    )
    assert "lower learning rate" in message
    assert not out.exists()
