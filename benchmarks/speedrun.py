"""The best BERT of a given time: ours and tuned transformers after an hour, and sooner.

Both sides learn masked words from the same training documents, `prose_novels` and `prose_reviews`
(12 million words), cut by bert-base-uncased's vocabulary; a model is at most as large as BERT-mini
and its folder opens in transformers. They are scored by the same held-out samples of 128 tokens,
whose masks (15 % of the tokens, 80/10/10) are the same for all, in fp32: loss a masked token.

The peer is `BertForMaskedLM` at BERT-mini's shape, its samples in memory, with two recipes. H1 is
tuned in good faith: bf16 autocast where the processor gains by it, warm-up over 5 % of the steps,
β₂ 0.98, the best of three rates and the better of steps of 16 and 64 samples. H0 is what people
copy: the defaults of the masked-language example of transformers. Ours is `bertkit-mini`, the run
file that comes with bertkit, as `bertkit pretrain` runs it. All rates fall to zero at the end.

Ours and H1 learn for an hour at the same time, each with half of the cores, so that what else the
machine does hits both; steps are set before, by how many tokens each learns from in a minute beside
the other. Then both folders get ten scores downstream (`downstream.py`). At last H0 learns for an
hour on the second half, and ours on the first, or two at a time, for as few steps as it needs to
get below each recipe's loss, with the settings of so short a run, six times: weights and order have
other seeds, and minutes are those of the whole process, from a prepared corpus to a model folder.
It has reached the peer's loss when (target - mean) · √n ≥ 3.09 σ: chance does as much once in a
thousand times.

Needs BERTKIT_DATA. Folders are kept in `runs/speedrun`, runs and scores in `speedrun.jsonl` beside
the results; what is there is not run again, but with --fresh. An hour of ours is a record:
`benchmarks/records` has its run file, its journal and the commit.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from itertools import cycle
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median, stdev
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
import torch
from torch.nn import functional as F

from benchmarks import kept
from benchmarks.downstream import scores
from benchmarks.embed import minilm
from benchmarks.finetune import data_folder, numbers
from benchmarks.harness import Options, bf16_here, once
from bertkit.checkpoint.folder import load
from bertkit.checkpoint.run_folder import JOURNAL
from bertkit.config import read_toml
from bertkit.console import quietly
from bertkit.data.collate import collate
from bertkit.data.corpus import Corpus
from bertkit.data.masking import Masking
from bertkit.data.segments import Sample, Samples, Sampling, split_documents
from bertkit.models.model import Model
from bertkit.recipes.learn import RUN_FILE
from bertkit.recipes.prepare import prepare
from bertkit.storage import write_text
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.journal import Journal

OURS, TUNED, COPIED = "bertkit-mini", "H1", "H0"
CONFIG = Path(__file__).parents[1] / "configs" / f"{OURS}.toml"
MINUTES = 60
STEPS, SEEDS = {TUNED: 100, COPIED: 50}, 6
"""Of a short run of ours to the loss of each recipe, and how many there are."""
SHORT = {"learning_rate": 1.6e-2, "first_window": 8}
"""Settings of short runs: the fewer the steps, the higher the rate may be, and a model whose tokens
attend to near ones alone at first leaves its first plateau sooner (notes/2026-11.md)."""
LENGTH = 128
FILLED = Sampling(
    pairs="none", cross_documents=True, length=LENGTH, short_seq_probability=0.0, held_out=0.01
)
"""Of the peer, and of the samples that both are scored by; ours holds out the same documents."""
EXAM = 2048
"""Samples that are scored at most."""
PLACE = Path("runs") / "speedrun"
RECORDS = Path(__file__).parent / "records"
"""Published records. New records are written to `kept.LOCAL`."""
SHOWN = 100
"""Steps between those that a record's journal has, beside scores of held-out text."""
AHEAD = 3.0
"""Points downstream by which ours is to be ahead."""
SOONER = {TUNED: 15.0, COPIED: 60.0}
"""How many times sooner ours is to have the loss of an hour."""
TRIAL = {OURS: 64, TUNED: 32, COPIED: 64}
"""Steps by which the tokens of an hour are counted; they take about as long."""


class Recipe(NamedTuple):
    """How the peer learns."""

    title: str
    batch_size: int
    learning_rate: float
    warmup: float
    """A share of the steps."""
    beta2: float
    weight_decay: float
    bf16: bool


