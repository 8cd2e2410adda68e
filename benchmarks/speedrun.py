"""The best BERT of a given time: ours and tuned transformers after an hour, and sooner.

Both sides learn masked words from the same training documents, `prose_novels` and `prose_reviews`
(12 million words), cut by bert-base-uncased's vocabulary; a model is at most as large as BERT-mini
and its folder opens in transformers. They are scored by the same held-out samples of 128 tokens,
whose masks (15 % of the tokens, 80/10/10) are the same for all, in fp32: loss a masked token.

The peer is `BertForMaskedLM` at BERT-mini's shape, its samples in memory, tuned in good faith: bf16
autocast where the processor gains by it, warm-up over 5 % of the steps, β₂ 0.98, the best of three
rates and the better of steps of 16 and 64 samples. Ours is `bertkit-mini`, the run file that comes
with bertkit, as `bertkit pretrain` runs it. Rates fall to zero at the end of a run on both sides.

Both learn for an hour at the same time, each with half of the cores, so that what else the machine
does hits both; steps are set before, by how many tokens each learns from in a minute beside the
other. Then both folders get ten scores downstream (`downstream.py`). At last ours learns for some
minutes only, six times, two at a time on the same halves: weights and order have other seeds, and
minutes are those of the whole process, from a prepared corpus to a model folder. It has reached the
peer's loss when (target - mean) · √n ≥ 3.09 σ: chance does as much once in a thousand times.

Needs BERTKIT_DATA. Folders are kept in `runs/speedrun`, runs and scores in `speedrun.jsonl` beside
the results; what is there is not run again, but with --fresh.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median, stdev
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import torch
from torch.nn import functional as F

from benchmarks import kept
from benchmarks.downstream import scores
from benchmarks.embed import minilm
from benchmarks.finetune import data_folder, numbers
from benchmarks.harness import Options, bf16_here, once
from bertkit.checkpoint.folder import load
from bertkit.config import read_toml
from bertkit.console import quietly
from bertkit.data.collate import collate
from bertkit.data.corpus import Corpus
from bertkit.data.masking import Masking
from bertkit.data.segments import Sample, Samples, Sampling, split_documents
from bertkit.models.model import Model
from bertkit.recipes.prepare import prepare
from bertkit.storage import write_text
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.journal import Journal

OURS, PEER = "bertkit-mini", "H1"
CONFIG = Path(__file__).parents[1] / "configs" / f"{OURS}.toml"
MINUTES = 60
STEPS, SEEDS = 300, 6
"""Of a short run of ours, and how many there are."""
LENGTH = 128
FILLED = Sampling(
    pairs="none", cross_documents=True, length=LENGTH, short_seq_probability=0.0, held_out=0.01
)
"""Of the peer, and of the samples that both are scored by; ours holds out the same documents."""
EXAM = 2048
"""Samples that are scored at most."""
PLACE = Path("runs") / "speedrun"
AHEAD = 3.0
"""Points downstream by which ours is to be ahead."""

BATCH, LEARNING_RATE, WARMUP, BETA2 = 16, 1e-3, 0.05, 0.98
"""How the peer learns; β₂ of AdamW."""


class Run(msgspec.Struct, frozen=True, kw_only=True, tag="run"):
    """A line of the log: what a run came to."""

    who: str
    tokens: int
    seed: int
    minutes: float
    loss: float
    """On the half of the held-out samples by which nothing was chosen."""
    rate: float
    """Tokens/s."""


class Scores(msgspec.Struct, frozen=True, kw_only=True, tag="scores"):
    """A line of the log: what the folder of an hour came to with one seed of fine-tuning."""

    who: str
    seed: int
    points: dict[str, list[float]]
    """Of each task with its states as they are, and fine-tuned."""

    @property
    def mean(self) -> float:
        """Of 100."""
        return 100 * mean(score for both in self.points.values() for score in both)


def main(options: Options) -> None:
    data, quick = data_folder(), options.quick
    log = kept.log_of("speedrun")
    if options.fresh and log.exists() and not quick:
        write_text(log, "")
    lines: list[Any] = [] if quick else read_log(log)
    text, steps = corpus(), 4 if quick else STEPS

    def add(line: Run | Scores) -> None:
        lines.append(line)
        print(told(line), flush=True)
        if not quick:
            kept.append(log, msgspec.json.encode(line).decode() + "\n")

    def short() -> list[Run]:
        tokens = steps * read_toml(CONFIG)["train"]["batch_size"] * LENGTH
        return [run for run in runs_of(lines, OURS) if run.tokens == tokens]

    with halves() as calls, TemporaryDirectory() as place:
        root = Path(place) if quick else PLACE

        def both(call: Callable[..., Any], *given: Sequence[Any]) -> list[Any]:
            """What each side calls, at the same time, with what is given for it."""
            sides = zip(calls, (OURS, PEER), given, strict=True)
            asked = [run(call, who, *own) for run, who, own in sides]
            return [one.result() for one in asked]

        if not runs_of(lines, PEER):
            seconds = 1 if quick else 60 * MINUTES
            tokens = [round(each * seconds) for each in both(rate, *[(text.folder, quick)] * 2)]
            for run in both(hour, *((text.folder, root, count) for count in tokens)):
                add(run)
        for seed in numbers(options.seeds or ("0" if quick else "0,1,2")):
            if not any(isinstance(line, Scores) and line.seed == seed for line in lines):
                for line in both(scored, *[(root, data, seed, quick)] * 2):
                    add(line)
        there = {run.seed for run in short()}
        todo = [seed for seed in range(2 if quick else SEEDS) if seed not in there]
        asked = [calls[n % 2](our_run, text.folder, seed, steps) for n, seed in enumerate(todo)]
        for one in asked:
            add(one.result())
    book = options.book("speedrun")
    book.add(*rows_of(short(), lines))
    book.close()


def rows_of(short: Sequence[Run], lines: Sequence[Run | Scores]) -> list[kept.Row]:
    """The minutes to the peer's loss, if it was reached, and the scores downstream."""
    (theirs,) = runs_of(lines, PEER)
    ours = max(runs_of(lines, OURS), key=lambda run: run.tokens)
    losses = [run.loss for run in short]
    apart = stdev(losses)
    rows = []
    if (theirs.loss - mean(losses)) * math.sqrt(len(losses)) >= 3.09 * apart:
        rows.append(
            kept.row(
                "BERT-mini's size, minutes to the loss of H1 after an hour",
                mean(run.minutes for run in short),
                theirs.minutes,
                peer_name="transformers, tuned (H1)",
                unit="minutes",
                target=15.0,
                better="lower",
                how=(
                    kept.How(f"{short[0].tokens:,} tokens, {mean(losses):.3f} ± {apart:.3f}"),
                    kept.How(f"{theirs.tokens:,} tokens, {theirs.loss:.3f}"),
                ),
            )
        )
    points = {
        who: [line.mean for line in lines if isinstance(line, Scores) and line.who == who]
        for who in (OURS, PEER)
    }

    def how(run: Run) -> kept.How:
        found = points[run.who]
        over = f" ± {stdev(found):.2f}" if len(found) > 1 else ""
        return kept.How(
            f"{run.tokens:,} tokens in {run.minutes:.1f} minutes, loss {run.loss:.3f}; "
            f"{mean(found):.2f}{over}, seeds of fine-tuning: {len(found)}"
        )

    us, them = (mean(points[who]) for who in (OURS, PEER))
    rows.append(
        kept.row(
            "BERT-mini's size, mean of ten scores after an hour",
            us,
            them,
            peer_name="transformers, tuned (H1)",
            unit="points",
            target=(them + AHEAD) / them,
            better="higher",
            how=(how(ours), how(theirs)),
        )
    )
    return rows


