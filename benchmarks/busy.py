"""What a busy neighbour costs: training and embedding while another process keeps a core busy.

Each way that OpenMP's threads can wait for each other is tried on an idle machine, and with one
process beside that computes all the time. Rates are of BERT-mini's pretraining step and of MiniLM's
vectors of short texts, in fresh processes, in turn. The aim is 45 % of the idle speed on two cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks import kept
from benchmarks.harness import Options
from bertkit.threads import SPINS

WAYS = {
    "bertkit's": {"GOMP_SPINCOUNT": SPINS},
    "OpenMP's": {},
    "asleep at once": {"OMP_WAIT_POLICY": "PASSIVE"},
}
NAMES = ("pretraining", "embedding")
ROUNDS, SECONDS = 3, 8.0


def main(options: Options) -> None:
    book = options.book("busy")
    rounds, seconds = (1, 0.5) if options.quick else (ROUNDS, SECONDS)
    found: dict[tuple[str, bool], list[dict[str, float]]] = {}
    for _ in range(rounds):
        for way, said in WAYS.items():
            for busy in (False, True):
                with neighbour(busy):
                    found.setdefault((way, busy), []).append(rates(said, seconds))

    def middle(way: str, busy: bool, name: str) -> float:
        return median(each[name] for each in found[way, busy])

    for way in WAYS:
        for name in NAMES:
            idle, pressed = (middle(way, busy, name) for busy in (False, True))
            book.add(
                kept.row(
                    f"{name}, one core busy, threads wait as {way}",
                    100 * pressed / idle,
                    45.0,
                    peer_name=kept.LIMIT,
                    unit="% of idle",
                    target=1.0,
                    better="higher",
                    how=(kept.How(f"{pressed:,.0f} of {idle:,.0f} a second"), kept.How()),
                )
            )
    book.close()


@contextmanager
def neighbour(there: bool) -> Iterator[None]:
    """Another process, which computes all the time."""
    if not there:
        yield
        return
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        other.kill()
        other.wait()


def rates(said: dict[str, str], seconds: float) -> dict[str, float]:
    """Tokens and texts a second of a fresh process that these are said to."""
    free = {n: v for n, v in os.environ.items() if not n.startswith(("GOMP_", "OMP_WAIT"))}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.busy", str(seconds)],
        env=free | said,
        check=True,
        capture_output=True,
        text=True,
    )
    read: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return read


def measured(seconds: float) -> dict[str, float]:
    from benchmarks import pretrain
    from benchmarks.embed import minilm
    from bertkit.checkpoint.folder import load
    from bertkit.pipelines import Embed

    with TemporaryDirectory() as folder:
        corpus = pretrain.make_corpus(Path(folder) / "text", pretrain.TEXTS[0])
        size = pretrain.SIZES[0]
        step = pretrain.ours(pretrain.settings(size, corpus), corpus)
        embed = Embed(load(minilm()))
        texts = [f"sentence number {n} is about as long as a query is" for n in range(64)]
        calls: dict[str, Callable[[], int]] = {
            "pretraining": step,
            "embedding": lambda: len(embed(texts)),
        }
        found = {}
        for name, call in calls.items():
            call()
            began, done = time.perf_counter(), 0
            while time.perf_counter() - began < seconds:
                done += call()
            found[name] = done / (time.perf_counter() - began)
    return found


if __name__ == "__main__":
    print(json.dumps(measured(float(sys.argv[1]))))