RECIPES: Mapping[str, Recipe] = {
    TUNED: Recipe("transformers, tuned (H1)", 16, 1e-3, 0.05, 0.98, 0.01, bf16=True),
    COPIED: Recipe(
        "transformers, its example's defaults (H0)", 8, 5e-5, 0.0, 0.999, 0.0, bf16=False
    ),
}


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


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What an hour of ours came to, and with what."""

    run: Run
    date: str
    commit: str
    machine: kept.Machine
    versions: dict[str, str]


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
    data, quick, book = data_folder(), options.quick, options.book("speedrun")
    log = kept.log_of("speedrun")
    if options.fresh and log.exists() and not quick:
        write_text(log, "")
    lines: list[Any] = [] if quick else read_log(log)
    text = corpus()
    short = {who: 4 if quick else steps for who, steps in STEPS.items()}

    def add(line: Run | Scores) -> None:
        lines.append(line)
        print(told(line), flush=True)
        if not quick:
            kept.append(log, msgspec.json.encode(line).decode() + "\n")

    with halves() as (first, second), TemporaryDirectory() as place:
        root = Path(place) if quick else PLACE

        def both(call: Callable[..., Any], *given: object) -> list[Any]:
            """What ours and the tuned peer come to, at the same time."""
            asked = [first(call, OURS, *given), second(call, TUNED, *given)]
            return [one.result() for one in asked]

        if not runs_of(lines, TUNED):
            for run in both(hour, text.folder, root, quick):
                add(run)
        for seed in numbers(options.seeds or ("0" if quick else "0,1,2")):
            if not any(isinstance(line, Scores) and line.seed == seed for line in lines):
                for line in both(scored, root, data, seed, quick):
                    add(line)
        book.add(points_of(lines))
        asked, free = [], cycle([first, second])
        if not runs_of(lines, COPIED):
            asked.append(second(hour, COPIED, text.folder, root, quick))
            free = cycle([first])
        for steps in short.values():
            there = {run.seed for run in short_runs(lines, steps)}
            todo = [seed for seed in range(2 if quick else SEEDS) if seed not in there]
            asked += [next(free)(our_run, text.folder, seed, steps) for seed in todo]
        for one in as_completed(asked):  # so that what is done is kept if the rest is stopped
            add(one.result())
    for who, steps in short.items():
        book.add(*minutes_to(who, short_runs(lines, steps), lines))
    book.close()


def minutes_to(who: str, short: Sequence[Run], lines: Sequence[Run | Scores]) -> list[kept.Row]:
    """How long ours takes to the loss that a recipe has after an hour, if it came to it."""
    (theirs,) = runs_of(lines, who)
    losses = [run.loss for run in short]
    apart = stdev(losses)
    if (theirs.loss - mean(losses)) * math.sqrt(len(losses)) < 3.09 * apart:
        return []
    return [
        kept.row(
            f"BERT-mini's size, minutes to the loss of {who} after an hour",
            mean(run.minutes for run in short),
            theirs.minutes,
            peer_name=RECIPES[who].title,
            unit="minutes",
            target=SOONER[who],
            better="lower",
            how=(
                kept.How(f"{short[0].tokens:,} tokens, {mean(losses):.3f} ± {apart:.3f}"),
                kept.How(f"{theirs.tokens:,} tokens, {theirs.loss:.3f}"),
            ),
        )
    ]


def points_of(lines: Sequence[Run | Scores]) -> kept.Row:
    """The scores downstream."""
    (theirs,) = runs_of(lines, TUNED)
    ours = max(runs_of(lines, OURS), key=lambda run: run.tokens)
    points = {
        who: [line.mean for line in lines if isinstance(line, Scores) and line.who == who]
        for who in (OURS, TUNED)
    }

    def how(run: Run) -> kept.How:
        scores = points[run.who]
        over = f" ± {stdev(scores):.2f}" if len(scores) > 1 else ""
        return kept.How(
            f"{run.tokens:,} tokens in {run.minutes:.1f} minutes, loss {run.loss:.3f}; "
            f"{mean(scores):.2f}{over}, seeds of fine-tuning: {len(scores)}"
        )

    us, them = (mean(points[who]) for who in (OURS, TUNED))
    return kept.row(
        "BERT-mini's size, mean of ten scores after an hour",
        us,
        them,
        peer_name=RECIPES[TUNED].title,
        unit="points",
        target=(them + AHEAD) / them,
        better="higher",
        how=(how(ours), how(theirs)),
    )


def short_runs(lines: Sequence[Run | Scores], steps: int) -> list[Run]:
    """Those of ours that took so many steps."""
    return [run for run in runs_of(lines, OURS) if run.tokens == tokens_of(OURS, steps)]


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


def hour(who: str, folder: Path, root: Path, quick: bool) -> Run:
    """What one side learned in an hour; its folder stays."""
    text, seconds = Corpus.open(folder), 1 if quick else 60 * MINUTES
    with TemporaryDirectory() as place:
        out = Path(place) / "out"
        rate = learned(who, text, out, steps=4 if quick else TRIAL[who], seed=0)
        steps = max(4, round(rate * seconds / tokens_of(who, 1)))
        shutil.rmtree(out)
        began = time.perf_counter()
        rate = learned(who, text, out, steps=steps, seed=0)
        minutes = (time.perf_counter() - began) / 60
        shutil.rmtree(hour_of(root, who), ignore_errors=True)  # of an hour that was stopped
        once(hour_of(root, who), lambda kept: shutil.copytree(out, kept))
        loss = loss_of(load(out).model, exam(text, 1))
    tokens = tokens_of(who, steps)
    run = Run(who=who, tokens=tokens, seed=0, minutes=minutes, loss=loss, rate=rate)
    if who == OURS and not quick:
        keep_record(hour_of(root, who), run)
    return run


def keep_record(out: Path, run: Run, records: Path = kept.LOCAL / "records") -> None:
    """Keep the run file and the journal of an hour's folder, and what made it."""
    asked = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"],
        capture_output=True,
        check=False,
        text=True,
    )
    record = Record(
        run=run,
        date=kept.now(),
        commit=asked.stdout.strip(),
        machine=kept.machine(),
        versions=kept.versions(),
    )
    folder = records / f"{record.date[:10]}-{run.who}"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(out / RUN_FILE, folder)
    few = [r for r in Journal(out).records() if "held_out" in r or r["step"] % SHOWN == 0]
    write_text(folder / JOURNAL, "".join(json.dumps(line) + "\n" for line in few))
    told = msgspec.json.format(msgspec.json.encode(record), indent=2)
    write_text(folder / "record.json", told.decode() + "\n")


