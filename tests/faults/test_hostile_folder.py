"""A folder from anywhere opens and answers, or is refused in one sentence: in bounded memory and
time, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.faults.hostile import damage, good_folders

from bertkit.engine.exported import GRAPHS

FEW, MANY = 30, 4000

Opener = Callable[[Path], tuple[str, str]]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> list[Path]:
    return good_folders(tmp_path_factory.mktemp("good"), english)


@pytest.fixture(scope="module")
def opened(good: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opener]:
    script = Path(__file__).with_name("opener.py")
    errors = (tmp_path_factory.mktemp("opener") / "stderr").open("w")
    process = subprocess.Popen(
        [sys.executable, str(script), *(str(f) for f in good if f.name not in GRAPHS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
    )

    def ask(folder: Path) -> tuple[str, str]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{folder}\n")
        process.stdin.flush()
        found = json.loads(process.stdout.readline())
        return found["end"], found["said"]

    with process, errors:
        yield ask
        assert process.stdin is not None
        process.stdin.close()


def test_each_good_folder_answers(good: list[Path], opened: Opener) -> None:
    assert {folder.name: opened(folder) for folder in good} == {
        folder.name: ("answered", "") for folder in good
    }


def wrong(good: list[Path], opened: Opener, place: Path, seeds: range) -> dict[str, str]:
    """What neither answered nor was refused in a sentence."""
    found = {}
    for seed in seeds:
        folder = place / str(seed)
        what = damage(good[seed % len(good)], folder, seed)
        end, said = opened(folder)
        refused = end == "refused" and said == " ".join(said.splitlines()) and len(said) < 2000
        if end != "answered" and not refused:
            found[what] = f"{end}: {said[-1500:]}"
        shutil.rmtree(folder)
    return found


def test_hostile_folders(good: list[Path], opened: Opener, tmp_path: Path) -> None:
    assert wrong(good, opened, tmp_path, range(FEW)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_many_hostile_folders(part: int, good: list[Path], opened: Opener, tmp_path: Path) -> None:
    start = FEW + part * MANY // 4
    assert wrong(good, opened, tmp_path, range(start, start + MANY // 4)) == {}
