"""Tests of `bertkit pretrain`: resuming, repeating and rejected arguments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.factories import tiny_corpus

from bertkit import cli
from bertkit.storage import sha256

Captured = pytest.CaptureFixture[str]

TINY = """
[model]
layers = 1
hidden = 16
heads = 2
intermediate = 16
max_positions = 32
[train]
steps = 4
batch_size = 8
precision = "fp32"
evaluate_every = 2
evaluate_samples = 8
[sampling]
length = 32
held_out = 0.2
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    return tiny_corpus(folder, english[:8], kind="wordpiece", size=200)


def run_pretrain(*words: object) -> int:
    return cli.run(["pretrain", *map(str, words)])


def test_pretrain_resumes_and_repeats_run_from_its_files(
    corpus: Path, tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / "tiny.toml").write_text(TINY, encoding="utf-8")
    run, again = tmp_path / "run", tmp_path / "again"
    begun = (tmp_path / "tiny.toml", "--corpus", corpus, "--out", run, "--train.seed", 3)
    assert run_pretrain(*begun, "--train.steps", 8) == 0
    message = capsys.readouterr().err
    assert [line.split("  ")[0] for line in message.splitlines() if "held out" in line] == [
        f"step {step} held out" for step in (0, 2, 4, 6, 8)
    ]
    assert run_pretrain("--out", run, "--resume") == 0
    assert "resuming after step 8 of 8" in capsys.readouterr().err
    assert run_pretrain("--train.keep", 1, "--out", run, "--resume", "auto") == 0
    assert json.loads((run / "run.json").read_text("utf-8"))["config"]["train"]["keep"] == 1
    assert run_pretrain("--train.seed", 4, "--out", run, "--resume") == 2
    assert "train.seed (was 3): changed since" in capsys.readouterr().err
    assert run_pretrain(run / "run.toml", "--corpus", corpus, "--out", again) == 0
    assert sha256(run / "model.safetensors") == sha256(again / "model.safetensors")
    capsys.readouterr()
    unused = tmp_path / "unused"
    printing = ("--corpus", corpus, "--out", unused, "--print-config")
    changes = ("--train.seed", 3, "--train.steps", 8, "--train.keep", 1)
    assert run_pretrain(*begun[:1], *changes, *printing) == 0
    assert capsys.readouterr().out == (again / "run.toml").read_text("utf-8")
    assert not unused.exists()


def test_pretrain_uses_bertkit_mini_by_default(
    corpus: Path, tmp_path: Path, capsys: Captured
) -> None:
    small = ("--model.layers", 1, "--model.hidden", 16, "--model.heads", 2)
    small += ("--model.intermediate", 16, "--train.evaluate_samples", 8, "--train.warmup_steps", 1)
    begun = ("--train.steps", 5, "--train.batch_size", 8, *small, "--sampling.held_out", 0.2)
    run = tmp_path / "run"
    assert run_pretrain(*begun, "--corpus", corpus, "--out", run) == 0
    assert "using the run file bertkit-mini" in capsys.readouterr().err
    config = json.loads((run / "run.json").read_text("utf-8"))["config"]
    assert (config["family"], config["train"]["optimizer"]) == ("modernbert", "muon")


def test_pretrain_rejects_missing_corpus_and_unknown_settings(
    corpus: Path, tmp_path: Path, capsys: Captured
) -> None:
    out = ("--out", tmp_path / "run")
    for words, message in (
        (("bert-tiny", *out), "--corpus is required; run `bertkit prepare`"),
        (("--train.steps", 3, *out), "--corpus is required"),
        (("--train.steps", 3, "bert-tiny", "--corpus", corpus, *out), "'bert-tiny': not a setting"),
        (("bert-tiny", "--device", "cpu", *out), "did you mean '--train.device'?"),
    ):
        assert run_pretrain(*words) == 2
        assert message in capsys.readouterr().err
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text('{"settings": 1}', encoding="utf-8")
    assert run_pretrain(*out, "--resume") == 2
    assert "not the record of a pretraining" in capsys.readouterr().err
