"""Effects of the training settings on pretraining steps."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.factories import tiny_corpus, tiny_model
from torch import Tensor

from bertkit.batch import Batch
from bertkit.checkpoint.directory import load
from bertkit.checkpoint.weights import read_tensors
from bertkit.errors import BertkitError, ConfigError, TrainingError
from bertkit.recipes import pretrain_steps as learn
from bertkit.recipes.pretrain import pretrain
from bertkit.recipes.pretrain_samples import RunSamples
from bertkit.recipes.pretrain_steps import optimization, warn
from bertkit.recipes.run_file import Train
from bertkit.training.distributed import SINGLE_PROCESS
from bertkit.training.journal import Journal
from bertkit.training.master_weights import Masters

Learned = tuple[dict[str, Tensor], list[dict[str, Any]]]
"""Final weights and journal of a run."""

SHAPE = {"layers": 1, "hidden": 16, "heads": 2, "intermediate": 32, "max_positions": 32}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> Path:
    folder = tmp_path_factory.mktemp("learn")
    return tiny_corpus(folder, english[:8], kind="wordpiece", size=300)


@pytest.fixture
def learned(corpus: Path, tmp_path: Path) -> Callable[..., Learned]:
    """Return a function that runs six steps with the given `train` settings."""

    def run(name: str, *, resume: bool = False, **settings: Any) -> Learned:
        defaults = {"steps": 6, "batch_size": 4, "learning_rate": 1e-2, "precision": "fp32"}
        run_file = {
            "model": SHAPE,
            "sampling": {"length": 32, "held_out": 0.1},
            "train": {**defaults, "log_every": 1, "save_every": 100, "device": "cpu", **settings},
        }
        pretrain(run_file, corpus=corpus, out=tmp_path / name, resume=resume)
        return read_tensors(tmp_path / name), Journal(tmp_path / name).records()

    return run


def losses(run: Learned) -> list[float]:
    return [record["loss"] for record in run[1] if "loss" in record]


def test_optimizer_uses_the_run_settings() -> None:
    train = Train(
        steps=10, learning_rate=0.2, weight_decay=0.3, betas=(0.8, 0.9), eps=1e-8,
        embedding_learning_rate=0.4,
    )  # fmt: skip
    weights = Masters(tiny_model(20, "mlm"), torch.float32)
    groups = optimization(train, weights, SINGLE_PROCESS)[0].param_groups
    assert {(g["betas"], g["eps"]) for g in groups} == {((0.8, 0.9), 1e-8)}
    assert {g["lr"] for g in groups} == {0.2, 0.4}
    muon = Train(steps=10, optimizer="muon", momentum=0.7, adamw_learning_rate=0.5)
    groups = optimization(muon, weights, SINGLE_PROCESS)[0].param_groups
    assert groups[0]["momentum"] == 0.7
    assert {g["lr"] for g in groups[1:]} == {0.5}


@pytest.mark.parametrize(("decay", "stable"), [(0, 600), (100, 900)])
def test_wsd_decays_over_two_fifths_by_default(decay: int, stable: int) -> None:
    train = Train(steps=1000, schedule="wsd", decay_steps=decay)
    _, plan = optimization(train, Masters(tiny_model(20, "mlm"), torch.float32), SINGLE_PROCESS)
    assert plan(stable) == 1.0 > plan(stable + 1)


def test_zero_max_grad_norm_disables_clipping(learned: Callable[..., Learned]) -> None:
    free = losses(learned("free", max_grad_norm=0))
    assert free == losses(learned("wide", max_grad_norm=1e9))
    assert free != losses(learned("narrow", max_grad_norm=1e-3))  # Control.


def test_z_loss_affects_training_but_not_scores(learned: Callable[..., Learned]) -> None:
    plain, with_z = learned("plain"), learned("with_z", z_loss=0.1)
    log_z = math.log(300)  # All tokens have similar probability at first.
    assert losses(with_z)[0] - losses(plain)[0] == pytest.approx(0.1 * log_z**2, rel=0.2)
    scores = [[r["held_out"] for r in run[1] if "held_out" in r] for run in (plain, with_z)]
    assert scores[0][0] == scores[1][0]
    assert scores[0][1] != scores[1][1]


def test_zero_init_sets_output_layers_to_zero(learned: Callable[..., Learned]) -> None:
    tiny = {"learning_rate": 1e-12, "steps": 1}
    (plain, _), (zero, _) = learned("plain", **tiny), learned("zero", zero_init=True, **tiny)
    for name, weight in zero.items():
        last = name.endswith(("output.dense.weight",))
        assert (weight.abs().max().item() < 1e-9) == (last or not plain[name].abs().max() > 1e-9)
        assert last or torch.allclose(weight, plain[name], atol=1e-9), name


def test_zero_init_cannot_be_combined_with_start_model(
    learned: Callable[..., Learned], corpus: Path, tmp_path: Path
) -> None:
    learned("first", steps=1)
    run_file = {
        "model": SHAPE,
        "sampling": {"length": 32},
        "train": {"steps": 1, "zero_init": True},
    }
    with pytest.raises(ConfigError, match=r"train\.zero_init requires newly initialized"):
        pretrain(run_file, corpus=corpus, out=tmp_path / "run", start_from=load(tmp_path / "first"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("schedule", ["linear", "step"])
def test_mask_probability_follows_its_schedule_when_resumed(
    corpus: Path, tmp_path: Path, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    masking = {"first_mlm_probability": 0.6, "schedule": schedule, "first_share": 0.5}
    run_file = {
        "model": SHAPE,
        "sampling": {"length": 32, "held_out": 0.1, "pairs": "none"},
        "masking": masking,
        "train": {"steps": 8, "batch_size": 8, "precision": "fp32", "save_every": 2, "keep": 9},
    }
    shares: list[float] = []

    def recorded(samples: RunSamples, step: int) -> list[Batch]:
        batches = original(samples, step)
        masked = sum(len(batch.targets["mlm"]) for batch in batches)
        shares.append(masked / sum(batch.tokens for batch in batches))
        return batches

    original = RunSamples.batches
    monkeypatch.setattr(RunSamples, "batches", recorded)
    pretrain(run_file, corpus=corpus, out=tmp_path / "run")
    assert len(shares) == 8
    assert shares[0] > 0.5
    assert (shares[2] > 0.5) == (schedule == "step")
    assert all(share < 0.2 for share in shares[4:])
    held_out = [
        r["held_out"]["mlm"] for r in Journal(tmp_path / "run").records() if "held_out" in r
    ]
    pretrain({**run_file, "masking": {}}, corpus=corpus, out=tmp_path / "control")
    others = [r["held_out"] for r in Journal(tmp_path / "control").records() if "held_out" in r]
    assert held_out[0] == others[0]["mlm"]  # The masks are equal before the first step.
    whole = read_tensors(tmp_path / "run")
    for number in (4, 6, 8):
        shutil.rmtree(tmp_path / "run" / "checkpoints" / f"step-{number:08d}")
    shares.clear()
    pretrain(run_file, corpus=corpus, out=tmp_path / "run", resume=True)
    assert (shares[0] > 0.5) == (schedule == "step")
    again = read_tensors(tmp_path / "run")
    assert all(torch.equal(weight, whole[name]) for name, weight in again.items())


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # On one core.
def test_first_window_limits_attention_in_first_steps(
    learned: Callable[..., Learned], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int | None] = []

    def recorded(samples: RunSamples, step: int) -> list[Batch]:
        batches = original(samples, step)
        seen.extend({batch.window for batch in batches})
        return batches

    original = RunSamples.batches
    monkeypatch.setattr(RunSamples, "batches", recorded)
    defaults = {"save_every": 1, "keep": 9, "loader_processes": 0}
    narrow = learned("narrow", first_window=2, **defaults)
    assert seen == [2, 2, 2, None, None, None]
    plain, wide = learned("plain", **defaults), learned("wide", first_window=32, **defaults)
    assert losses(narrow)[0] != losses(plain)[0]
    assert losses(wide) == losses(plain)  # Control: the window of 32 tokens covers all samples.
    # Evaluation has no window, so scores before the first step are equal.
    scores = [[r["held_out"] for r in run[1] if "held_out" in r] for run in (narrow, plain)]
    assert scores[0][0] == scores[1][0]
    assert scores[0][1] != scores[1][1]
    for step in (2, 3, 4, 5, 6):
        shutil.rmtree(tmp_path / "narrow" / "checkpoints" / f"step-{step:08d}")
    seen.clear()
    again, _ = learned("narrow", first_window=2, resume=True, **defaults)
    assert seen == [2, 2, None, None, None]
    by_processes, _ = learned("processes", first_window=2, **defaults | {"loader_processes": 2})
    for weights in (again, by_processes):
        assert all(torch.equal(weight, narrow[0][name]) for name, weight in weights.items())


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_average_steps_saves_the_mean_of_last_weights(
    learned: Callable[..., Learned], tmp_path: Path, optimizer: str
) -> None:
    defaults = {"save_every": 1, "keep": 9, "optimizer": optimizer}
    plain, mean = learned("plain", **defaults), learned("mean", average_steps=3, **defaults)

    def weights(run: str, step: int) -> dict[str, Tensor]:
        return read_tensors(tmp_path / run / "checkpoints" / f"step-{step:08d}")

    last = [weights("plain", step) for step in (4, 5, 6)]
    for name, weight in mean[0].items():
        expected = torch.stack([tensors[name] for tensors in last]).mean(0)
        torch.testing.assert_close(weight, expected, atol=1e-6, rtol=1e-5)
        # The average is only used at the end.
        assert torch.equal(weights("mean", 5)[name], last[1][name])
    assert any(not torch.equal(weight, plain[0][name]) for name, weight in mean[0].items())
    assert losses(mean) == losses(plain)
    scores = [[r["held_out"] for r in run[1] if "held_out" in r] for run in (plain, mean)]
    assert scores[0][0] == scores[1][0]
    assert scores[0][1] != scores[1][1]
    for kept in (3, 4, 5):  # Before the first averaged step, and after some of them.
        for step in range(kept + 1, 7):
            shutil.rmtree(tmp_path / "mean" / "checkpoints" / f"step-{step:08d}")
        again, journal = learned("mean", average_steps=3, resume=True, **defaults)
        assert all(torch.equal(weight, again[name]) for name, weight in mean[0].items())
        assert [r["held_out"] for r in journal if "held_out" in r] == scores[1]


def test_unused_optimizer_setting_is_rejected_before_training(
    learned: Callable[..., Learned], tmp_path: Path
) -> None:
    with pytest.raises(BertkitError, match=r"momentum requires optimizer = .muon"):
        learned("run", momentum=0.5)
    assert not (tmp_path / "run").exists()


PEAK, GROWN = "the learning rate never reaches its peak", "the batch never grows to 256 samples"


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"decay_steps": 10_600}, f"10600 decay steps are more than train.steps = 1000: {PEAK}"),
     ({"decay_steps": 951},
      f"train.warmup_steps = 50 and 951 decay steps .* {PEAK}; set .* to 400,"),
     ({"warmup_steps": 700}, f"= 700 and 400 decay steps .* {PEAK}; set train.decay_steps to 300,"),
     ({"decay_steps": 1000, "warmup_steps": 0}, PEAK),
     ({"decay_steps": 2000, "warmup_steps": 1000}, f"is not less than .* {PEAK}"),
     ({"decay_steps": 950}, ""), ({"decay_steps": 999, "warmup_steps": 0}, ""),
     ({"schedule": "linear", "warmup_steps": 999}, ""),
     ({"first_batch_size": 8, "batch_warmup_steps": 1001}, f"= 1001 is more than .* {GROWN}"),
     ({"first_batch_size": 8, "batch_warmup_steps": 1000}, "")],
)  # fmt: skip
def test_schedule_below_its_peak_is_reported(
    settings: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    train = Train(**{"steps": 1000, "schedule": "wsd", "warmup_steps": 50, **settings})
    warn(train, attention_dropout=0.0, device="cpu")
    found = " ".join(capsys.readouterr().err.split())
    assert re.search(message, found) if message else not found
    assert found.count("never") == bool(message)
    _, plan = optimization(train, Masters(tiny_model(20, "mlm"), torch.float32), SINGLE_PROCESS)
    assert (max(map(plan, range(1, 1001))) < 1) == (PEAK in message)


def test_run_resumes_after_out_of_memory_in_evaluation(
    learned: Callable[..., Learned], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    with monkeypatch.context() as patch:
        patch.setattr(learn, "evaluate", full)
        with pytest.raises(TrainingError, match=r"^out of memory: lower max_batch_tokens"):
            learned("run")
    weights, journal = learned("run", resume=True)
    whole, expected = learned("whole")  # Control.
    assert [r["held_out"] for r in journal if "held_out" in r] == [
        r["held_out"] for r in expected if "held_out" in r
    ]
    assert all(torch.equal(weight, whole[name]) for name, weight in weights.items())


def test_infinite_weights_after_last_step_are_not_saved(
    learned: Callable[..., Learned], tmp_path: Path
) -> None:
    """The last step has no evaluation or later step that would detect these weights."""
    ruin = {"learning_rate": 1e39, "warmup_steps": 1, "evaluate_samples": 0}
    with pytest.raises(TrainingError, match=r"^step 1: weights are no longer finite; start over"):
        learned("run", steps=1, **ruin)
    assert not (tmp_path / "run" / "checkpoints").exists()
    weights, _ = learned("whole", steps=1, warmup_steps=1, evaluate_samples=0)  # Control.
    assert all(weight.isfinite().all() for weight in weights.values())
