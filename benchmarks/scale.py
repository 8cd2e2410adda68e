"""Several processes beside one, on this machine: what is learned, how fast, and what a kill costs.

`torchrun` starts `bertkit pretrain` on gloo, and beside it the same shape in accelerate's DDP on
samples of the same corpus (`benchmarks/accelerated.py`), grouped by length. Tokens/s are those of
the steps' own clocks, medians of all steps but the first few, of runs that take turns. Kills are
SIGKILLs of a process of the run, chosen by chance, under `--max-restarts`. What saving costs is
measured beside `torch.save`. `benchmarks/resume.py` resumes in a large corpus, `prepare_parts.py`
prepares one by many processes, and `clean.py` takes near-duplicates out of text.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks import clean, kept, prepare_parts, pretrain, resume
from benchmarks.harness import Options, bf16_here
from bertkit.config import read_toml
from bertkit.data.collate import collate
from bertkit.data.corpus import Corpus
from bertkit.data.segments import Samples
from bertkit.families import BERT
from bertkit.models.model import build
from bertkit.objectives.pretrain import pretrain as masked_words
from bertkit.recipes.run_file import heads_of, read_config
from bertkit.storage import sha256
from bertkit.threads import cores
from bertkit.training.loop import steps
from bertkit.training.masters import Masters
from bertkit.training.optim import adamw
from bertkit.training.run import Run
from bertkit.training.state import State

SAMPLES, BATCH, STEPS, FIRST = 128, 32, 12, 3
"""Of a step; of a batch of the peer; of a run; steps that are not counted."""

ROUNDS, KILLS, SAVE_EVERY = 3, 20, 20

LONGEST = 60
"""Seconds that a run is waited for after a kill: under torchrun its peer sometimes never meets
again."""

WORLDS = "largest difference of the loss over worlds of 1, 2 and 4, 20 steps, dropout on, fp32"
SPEED = "bert-mini, two processes on two cores"
KILLED = "runs of 20 that end with the same weights after a kill"
BACK = "from SIGKILL to the first new step"

SAVING = "bert-mini, time that saving takes from training, a checkpoint every 20 steps"

ONE, ACCELERATE = "one process, two threads", "accelerate, DDP, two processes"
TORCH_SAVE = "torch.save"


def main(options: Options) -> None:
    book = options.book("scale")
    with TemporaryDirectory() as place:
        folder = Path(place)
        corpus = pretrain.make_corpus(folder / "running", pretrain.TEXTS[0])
        rows: dict[tuple[str, ...], Callable[[], Iterator[kept.Row]]] = {
            (WORLDS, kept.LIMIT): lambda: worlds(folder, corpus),
            (SPEED, ONE, ACCELERATE): lambda: speed(folder, corpus, quick=options.quick),
            (KILLED, kept.LIMIT): lambda: kills(folder, corpus, 2 if options.quick else KILLS),
            (resume.WHAT, kept.LIMIT, resume.SKIPPED): lambda: resume.rows(
                folder, corpus, quick=options.quick
            ),
            (SAVING, kept.LIMIT, TORCH_SAVE): lambda: saving(folder, corpus, quick=options.quick),
            (BACK, ACCELERATE): lambda: back(folder, corpus, 1 if options.quick else ROUNDS),
            (clean.MINHASH, clean.DATATROVE): lambda: clean.minhash(folder, quick=options.quick),
            **prepare_parts.rows(folder, quick=options.quick),
        }
        for key, measure in rows.items():
            if book.wanted(*key) and not options.late:
                book.add(*measure())
    book.close()


# ---- what is learned


def worlds(folder: Path, corpus: Corpus) -> Iterator[kept.Row]:
    found = []
    for world in (1, 2, 4):
        out = folder / f"world-{world}"
        with ours("bert-mini", corpus, out, world, steps=20, samples=32, parts=4, **FP32) as run:
            finish(run, out)
        found.append([r["loss"] for r in records(out)])
        assert len(found[-1]) == 20
    largest = max(max(at) - min(at) for at in zip(*found, strict=True))
    yield kept.row(
        WORLDS, max(largest, 1e-12), 1e-6, peer_name=kept.LIMIT, unit="nats", target=1.0,
        better="lower",
        how=(kept.How("bert-mini, 32 samples a step in 4 parts, dropout 0.1"), kept.How()),
    )  # fmt: skip


FP32 = {"train.precision": "fp32", "train.save_every": "1000"}


def speed(folder: Path, corpus: Corpus, *, quick: bool) -> Iterator[kept.Row]:
    rates: dict[str, list[float]] = {"ours": [], ONE: [], ACCELERATE: []}
    steps = 6 if quick else STEPS
    for number in range(1 if quick else ROUNDS):
        for name in rates:
            out = folder / f"speed-{number}-{name.split(',')[0].replace(' ', '-')}"
            if name == ACCELERATE:
                run = accelerated("bert-mini", corpus, out, steps)
            else:
                world = 2 if name == "ours" else 1
                run = ours(
                    "bert-mini", corpus, out, world, steps=steps, samples=SAMPLES, parts=2,
                    **{"train.save_every": "1000"},
                )  # fmt: skip
            with run as process:
                finish(process, out)
            rates[name].append(median(r["tokens_per_second"] for r in records(out)[FIRST:]))
    numbers = "bf16" if bf16_here() else "fp32"
    step = f"{numbers}, a step of {SAMPLES} samples"
    for peer, target, how in (
        (ONE, 0.95, f"{step}, {cores()} threads"),
        (ACCELERATE, 2.0, f"{step}, {BATCH} at a time, grouped by length, one thread each"),
    ):
        yield kept.row(
            SPEED, median(rates["ours"]), median(rates[peer]), peer_name=peer, unit="tokens/s",
            target=target, better="higher",
            how=(kept.How(f"{step} in 2 parts, one thread each"), kept.How(how)),
        )  # fmt: skip


# ---- kills


def kills(folder: Path, corpus: Corpus, count: int) -> Iterator[kept.Row]:
    chance, same = random.Random(0), 0
    given: dict[str, Any] = {
        "steps": 24, "samples": 16, "parts": 2, "train.precision": "fp32", "train.save_every": "4",
    }  # fmt: skip
    with ours("bert-tiny", corpus, folder / "undisturbed", 2, **given) as run:
        finish(run, folder / "undisturbed")
    whole = sha256(folder / "undisturbed" / "model.safetensors")
    for number in range(count):
        out = folder / f"killed-{number}"
        with ours("bert-tiny", corpus, out, 2, **given) as run:
            wait_for(out, chance.randrange(2, 22), run)
            os.kill(chance.choice(learners(run.pid)), signal.SIGKILL)
            ended = run.wait()
        same += ended == 0 and sha256(out / "model.safetensors") == whole
    yield kept.row(
        KILLED, same, count, peer_name=kept.LIMIT, unit="runs", target=1.0, better="higher",
        how=(kept.How("bert-tiny, 24 steps, fp32, one of 2, by chance"), kept.How()),
    )  # fmt: skip


def back(folder: Path, corpus: Corpus, rounds: int) -> Iterator[kept.Row]:
    seconds: dict[str, list[float]] = {"ours": [], ACCELERATE: []}
    for number in range(rounds):
        for name in seconds:
            out = folder / f"back-{number}-{name.split(',')[0]}"
            if name == ACCELERATE:
                run = accelerated("bert-tiny", corpus, out, 100_000)
            else:
                run = ours(
                    "bert-tiny", corpus, out, 2, steps=100_000, samples=SAMPLES, parts=2,
                    **{"train.save_every": "5"},
                )  # fmt: skip
            with run as process:
                wait_for(out, 11, process)
                os.kill(learners(process.pid)[1], signal.SIGKILL)
                killed = time.perf_counter()
                next_line(out / "journal.jsonl")
                seconds[name].append(time.perf_counter() - killed)
    stuck = sum(each >= LONGEST for each in seconds[ACCELERATE])
    yield kept.row(
        BACK, median(seconds["ours"]), median(seconds[ACCELERATE]), peer_name=ACCELERATE, unit="s",
        target=1.0, better="lower",
        how=(
            kept.How("bert-tiny, torchrun --max-restarts, saved every 5 steps"),
            kept.How(f"the same, save_state; {stuck} of {rounds} were not back in {LONGEST} s"),
        ),
    )  # fmt: skip


# ---- saving


def saving(folder: Path, corpus: Corpus, *, quick: bool) -> Iterator[kept.Row]:
    rounds = 1 if quick else ROUNDS
    found: dict[str, list[float]] = {"ours": [], TORCH_SAVE: []}
    for number in range(rounds):
        for name, shares in found.items():
            shares += stalls(
                folder / f"saving-{number}-{name}", corpus, name, saves=1 if quick else 2
            )
    ours, theirs = (100 * median(shares) for shares in found.values())
    for peer, figure in ((kept.LIMIT, 1.0), (TORCH_SAVE, theirs)):
        yield kept.row(
            SAVING, max(ours, 1e-3), figure, peer_name=peer, unit="%", target=1.0, better="lower",
            how=(kept.How(f"fp32, {SAMPLES} samples a step, hashed and synced"), kept.How()),
        )  # fmt: skip


def stalls(out: Path, corpus: Corpus, name: str, *, saves: int) -> Iterator[float]:
    """Of each save the seconds until training goes on, and by which the next steps are slower, as a
    share of the steps from one save to the next. All steps learn from the same batches."""
    torch.manual_seed(0)
    config = read_config(read_toml(pretrain.CONFIGS / "bert-mini.toml"), corpus.tokenizer())
    masters = Masters(build(config.model, heads_of(config)), torch.float32)
    optimizer = adamw(masters.weights, learning_rate=1e-4, weight_decay=0.01)
    run = Run(out, resume=False)
    run.check({})
    total = SAVE_EVERY * (saves + 1)
    run.begin(State(masters, optimizer, BERT), total)
    samples = Samples(corpus, corpus.tokenizer(), config.sampling, config.masking, length=128)
    group = collate(samples.batch(0, SAMPLES), head="nsp", max_batch_tokens=8192)
    seconds, waited = [], {}
    with run.learning("saving", start=0):
        learning = steps(
            masters, masked_words, repeat(group, total), optimizer, lambda _: 1.0,
            max_grad_norm=1.0, seed=0,
        )  # fmt: skip
        began = time.perf_counter()
        for step in learning:
            seconds.append(time.perf_counter() - began)
            if step.number % SAVE_EVERY == 0 and step.number < total:
                began = time.perf_counter()
                if name == TORCH_SAVE:
                    state = {
                        "model": masters.model.state_dict(),
                        "optimizer": [optimizer.state[w] for w in masters.weights.values()],
                    }
                    torch.save(state, out / "state.pt")
                else:
                    run.save(step.number, keep=2)
                waited[step.number] = time.perf_counter() - began
            began = time.perf_counter()
    usual = median(seconds[1:])
    for number, wait in waited.items():
        slower = sum(seconds[number : number + 3]) - 3 * usual
        yield (wait + slower) / (SAVE_EVERY * usual)


def next_line(journal: Path) -> None:
    """Wait for a line that is written from half a second on, or `LONGEST` seconds; a run that goes
    on may first write the file anew, without lines that are ahead of its checkpoint."""
    began = time.perf_counter()
    time.sleep(0.5)
    before = journal.stat()
    while time.perf_counter() - began < LONGEST:
        now = journal.stat()
        if now.st_ino == before.st_ino and now.st_size > before.st_size:
            return
        before = now
        time.sleep(0.005)


# ---- runs


@contextmanager
def started(command: Sequence[str], out: Path, world: int) -> Iterator[subprocess.Popen[bytes]]:
    """A run, which ends with the block."""
    threads = 1 if world > 1 else cores()
    torchrun = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "5",
        f"--nproc-per-node={world}", "-m",
    ]  # fmt: skip
    words = [*torchrun, *command] if world > 1 else [sys.executable, "-m", *command]
    log = out.with_suffix(".log")
    with log.open("wb") as said:
        process = subprocess.Popen(
            words, stdout=said, stderr=said, env={**os.environ, "OMP_NUM_THREADS": str(threads)}
        )
        try:
            yield process
        finally:
            stop(process)


def ours(
    config: str, corpus: Corpus, out: Path, world: int, *, steps: int, samples: int, parts: int,
    **more: str,
) -> Any:  # fmt: skip
    settings = {
        "train.steps": str(steps), "train.warmup_steps": "2", "train.batch_size": str(samples),
        "train.parts": str(parts), "train.log_every": "1", "train.evaluate_samples": "0",
        "sampling.length": str(pretrain.LENGTH), **more,
    }  # fmt: skip
    words = [word for name, value in settings.items() for word in (f"--{name}", value)]
    return started(
        ["bertkit", "pretrain", config, "--corpus", str(corpus.folder), "--out", str(out),
         "--resume", "auto", *words],
        out, world,
    )  # fmt: skip


def accelerated(config: str, corpus: Corpus, out: Path, steps: int) -> Any:
    out.mkdir()
    file = pretrain.CONFIGS / f"{config}.toml"
    numbers = [str(number) for number in (steps, SAMPLES, BATCH)]
    command = ["benchmarks.accelerated", str(file), str(corpus.folder), str(out), *numbers]
    return started(command, out, 2)


def finish(process: subprocess.Popen[bytes], out: Path) -> None:
    """Wait for its end, which must be a good one."""
    assert process.wait() == 0, out.with_suffix(".log").read_text(encoding="utf-8")[-3000:]


def stop(process: subprocess.Popen[bytes]) -> None:
    """End it; torchrun ends those it started."""
    if process.poll() is None:
        process.terminate()
        process.wait()


def learners(pid: int) -> list[int]:
    """The processes that torchrun started."""
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def records(out: Path) -> list[dict[str, Any]]:
    """Of the steps that the journal has."""
    path = out / "journal.jsonl"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    whole = text[: text.rfind("\n") + 1].splitlines()
    return [r for r in map(json.loads, whole) if "tokens_per_second" in r]


def wait_for(out: Path, count: int, run: subprocess.Popen[bytes]) -> None:
    while len(records(out)) < count:
        assert run.poll() is None, out.with_suffix(".log").read_text(encoding="utf-8")[-2000:]
        time.sleep(0.01)