def runs_of(lines: Sequence[Run | Scores], who: str) -> list[Run]:
    return [line for line in lines if isinstance(line, Run) and line.who == who]


def told(line: Run | Scores) -> str:
    if isinstance(line, Run):
        return (
            f"{line.who}, seed {line.seed}: {line.tokens:,} tokens, {line.rate:,.0f} a second, "
            f"{line.minutes:.2f} minutes, loss {line.loss:.3f}"
        )
    each = (f"{name} {100 * a:.1f} {100 * b:.1f}" for name, (a, b) in line.points.items())
    return f"{line.who}, seed {line.seed}: {line.mean:.2f} ({', '.join(each)})"


def read_log(path: Path) -> list[Run | Scores]:
    return kept.lines(path, Run | Scores)


def corpus(place: Path = PLACE) -> Corpus:
    """Prepared once."""
    texts = [data_folder() / name for name in ("prose_novels", "prose_reviews")]

    def made(folder: Path) -> None:
        with quietly():
            prepare(texts, tokenizer=Tokenizer.load(minilm()), out=folder)

    return Corpus.open(once(place / "corpus", made))


def device() -> str:
    """Where models learn: the GPU if there is one."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else kept.processor_class()


# ---- what both are scored by


def exam(text: Corpus, half: int) -> list[Sample]:
    """Held-out samples: half 0 to choose settings by, half 1 to score."""
    _, held_out = split_documents(text, FILLED.held_out)
    samples = Samples(text, text.tokenizer(), FILLED, Masking(), documents=held_out)
    return list(samples.evaluation(EXAM))[half::2]


@torch.no_grad()
def loss_of(model: Model, samples: Sequence[Sample]) -> float:
    """A masked token's, in fp32."""
    head: Any = model.heads["mlm"]
    where = next(model.parameters()).device
    model.eval()
    total, count = 0.0, 0
    for batch in collate(samples, head=None, max_batch_tokens=8192):
        batch = batch.to(where)
        logits = head(model.states(batch), batch).float()
        total += float(F.cross_entropy(logits, batch.targets["mlm"], reduction="sum"))
        count += len(logits)
    return total / count


