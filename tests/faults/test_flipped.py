"""A run with a flipped bit in one file: resuming restores the files or reports the file."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from bertkit import cli

NUM_POSITIONS = 3
"""Number of positions per file: the start, the middle, and the end."""


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[min(position * len(data) // (NUM_POSITIONS - 1), len(data) - 1)] ^= 1 << (position % 7)
    path.unlink()  # the weights of the run and of a checkpoint are hard links
    path.write_bytes(data)


def comparable_files(run: Path) -> dict[str, bytes]:
    """Return all files except those that contain times and quarantined damaged files."""
    return {
        str(p.relative_to(run)): p.read_bytes()
        for p in run.rglob("*")
        if p.is_file() and p.name not in ("journal.jsonl", "loss.svg") and "damaged-" not in str(p)
    }


def run_command(command: list[object], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    capsys.readouterr()
    code = cli.run([str(word) for word in command])
    message = capsys.readouterr().err
    assert "Traceback" not in message
    return code, message


@pytest.fixture(scope="module")
def pretrained(world: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[object], Path]:
    run = tmp_path_factory.mktemp("flipped") / "run"
    command = ["pretrain", world.config, "--corpus", world.corpus, "--train.steps", "2"]
    command += ["--train.save_every", "1"]
    assert cli.run([str(word) for word in [*command, "--out", run]]) == 0
    return command, run


SETTINGS = ("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt")
REWRITTEN = (*SETTINGS, "model.safetensors")
CHECKPOINTS = tuple(
    f"checkpoints/step-0000000{step}/{name}"
    for step in (1, 2)
    for name in ("manifest.json", "model.safetensors", "optimizer.safetensors")
)


@pytest.mark.parametrize("name", [*REWRITTEN, *CHECKPOINTS, "run.json"])
def test_pretraining_run_with_flipped_bit_resumes(
    name: str,
    pretrained: tuple[list[object], Path],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    command, whole = pretrained
    for position in range(NUM_POSITIONS):
        run = tmp_path / str(position) / "run"
        shutil.copytree(whole, run)
        flip(run / name, position)
        code, message = run_command([*command, "--out", run, "--resume"], capsys)
        if name == "run.json" and code == 2:
            assert str(run) in message
            continue
        assert code == 0, message
        if name in SETTINGS:
            assert f"{run / name}: repaired a damaged file" in message
        now = comparable_files(run)
        if name in CHECKPOINTS:
            assert f"{(run / name).parent}: " in message
            now |= {
                n: b
                for n, b in comparable_files(whole).items()
                if Path(n).parent == Path(name).parent
            }
        assert {n for n, b in comparable_files(whole).items() if b != now.get(n)} == set()


@pytest.fixture(scope="module")
def finetuned(world: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[object], Path]:
    position = tmp_path_factory.mktemp("flipped")
    rows = [f"the {('loop', 'class')[i % 2]} number {i}\t{('no', 'yes')[i % 2]}" for i in range(8)]
    (position / "rows.tsv").write_text("text\tlabel\n" + "\n".join(rows), encoding="utf-8")
    files = ["--train", position / "rows.tsv", "--dev", position / "rows.tsv"]
    command = ["finetune", "classify", "--model", world.model, *files, "--epochs", 1]
    for more in ([], ["--resume"]):  # the undamaged run can be resumed
        assert cli.run([str(word) for word in [*command, "--out", position / "run", *more]]) == 0
    return command, position / "run"


@pytest.mark.parametrize("name", [*REWRITTEN, "scores.json", "run.json"])
def test_finetuning_with_flipped_bit_is_rejected(
    name: str,
    finetuned: tuple[list[object], Path],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    command, whole = finetuned
    for position in range(NUM_POSITIONS):
        run = tmp_path / str(position) / "run"
        shutil.copytree(whole, run)
        flip(run / name, position)
        code, message = run_command([*command, "--out", run, "--resume"], capsys)
        assert code == 2, message
        assert str(run) in message
