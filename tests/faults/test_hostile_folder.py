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

    def load_in_opener(name: str, folder: Path) -> tuple[str, str]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{name}\t{folder}\n")
        process.stdin.flush()
        failures = json.loads(process.stdout.readline())
        return failures["end"], failures["said"]

    with process, errors:
        yield load_in_opener
        assert process.stdin is not None
        process.stdin.close()


def test_valid_directories_load(good: list[Path], opened: Opener) -> None:
    # The opener loads all other directories before it answers.
    folders = [good[0], *(folder for folder in good if folder.name in THREADS)]
    assert {folder.name: opened(folder.name, folder) for folder in folders} == {
        folder.name: ("answered", "") for folder in folders
    }


def unexpected_outcomes(
    good: list[Path], opened: Opener, root: Path, seeds: range
) -> dict[str, str]:
    """Return the changes after which bertkit neither works nor raises a BertkitError."""
    failures = {}
    for seed in seeds:
        folder = root / str(seed)
        original = good[seed % len(good)]
        change = damage(original, folder, seed)
        end, message = opened(original.name, folder)
        is_rejected = (
            end == "refused" and message == " ".join(message.splitlines()) and len(message) < 2000
        )
        if end != "answered" and not is_rejected:
            failures[change] = f"{end}: {message[-1500:]}"
        shutil.rmtree(folder)
    return failures


def test_corrupted_directories_load_or_raise(
    good: list[Path], opened: Opener, tmp_path: Path
) -> None:
    assert unexpected_outcomes(good, opened, tmp_path, range(len(good))) == {}


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_many_corrupted_directories_load_or_raise(
    part: int, good: list[Path], slow: list[Path], opened: Opener, tmp_path: Path
) -> None:
    start = len(good) + part * MANY // 4
    seeds = range(start, start + MANY // 4)
    assert unexpected_outcomes([*good, *slow], opened, tmp_path, seeds) == {}
