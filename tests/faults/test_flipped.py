"""A flipped bit in any file of a run: resumed, the files are as they were, or a sentence says why
not.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from bertkit import cli

PLACES = 3
"""Of each file: its beginning, its end, and between."""


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[min(place * len(data) // (PLACES - 1), len(data) - 1)] ^= 1 << (place % 7)
    path.unlink()  # a checkpoint's weights and the run's are one file
    path.write_bytes(data)


def kept_of(run: Path) -> dict[str, bytes]:
    """Every file but those that the clock decides about, and damaged ones that were put aside."""
    return {
        str(p.relative_to(run)): p.read_bytes()
        for p in run.rglob("*")
        if p.is_file() and p.name not in ("journal.jsonl", "loss.svg") and "damaged-" not in str(p)
    }


def resumed(command: list[object], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    capsys.readouterr()
    code = cli.run([str(word) for word in command])
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return code, said


@pytest.fixture(scope="module")
def pretrained(world: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[object], Path]:
    run = tmp_path_factory.mktemp("flipped") / "run"
    command = ["pretrain", world.config, "--corpus", world.corpus, "--train.steps", "2"]
    command += ["--train.save_every", "1"]
    assert cli.run([str(word) for word in [*command, "--out", run]]) == 0
    return command, run


SETTINGS = ("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt")
WRITTEN_ANEW = (*SETTINGS, "model.safetensors")
CHECKPOINTS = tuple(
    f"checkpoints/step-0000000{step}/{name}"
    for step in (1, 2)
    for name in ("manifest.json", "model.safetensors", "optimizer.safetensors")
)


@pytest.mark.parametrize("name", [*WRITTEN_ANEW, *CHECKPOINTS, "run.json"])
def test_a_pretraining_run(
    name: str,
    pretrained: tuple[list[object], Path],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    command, whole = pretrained
    for place in range(PLACES):
        run = tmp_path / str(place) / "run"
        shutil.copytree(whole, run)
        flip(run / name, place)
        code, said = resumed([*command, "--out", run, "--resume"], capsys)
        if name == "run.json" and code == 2:
            assert str(run) in said
            continue
        assert code == 0, said
        if name in SETTINGS:
            assert f"{run / name}: repaired a damaged file" in said
        now = kept_of(run)
        if name in CHECKPOINTS:
            assert f"{(run / name).parent}: " in said
            now |= {n: b for n, b in kept_of(whole).items() if Path(n).parent == Path(name).parent}
        assert {n for n, b in kept_of(whole).items() if b != now.get(n)} == set()


@pytest.fixture(scope="module")
def finetuned(world: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[object], Path]:
    place = tmp_path_factory.mktemp("flipped")
    rows = [f"the {('loop', 'class')[i % 2]} number {i}\t{('no', 'yes')[i % 2]}" for i in range(8)]
    (place / "rows.tsv").write_text("text\tlabel\n" + "\n".join(rows), encoding="utf-8")
    files = ["--train", place / "rows.tsv", "--dev", place / "rows.tsv"]
    command = ["finetune", "classify", "--model", world.model, *files, "--epochs", 1]
    assert cli.run([str(word) for word in [*command, "--out", place / "run"]]) == 0
    return command, place / "run"


@pytest.mark.parametrize("name", [*WRITTEN_ANEW, "scores.json", "run.json"])
def test_a_finished_fine_tuning(
    name: str,
    finetuned: tuple[list[object], Path],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    command, whole = finetuned
    for place in range(PLACES):
        run = tmp_path / str(place) / "run"
        shutil.copytree(whole, run)
        code, said = resumed([*command, "--out", run, "--resume"], capsys)
        assert code == 0, said
        flip(run / name, place)
        code, said = resumed([*command, "--out", run, "--resume"], capsys)
        assert code == 2, said
        assert str(run) in said
