"""Preparing a corpus by several processes that share a disk: after kills, and on Ray.

The text is that of `benchmarks/prepare.py`. Parts are commands of one process each, begun at once.
Ray's tasks and as many processes of one machine take turns, each time from a new process, which
starts its workers, to a finished corpus; the start and the end of Ray itself are told apart.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from statistics import median

from benchmarks import kept, prepare
from benchmarks.embed import minilm
from benchmarks.harness import apart, once, turns
from bertkit.data.ray_workers import connected
from bertkit.recipes.prepare import Engine
from bertkit.recipes.prepare import prepare as make
from bertkit.storage import sha256
from bertkit.threads import cores

PARTS, KILLED, WORKERS = 8, 2, 2

SAME = f"prepared in {PARTS} parts of which {KILLED} are killed, the bytes of one process"
RAY, PROCESSES = f"prepare --engine ray, {WORKERS} workers", f"{WORKERS} processes"


def rows(folder: Path, *, quick: bool) -> dict[tuple[str, ...], Callable[[], Iterator[kept.Row]]]:
    """What measures each row, by what is compared."""
    megabytes, rounds = (3.0, 1) if quick else (prepare.MEGABYTES, 5)

    def text() -> Path:
        made = folder / f"text-{megabytes:.0f}"
        return once(made, lambda place: prepare.write(place, prepare.texts(megabytes)))

    return {
        (SAME, kept.LIMIT): lambda: parts(folder, text(), rounds),
        (RAY, PROCESSES): lambda: ray(folder, text(), megabytes, rounds),
    }


# ---- parts


def parts(folder: Path, text: Path, rounds: int) -> Iterator[kept.Row]:
    chance, same = random.Random(0), 0
    began = time.perf_counter()
    finish(command(text, folder / "whole"))
    took = time.perf_counter() - began
    whole = content(folder / "whole")
    for number in range(rounds):
        out = folder / f"parts-{number}"
        options = {part: ("--part", f"{part}/{PARTS}") for part in range(1, PARTS + 1)}
        runs = {part: command(text, out, *words) for part, words in options.items()}
        began = time.perf_counter()
        killed = chance.sample(sorted(runs), KILLED)
        # all of them together take longer than one process does, divided by the cores
        for moment, part in sorted((chance.uniform(0, took / cores()), part) for part in killed):
            time.sleep(max(0.0, began + moment - time.perf_counter()))
            assert runs[part].poll() is None, "it ended before it could be killed"
            runs[part].kill()
            runs[part].wait()
            runs[part] = command(text, out, *options[part])
        for run in runs.values():
            finish(run)
        finish(command(text, out))
        same += content(out) == whole
    yield kept.row(
        SAME, same, rounds, peer_name=kept.LIMIT, unit="runs", target=1.0, better="higher",
        how=(kept.How("at once, SIGKILL by chance, run again, all files"), kept.How()),
    )  # fmt: skip


def command(text: Path, out: Path, *part: str) -> subprocess.Popen[bytes]:
    words = [str(text), "--tokenizer", str(minilm()), "--out", str(out), "--processes", "1", *part]
    return subprocess.Popen(
        [sys.executable, "-m", "bertkit", "prepare", *words], stderr=subprocess.DEVNULL
    )


def finish(run: subprocess.Popen[bytes]) -> None:
    assert run.wait() == 0, run.args


def content(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): sha256(path) for path in files}


# ---- Ray


def ray(folder: Path, text: Path, megabytes: float, rounds: int) -> Iterator[kept.Row]:
    def run(engine: Engine) -> tuple[float, float]:
        return apart(seconds, engine, text, folder / f"{engine}-{next(numbers)}")

    numbers = count()
    runs = {"ray": lambda: run("ray"), "processes": lambda: run("processes")}
    _, taken = turns(runs, rounds)
    assert content(folder / "ray-0") == content(folder / "processes-1")
    (ours, started), (peer, _) = (
        [megabytes / median(each) for each in zip(*taken[engine], strict=True)] for engine in runs
    )
    yield kept.row(
        RAY, ours, peer, peer_name=PROCESSES, unit="MB/s", target=0.9, better="higher",
        how=(
            kept.How(f"{megabytes:.0f} MB; with Ray's start and end {started:.2f} MB/s"),
            kept.How(f"{megabytes:.0f} MB"),
        ),
    )  # fmt: skip


def seconds(engine: Engine, text: Path, out: Path) -> tuple[float, float]:
    """Of preparing in a process that has only begun, and with Ray's start and end."""
    began = time.perf_counter()
    with connected(WORKERS) if engine == "ray" else nullcontext():
        ready = time.perf_counter()
        make([text], tokenizer=minilm(), out=out, processes=WORKERS, engine=engine)
        done = time.perf_counter()
    return done - ready, time.perf_counter() - began