def tokens_of(who: str, steps: int) -> int:
    own = who == OURS
    samples = read_toml(CONFIG)["train"]["batch_size"] if own else RECIPES[who].batch_size
    return int(steps * samples * LENGTH)


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
        speed = learned_by_ours(text, out, steps=steps, seed=seed, **SHORT)
        minutes = (time.perf_counter() - began) / 60
        loss = loss_of(load(out).model, exam(text, 1))
    tokens = tokens_of(OURS, steps)
    return Run(who=OURS, tokens=tokens, seed=seed, minutes=minutes, loss=loss, rate=speed)


def learned(who: str, text: Corpus, out: Path, *, steps: int, seed: int) -> float:
    """A folder of one side after so many steps; answers its tokens/s."""
    if who == OURS:
        return learned_by_ours(text, out, steps=steps, seed=seed)
    return learned_by_peer(RECIPES[who], text, out, steps=steps, seed=seed)


def learned_by_ours(text: Corpus, out: Path, **changed: float) -> float:
    """The folder of a run with these settings of training; answers its tokens/s."""
    command = [sys.executable, "-m", "bertkit", "pretrain", OURS, "--corpus", str(text.folder)]
    command += [word for name, n in changed.items() for word in (f"--train.{name}", str(n))]
    subprocess.run([*command, "--out", str(out)], check=True, capture_output=True)
    records = Journal(out).records()
    return float(median(r["tokens_per_second"] for r in records if "tokens_per_second" in r))


def learned_by_peer(recipe: Recipe, text: Corpus, out: Path, *, steps: int, seed: int) -> float:
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
    size = recipe.batch_size
    rows = iter(list(peer_rows(text, steps * size, seed)))
    collator = DataCollatorForLanguageModeling(tokenizer)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=recipe.learning_rate,
        betas=(0.9, recipe.beta2),
        weight_decay=recipe.weight_decay,
        fused=True,
    )
    schedule = get_linear_schedule_with_warmup(optimizer, int(recipe.warmup * steps), steps)
    began = time.perf_counter()
    for _ in range(steps):
        batch = collator([next(rows) for _ in range(size)])
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=recipe.bf16 and bf16_here()):
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    took = time.perf_counter() - began
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return steps * size * LENGTH / took


def peer_rows(text: Corpus, count: int, seed: int) -> Iterator[dict[str, list[int]]]:
    """Samples of the training documents, in which nothing is masked yet."""
    learned, _ = split_documents(text, FILLED.held_out)
    samples = Samples(text, text.tokenizer(), FILLED, Masking(), documents=learned, seed=seed)
    for start in range(0, count, 64):
        for sample in samples.batch(start, 64):
            ids = sample.ids.copy()
            ids[sample.masked_positions] = sample.labels
            yield {"input_ids": ids.tolist(), "attention_mask": [1] * len(ids)}
