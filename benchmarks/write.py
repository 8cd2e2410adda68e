"""Subjects for mails (AESLC): a small BART from nothing, and one pretrained on prose first.

Both have the same shape and vocabulary, and learn from the same mails by the same settings; the
other is first pretrained (infilling) on film reviews and the texts of the mails to learn from. Half
of the validation mails chooses the epoch, the other half is scored: ROUGE-1 against the mail's own
subject, beside its first words, as many as a subject has on average in these rows. The runs are
kept in runs/write: what is there is not run again. Needs BERTKIT_DATA.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from benchmarks import kept
from benchmarks.harness import Options, once
from bertkit.config import override
from bertkit.recipes.finetune import Finetune, finetune
from bertkit.recipes.prepare import prepare
from bertkit.recipes.pretrain import pretrain
from bertkit.recipes.rouge import SummaryScore, evaluate_summaries
from bertkit.recipes.run_file import read_run_file
from bertkit.recipes.vocabulary import train_vocabulary
from bertkit.tasks.task import Reading

RUNS = Path("runs", "write")
PIECES, STEPS, LENGTH, EPOCHS = 8000, 2000, 128, 6
STRETCH = 64
"""Tokens of a sample of pretraining: of 128, copying is not learned in as many steps."""

SHAPE = [
    ("model.layers", "3"),
    ("model.dropout", "0.0"),
    ("model.attention_dropout", "0.0"),
    ("corruption.permute", "false"),
    ("sampling.length", str(STRETCH)),
    ("train.batch_size", "32"),
    ("train.learning_rate", "7e-4"),
]
SUBJECT = Reading(text="text", label="subject")


def main(options: Options) -> None:
    data = os.environ.get("BERTKIT_DATA")
    if data is None:
        sys.exit("BERTKIT_DATA: names no folder of data sets, and AESLC is among them")
    folder = RUNS.with_name("write-quick") if options.quick else RUNS
    folder.mkdir(parents=True, exist_ok=True)
    scores = {
        start: scored(folder, Path(data), steps=steps, start=start, quick=options.quick)
        for start, steps in (("untrained", 1), ("pretrained", 20 if options.quick else STEPS))
    }
    book = options.book("write")
    prose = scores["pretrained"].rouge1
    nothing = max(scores["untrained"].rouge1, 1e-4)  # a zero has no ratio
    settings = kept.How(f"BART, 3 + 3 × 256; {STEPS:,} steps of 32 × {STRETCH} tokens")
    book.add(
        kept.row(
            "AESLC subjects, from nothing", 100 * nothing,
            100 * scores["untrained"].lead_rouge1, peer_name="lead words", unit="ROUGE-1",
            target=1.0, better="higher",
            how=(settings, kept.How(f"the first {scores['untrained'].lead_words} words")),
        )
    )  # fmt: skip
    book.add(
        kept.row(
            "AESLC subjects, pretrained on prose first", 100 * prose, 100 * nothing,
            peer_name="from nothing", unit="ROUGE-1", target=1 + 0.03 / nothing, better="higher",
            how=(settings, kept.How("the same mails and settings")),
        )
    )  # fmt: skip
    book.close()


def scored(folder: Path, data: Path, *, steps: int, start: str, quick: bool) -> SummaryScore:
    """The scores of a model that began so, on mails that chose nothing."""
    files = mails(folder, data, rows=60 if quick else None)
    texts = [data / "prose_reviews", files["train"]]
    vocabulary = once(
        folder / "vocabulary",
        lambda out: train_vocabulary(texts, out=out, kind="bpe", size=PIECES, lowercase=False),
    )
    corpus = once(folder / "corpus", lambda out: prepare(texts, tokenizer=vocabulary, out=out))
    plan = [("train.steps", str(steps)), ("train.warmup_steps", str(min(200, steps - 1)))]
    settings = override(read_run_file("bart-mini"), [*SHAPE, *plan])
    run = once(folder / start, lambda out: pretrain(settings, corpus=corpus, out=out))
    tuned = once(
        folder / f"{start}-tuned",
        lambda out: finetune(
            "seq2seq", run, train=files["train"], dev=files["choose"], out=out, reading=SUBJECT,
            settings=Finetune(epochs=1 if quick else EPOCHS, learning_rate=5e-4, length=LENGTH),
        ),
    )  # fmt: skip
    return evaluate_summaries(tuned, files["score"], reading=SUBJECT)


def mails(folder: Path, data: Path, *, rows: int | None) -> dict[str, Path]:
    """Files of mails to learn from, to choose the epoch by, and to score on."""
    parts = {}
    read = {
        name: (data / "aeslc" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()[:rows]
        for name in ("train_every3rd", "dev")
    }
    half = len(read["dev"]) // 2
    for name, lines in (
        ("train", read["train_every3rd"]),
        ("choose", read["dev"][:half]),
        ("score", read["dev"][half:]),
    ):
        parts[name] = folder / f"{name}.jsonl"
        with parts[name].open("w", encoding="utf-8") as file:
            for mail in map(json.loads, lines):
                if mail["body"].strip() and mail["subject"].strip():
                    row = {"text": mail["body"], "subject": mail["subject"]}
                    file.write(json.dumps(row) + "\n")
    return parts
