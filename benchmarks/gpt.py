"""Labels the way of GPT's paper: a GPT-mini pretrained on prose, and the same model untrained.

Both have one shape and vocabulary, and learn from the same rows by the same settings, with the next
word beside the labels (λ = 0.5) and without (λ = 0). One is first pretrained on eight
million tokens of film reviews; the other takes one step that changes nothing to speak of. Some rows
choose the epoch, others are scored: of SST-2 two parts of dev, of TREC rows of train that are kept
out, and dev. The runs are kept in runs/gpt: what is there is not run again. Needs BERTKIT_DATA.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import kept
from benchmarks.harness import Options, once
from bertkit.config import override
from bertkit.recipes.evaluate import evaluate
from bertkit.recipes.finetune import Finetune, finetune
from bertkit.recipes.prepare import prepare
from bertkit.recipes.pretrain import pretrain
from bertkit.recipes.run_file import read_run_file
from bertkit.recipes.vocabulary import train_vocabulary
from bertkit.tasks.classify import Classify, Example
from bertkit.tasks.task import Reading

RUNS = Path("runs", "gpt")
PIECES, STEPS, BATCH, LENGTH = 8000, 2000, 32, 128
ROWS, EPOCHS, RATE = 4000, 5, 5e-4
POINTS = 0.05
"""By so much pretraining is to raise the accuracy."""

Parts = dict[str, Sequence[Example]]
"""Rows to learn from, to choose the epoch by, and to score on."""


def main(options: Options) -> None:
    data = os.environ.get("BERTKIT_DATA")
    if data is None:
        sys.exit("BERTKIT_DATA: names no folder of data sets, and SST-2 is among them")
    quick = options.quick
    folder = RUNS.with_name("gpt-quick") if quick else RUNS
    folder.mkdir(parents=True, exist_ok=True)
    book = options.book("gpt")
    pretraining = f"{STEPS:,} steps of {BATCH} × {LENGTH} tokens of reviews by Muon"
    for task, read in (("SST-2", sst2), ("TREC", trec)):
        for weight in (0.5, 0.0):
            what, peer = f"{task}, pretrained, λ = {weight:g}", f"untrained, λ = {weight:g}"
            if options.late or not book.wanted(what, peer):
                continue
            parts = read(Path(data), 300 if quick else ROWS)
            ours, theirs = (
                accuracy(started(folder, Path(data), start=start, quick=quick), parts,
                         folder / f"{start}-{task}-{weight:g}", weight=weight, quick=quick)
                for start in ("pretrained", "untrained")
            )  # fmt: skip
            learned = f"{len(parts['train']):,} rows, {EPOCHS} epochs, {RATE:g}"
            book.add(
                kept.row(
                    what, 100 * ours, 100 * theirs, peer_name=peer, unit="accuracy",
                    target=1 + POINTS / theirs, better="higher",
                    how=(kept.How(f"GPT-mini; {pretraining}; {learned}"), kept.How(learned)),
                )
            )  # fmt: skip
    book.close()


def started(folder: Path, data: Path, *, start: str, quick: bool) -> Path:
    """A GPT-mini that begins so."""
    reviews, learns = data / "prose_reviews", start == "pretrained"
    vocabulary = once(
        folder / "vocabulary",
        lambda out: train_vocabulary(
            [reviews], out=out, kind="bpe", size=PIECES, use="write", lowercase=False
        ),
    )
    corpus = once(folder / "corpus", lambda out: prepare([reviews], tokenizer=vocabulary, out=out))
    steps = (20 if quick else STEPS) if learns else 1
    plan = {
        "sampling.length": LENGTH,
        "train.batch_size": BATCH,
        "train.steps": steps,
        "train.warmup_steps": steps // 15,
        "train.learning_rate": 1e-2 if learns else 1e-9,
        "model.dropout": 0.0,
        "model.attention_dropout": 0.0,
        "train.optimizer": "muon",  # so few tokens teach little by AdamW: notes/2026-11.md
    }
    changes = [(name, str(value)) for name, value in plan.items()]
    settings = override(read_run_file("gpt-mini"), changes)
    return once(folder / start, lambda out: pretrain(settings, corpus=corpus, out=out))


def accuracy(model: Path, parts: Parts, out: Path, *, weight: float, quick: bool) -> float:
    """Of a model that learned from `train`, on rows that chose nothing."""
    settings = Finetune(
        epochs=1 if quick else EPOCHS, learning_rate=RATE, length=LENGTH, lm_weight=weight
    )
    once(
        out,
        lambda part: finetune(
            "classify", model, train=parts["train"], dev=parts["choose"], out=part,
            settings=settings,
        ),
    )  # fmt: skip
    return float(evaluate(str(out), parts["score"])["accuracy"])


def sst2(data: Path, rows: int) -> Parts:
    """Rows of train to learn from; of dev every third chooses, the others are scored."""
    train, dev = (
        Classify.read(data / "sst2" / f"{name}.tsv", Reading(), labelled=True)[0]
        for name in ("train", "dev")
    )
    chosen = [one for place, one in enumerate(dev) if place % 3 == 0]
    others = [one for place, one in enumerate(dev) if place % 3]
    return {
        "train": spread(train, rows), "choose": spread(chosen, rows // 4),
        "score": spread(others, rows),
    }  # fmt: skip


def trec(data: Path, rows: int) -> Parts:
    """Six kinds of questions: every tenth row of train chooses, and dev is scored."""
    parts = {}
    for name in ("train", "dev"):
        path = data / "trec" / f"{name}.txt"
        lines = path.read_text(encoding="utf-8").splitlines()
        pairs = [line.split(maxsplit=1) for line in lines if line.strip()]
        parts[name] = [
            Example(text, None, label.partition(":")[0], f"{path}:{number}")
            for number, (label, text) in enumerate(pairs, 1)
        ]
    chosen = parts["train"][::10]
    learned = [one for place, one in enumerate(parts["train"]) if place % 10]
    return {"train": spread(learned, rows), "choose": spread(chosen, rows), "score": parts["dev"]}


def spread(examples: Sequence[Example], rows: int) -> Sequence[Example]:
    """So many, evenly spaced."""
    step = max(len(examples) / rows, 1.0)
    return [examples[int(place * step)] for place in range(min(rows, len(examples)))]