# ---- two halves of a machine


@contextmanager
def halves() -> Iterator[list[Callable[..., Future[Any]]]]:
    """Two ways to call in a process of its own, each on half of the cores."""
    all_cores = sorted(os.sched_getaffinity(0))
    middle = len(all_cores) // 2
    with ExitStack() as stack:
        runs = []
        for part in (all_cores[:middle], all_cores[middle:]):
            pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
            os.sched_setaffinity(0, part)  # a process has the cores of who starts it
            stack.enter_context(pool).submit(os.getpid).result()
            runs.append(pool.submit)
        os.sched_setaffinity(0, all_cores)
        yield runs


def rate(who: str, folder: Path, quick: bool) -> float:
    """Tokens/s beside the other side; both take about as long."""
    steps = 4 if quick else {OURS: 64, PEER: 32}[who]
    with TemporaryDirectory() as place:
        return learned(who, Corpus.open(folder), Path(place) / "out", steps=steps, seed=0)


def hour(who: str, folder: Path, root: Path, tokens: int) -> Run:
    """What one side learned from so many tokens; its folder stays."""
    size = BATCH if who == PEER else read_toml(CONFIG)["train"]["batch_size"]
    steps = max(4, round(tokens / size / LENGTH))
    text = Corpus.open(folder)
    with TemporaryDirectory() as place:
        out = Path(place) / "out"
        began = time.perf_counter()
        speed = learned(who, text, out, steps=steps, seed=0)
        minutes = (time.perf_counter() - began) / 60
        shutil.rmtree(hour_of(root, who), ignore_errors=True)  # of an hour that was stopped
        once(hour_of(root, who), lambda kept: shutil.copytree(out, kept))
        loss = loss_of(load(out).model, exam(text, 1))
    tokens = steps * size * LENGTH
    return Run(who=who, tokens=tokens, seed=0, minutes=minutes, loss=loss, rate=speed)


