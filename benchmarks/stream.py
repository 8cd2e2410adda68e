"""Memory of `bertkit embed` over a file of 1,000,000 short texts.

A process of its own reads the texts from its standard input and writes a .npy file, in the
precision auto of this machine. What it holds beside model and libraries is its peak less that of
the same command with one text.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks import kept, text
from benchmarks.embed import minilm
from benchmarks.harness import Options

COUNT = 1_000_000
LIMIT = 1500.0
"""Megabytes beside the model."""

WORDS = 12
"""Of a text at most."""


def main(options: Options) -> None:
    book, count = options.book("stream"), 20_000 if options.quick else COUNT
    what = f"{count:,} short texts, memory beside the model"
    if book.wanted(what, kept.LIMIT):
        with TemporaryDirectory() as name:
            place = Path(name)
            one, whole = peak(place, 1), peak(place, count)
        book.add(
            kept.row(
                what,
                whole - one,
                LIMIT,
                peer_name=kept.LIMIT,
                unit="MB",
                target=1.0,
                better="lower",
            )
        )
    book.close()


def peak(place: Path, count: int) -> float:
    """The most megabytes that embedding so many texts took. Raises: SystemExit if it failed."""
    texts, out = place / "texts.txt", place / f"{count}.npy"
    with texts.open("w", encoding="utf-8") as file:
        file.writelines(itertools.islice(short(), count))
    command = [sys.executable, "-m", "bertkit", "embed", str(minilm()), "--precision", "auto"]
    with texts.open("rb") as file:
        process = subprocess.Popen([*command, "--out", str(out)], stdin=file)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"bertkit embed ended with {process.returncode}")
    shape = np.load(out, mmap_mode="r").shape
    assert shape[0] == count, shape
    out.unlink()
    return usage.ru_maxrss * 1024 / 1e6


def short() -> Iterator[str]:
    """Lines of one to `WORDS` words and a number, so that no two are the same."""
    sentences = [re.findall(r"\w+", sentence)[:WORDS] for sentence in text.sentences(3000)]
    for number in itertools.count():
        for words in sentences:
            yield f"{' '.join(words)} {number}\n"
