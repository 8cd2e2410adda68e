"""Zero-shot classification with an NLI classifier: bertkit against the pipeline of transformers.

100 sentences are classified with 100 labels, so each call computes 10,000 pairs. The model is
MiniLM with a classifier of random weights, because the weights do not affect the time. The baseline
runs in batches of 32 pairs. Both sides compute in the same precision, except in the row of the
defaults: bertkit selects the fastest precision of the processor, and transformers uses fp32.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import bertkit
from benchmarks import kept, text
from benchmarks.embed import minilm
from benchmarks.harness import Options, bf16_here, compare
from bertkit.checkpoint.directory import load, save
from bertkit.nn.precision import Inference

LABELS = 100
TEXTS = 100
BATCH_SIZE = 32
"""Number of pairs in a batch of the baseline."""

NLI = ("entailment", "neutral", "contradiction")


def main(options: Options) -> None:
    book = options.book("zero_shot")
    count = 10 if options.quick else TEXTS
    texts = text.sentences(count)
    sentences = enumerate(text.sentences(LABELS, seed=1))
    labels = [" ".join([str(number), *sentence.split()[:2]]) for number, sentence in sentences]
    plan: list[tuple[str, Inference, torch.dtype]] = [("fp32", "fp32", torch.float32)]
    if bf16_here():
        plan += [("bf16", "bf16", torch.bfloat16), ("defaults", "auto", torch.float32)]
    with TemporaryDirectory() as folder:
        save_classifier(Path(folder))
        for name, precision, dtype in plan:
            title = f"MiniLM, {count} texts, {LABELS} labels, {name}"
            if options.late or not book.needs(title, "transformers"):
                continue
            ours: Any = bertkit.pipeline("zero-shot-classification", folder, precision=precision)
            peer = load_transformers(folder, dtype)
            found, expected = ours(texts[0], labels), peer(texts[0], labels)
            ranks = dict(zip(expected["labels"], expected["scores"], strict=True))
            difference = max(
                abs(score - ranks[label])
                for label, score in zip(found["labels"], found["scores"], strict=True)
            )
            book.add(
                compare(
                    title, partial(ours, texts, labels), partial(peer, texts, labels),
                    peer_name="transformers", unit="texts", work=count, target=3.0,
                    setups=(
                        kept.Setup(f"{precision}; scores differ by at most {difference:.1e}"),
                        kept.Setup(f"{dtype}, batches of {BATCH_SIZE} pairs"),
                    ),
                )
            )  # fmt: skip
    book.close()


def save_classifier(folder: Path) -> None:
    """Save MiniLM with a classifier of NLI labels, with random weights."""
    torch.manual_seed(0)
    loaded = load(minilm(), heads=("classify",), labels=NLI)
    save(folder, loaded.model, loaded.tokenizer, loaded.family, labels=NLI)


def load_transformers(folder: str, dtype: torch.dtype) -> Any:
    from transformers import pipeline

    return pipeline(
        "zero-shot-classification", model=folder, device="cpu", dtype=dtype, batch_size=BATCH_SIZE
    )
