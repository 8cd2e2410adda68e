"""A model of a run on more GPUs: what it must say where the answer is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories import tiny_folder, tiny_tokenizer

from bertkit.errors import ConfigError, TrainingError
from bertkit.recipes.scaling import Machines, Measured, estimate, measured_of, scale

LARGE = Measured(
    samples=65_536, steps=7_038, tokens=128, spread=0, tokens_per_second=580 * 128,
    gradients=2 * 336e6,
)  # fmt: skip
"""BERT-large as NVIDIA's DeepLearningExamples publish it: 580 sequences/s on one A100, in mixed
precision, and 138,294 on 32 nodes of 8."""


def test_one_gpu_is_what_was_measured() -> None:
    row = estimate(LARGE, Machines(), 1, price=2.0)
    assert row.tokens_per_second == pytest.approx(LARGE.tokens_per_second)
    assert row.efficiency == pytest.approx(1.0)
    assert row.days == pytest.approx(65_536 / 580 * 7_038 / 86_400)
    assert row.price == pytest.approx(row.days * 24 * 2.0)


def test_published_figures_are_near() -> None:
    node, all_ = (estimate(LARGE, Machines(between=25.0), n, 1.0) for n in (8, 256))
    assert node.tokens_per_second / 128 == pytest.approx(4_591, rel=0.02)
    assert all_.tokens_per_second / 128 == pytest.approx(138_294, rel=0.05)


@given(
    gpus=st.sampled_from([1, 2, 8, 64, 512]),
    spread=st.floats(0, 40),
    between=st.floats(1, 400),
)
def test_more_gpus_are_faster_and_never_more_efficient(
    gpus: int, spread: float, between: float
) -> None:
    run = Measured(4_096, 100, 121.0, spread, 50_000.0, 4 * 110e6)
    few, more = (estimate(run, Machines(between=between), n, 1.0) for n in (gpus, 2 * gpus))
    assert more.efficiency <= few.efficiency + 1e-9
    assert more.slowest >= few.slowest
    assert few.tokens_per_second > 0


def journal(run: Path, steps: int, **more: int) -> None:
    lines = [
        {"step": n, "tokens": 1000 + 20 * (-1) ** n, "tokens_per_second": 500.0, **more}
        for n in range(1, steps + 1)
    ]
    (run / "journal.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines), "utf-8")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    tiny_folder(folder, tiny_tokenizer("abc"), "mlm")
    record = {"config": {"train": {"steps": 100, "batch_size": 16}}}
    (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")
    journal(folder, 12)
    return folder


def test_a_run_says_what_was_measured(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = measured_of(run)
    assert found.samples == 16
    assert found.tokens == pytest.approx(1000 / 16, rel=0.01)
    assert found.spread == pytest.approx(20 / 4, rel=0.1)
    assert found.tokens_per_second == 500.0
    rows = scale(run, gpus="1,8,64", json=True)
    assert rows is not None
    assert [row.gpus for row in rows] == [1, 8]
    assert "64 GPUs: left out, a step has 16 samples" in capsys.readouterr().err
    assert scale(run, gpus="2") is None
    assert "twice as many" in capsys.readouterr().out.lower()


def test_what_cannot_be_modelled_is_refused(run: Path, tmp_path: Path) -> None:
    for text in ("8,many", "0", ""):
        with pytest.raises(ConfigError, match=r"gpus: .* is no list of numbers"):
            scale(run, gpus=text)
    journal(run, 7)
    short = "the journal has 4 steps of one process to measure by, and 5 are"
    with pytest.raises(TrainingError, match=short):
        scale(run)
    journal(run, 12, slowest_rank=1)  # the speed of several processes is not that of one device
    with pytest.raises(TrainingError, match="has 0 steps of one process"):
        scale(run)
    (run / "run.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"run.json: not of a pretraining"):
        scale(run)
    with pytest.raises(ConfigError, match="name the folder of a pretraining"):
        scale(tmp_path / "nothing")
