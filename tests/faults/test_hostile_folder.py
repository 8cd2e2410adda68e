"""Corrupted files: bertkit works or raises a BertkitError, in bounded time and memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.faults.damage import damage
from tests.faults.formats import FORMATS, SLOW
from tests.faults.hostile import good_folders
from tests.faults.opener import THREADS

MANY = 4000

Opener = Callable[[str, Path], tuple[str, str]]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> list[Path]:
    """One example of each format, without the slow ones."""
    root = tmp_path_factory.mktemp("good")
    names = [name for name in FORMATS if name not in SLOW]
    return [*good_folders(root, english), *make(root, names)]


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make(tmp_path_factory.mktemp("slow"), SLOW)


def make(root: Path, names: Sequence[str]) -> list[Path]:
    for name in names:
        FORMATS[name].make(root / name)
    return [root / name for name in names]


@pytest.fixture(scope="module")
def opened(good: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opener]:
    errors = (tmp_path_factory.mktemp("opener") / "stderr").open("w")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.opener", *map(str, good)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
    )

    def ask(name: str, folder: Path) -> tuple[str, str]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{name}\t{folder}\n")
        process.stdin.flush()
        found = json.loads(process.stdout.readline())
        return found["end"], found["said"]

    with process, errors:
        yield ask
        assert process.stdin is not None
        process.stdin.close()


def test_good_folders_answer(good: list[Path], opened: Opener) -> None:
    # The opener has opened all others before it answers.
    folders = [good[0], *(folder for folder in good if folder.name in THREADS)]
    assert {folder.name: opened(folder.name, folder) for folder in folders} == {
        folder.name: ("answered", "") for folder in folders
    }


def wrong(good: list[Path], opened: Opener, place: Path, seeds: range) -> dict[str, str]:
    """Return the changes after which bertkit neither answers nor raises a BertkitError."""
    found = {}
    for seed in seeds:
        folder = place / str(seed)
        original = good[seed % len(good)]
        what = damage(original, folder, seed)
        end, said = opened(original.name, folder)
        refused = end == "refused" and said == " ".join(said.splitlines()) and len(said) < 2000
        if end != "answered" and not refused:
            found[what] = f"{end}: {said[-1500:]}"
        shutil.rmtree(folder)
    return found


def test_hostile_folders(good: list[Path], opened: Opener, tmp_path: Path) -> None:
    assert wrong(good, opened, tmp_path, range(len(good))) == {}


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_many_hostile_folders(
    part: int, good: list[Path], slow: list[Path], opened: Opener, tmp_path: Path
) -> None:
    start = len(good) + part * MANY // 4
    seeds = range(start, start + MANY // 4)
    assert wrong([*good, *slow], opened, tmp_path, seeds) == {}