def hour_of(root: Path, who: str) -> Path:
    """Where the folder of an hour lies."""
    return root / f"hour-{who}"


def scored(who: str, root: Path, data: Path, seed: int, quick: bool) -> Scores:
    """The ten scores of the folder of an hour. Raises: SystemExit where it is gone."""
    if not hour_of(root, who).exists():
        raise SystemExit(
            f"{hour_of(root, who)}: is gone, and its scores are not all known; --fresh"
        )
    with quietly():
        points = scores(hour_of(root, who), data, seed, quick=quick)
    return Scores(who=who, seed=seed, points=points)


def our_run(folder: Path, seed: int, steps: int) -> Run:
    """The command, from the start of its process to its end."""
    text = Corpus.open(folder)
    with TemporaryDirectory() as place:
        out = Path(place) / "run"
        began = time.perf_counter()
        speed = learned_by_ours(text, out, steps=steps, seed=seed)
        minutes = (time.perf_counter() - began) / 60
        loss = loss_of(load(out).model, exam(text, 1))
    tokens = steps * read_toml(CONFIG)["train"]["batch_size"] * LENGTH
    return Run(who=OURS, tokens=tokens, seed=seed, minutes=minutes, loss=loss, rate=speed)


def learned(who: str, text: Corpus, out: Path, *, steps: int, seed: int) -> float:
    call = learned_by_peer if who == PEER else learned_by_ours
    return call(text, out, steps=steps, seed=seed)


def learned_by_ours(text: Corpus, out: Path, *, steps: int, seed: int) -> float:
    """A run's folder after so many steps; answers its tokens/s."""
    changed = {"steps": steps, "seed": seed}
    command = [sys.executable, "-m", "bertkit", "pretrain", OURS, "--corpus", str(text.folder)]
    command += [word for name, n in changed.items() for word in (f"--train.{name}", str(n))]
    subprocess.run([*command, "--out", str(out)], check=True, capture_output=True)
    records = Journal(out).records()
    return float(median(r["tokens_per_second"] for r in records if "tokens_per_second" in r))


def learned_by_peer(text: Corpus, out: Path, *, steps: int, seed: int) -> float:
    """A folder of transformers' model after so many steps; answers its tokens/s."""
    from transformers import (
        AutoTokenizer,
        BertConfig,
        BertForMaskedLM,
        DataCollatorForLanguageModeling,
        get_linear_schedule_with_warmup,
    )

    tokenizer = AutoTokenizer.from_pretrained(minilm())
    torch.manual_seed(seed)
    model: Any = BertForMaskedLM(
        BertConfig(
            vocab_size=text.tokenizer().vocab_size,
            hidden_size=256,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=1024,
        )
    )
    model.train()
    rows, collator = (
        iter(list(peer_rows(text, steps * BATCH, seed))),
        DataCollatorForLanguageModeling(tokenizer),
    )
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, BETA2), weight_decay=0.01, fused=True
    )
    schedule = get_linear_schedule_with_warmup(optimizer, int(WARMUP * steps), steps)
    began = time.perf_counter()
    for _ in range(steps):
        batch = collator([next(rows) for _ in range(BATCH)])
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16_here()):
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    took = time.perf_counter() - began
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return steps * BATCH * LENGTH / took


def peer_rows(text: Corpus, count: int, seed: int) -> Iterator[dict[str, list[int]]]:
    """Samples of the training documents, in which nothing is masked yet."""
    learned, _ = split_documents(text, FILLED.held_out)
    samples = Samples(text, text.tokenizer(), FILLED, Masking(), documents=learned, seed=seed)
    for start in range(0, count, 64):
        for sample in samples.batch(start, 64):
            ids = sample.ids.copy()
            ids[sample.masked_positions] = sample.labels
            yield {"input_ids": ids.tolist(), "attention_mask": [1] * len(ids)}
