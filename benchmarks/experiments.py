"""What each setting is worth to a small encoder that learns for minutes: one change at a time.

A run learns from 4 million tokens of the speedrun's corpus, and is scored by its held-out samples:
`choose` by the half that settings may be chosen by, `score` by the other. On a GPU many runs go on
at once. What has run is kept (`experiments.jsonl` beside the results) and not run again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import torch

from benchmarks import kept
from benchmarks.harness import Options
from benchmarks.speedrun import corpus, device, exam, loss_of
from bertkit.checkpoint.folder import load
from bertkit.config import merged
from bertkit.console import quietly
from bertkit.data.corpus import Corpus
from bertkit.recipes.pretrain import pretrain
from bertkit.storage import write_text

TOKENS, LENGTH, BATCH = 4_000_000, 128, 64
AT_ONCE = 14
"""Runs on a GPU, whose kernels are short beside what starts them."""

BASE: dict[str, Any] = {
    "family": "modernbert",
    "model": {
        "layers": 4,
        "hidden": 256,
        "heads": 4,
        "intermediate": 704,
        "max_positions": 512,
        "attention": {"window": {"tokens": 128, "global_every": 1}},
    },
    "sampling": {
        "pairs": "none",
        "cross_documents": True,
        "length": LENGTH,
        "short_seq_probability": 0.0,
    },
    "masking": {"mlm_probability": 0.3},
    "train": {
        "optimizer": "muon",
        "learning_rate": 4e-3,
        "betas": [0.9, 0.98],
        "evaluate_samples": 0,
        "max_batch_tokens": 16_384,
    },
}
BERT = {"layers": 4, "hidden": 256, "heads": 4, "intermediate": 1024, "max_positions": 512}
STILL = {"dropout": 0.0, "attention_dropout": 0.0}
ADAMW = {"optimizer": "adamw"}
SHARES = {"warmup_steps": 0.05}
"""Of the steps."""


def train(**settings: Any) -> dict[str, Any]:
    return {"train": settings}


def masks(**settings: Any) -> dict[str, Any]:
    return {"masking": settings}


def window(tokens: int) -> dict[str, Any]:
    return {"model": {"attention": {"window": {"tokens": tokens, "global_every": 2}}}}


CHANGES: Mapping[str, dict[str, Any]] = {
    "base": {},
    "BERT's layers": {"family": "bert", "model": BERT | STILL},
    "BERT's layers, AdamW 1e-3, 15 %": {
        "family": "bert",
        "model": BERT | STILL,
        **train(**ADAMW, learning_rate=1e-3),
        **masks(mlm_probability=0.15),
    },
    "bert-mini's run file at 64 samples": {
        "family": "bert",
        "model": BERT,
        "sampling": {"pairs": "nsp", "cross_documents": False, "short_seq_probability": 0.1},
        **train(**ADAMW, learning_rate=5e-4, betas=[0.9, 0.999]),
        **masks(mlm_probability=0.15),
    },
    "AdamW 2e-3": train(**ADAMW, learning_rate=2e-3),
    "AdamW 4e-3": train(**ADAMW),
    **{f"rate {rate:g}": train(learning_rate=rate) for rate in (2e-3, 8e-3, 1.6e-2)},
    **{f"{size} samples a step": train(batch_size=size) for size in (16, 32, 128)},
    "16 to 64 samples": {**train(first_batch_size=16), "shares": {"batch_warmup_steps": 0.5}},
    **{f"masks {share:.0%}": masks(mlm_probability=share) for share in (0.15, 0.2, 0.4)},
    "masks 30 to 15 %": masks(first_mlm_probability=0.3, mlm_probability=0.15),
    "masks 15 %, then 30 %": masks(first_mlm_probability=0.15, first_share=0.3, schedule="step"),
    "zero-init": train(zero_init=True),
    **{
        f"rate of embeddings {rate:g}": train(embedding_learning_rate=rate)
        for rate in (1e-3, 1.2e-2, 4e-2)
    },
    **{f"rate of AdamW's {rate:g}": train(adamw_learning_rate=rate) for rate in (1e-3, 1e-2)},
    "z-loss": train(z_loss=1e-4),
    **{
        f"decay over {share:.0%}": {**train(schedule="wsd"), "shares": {"decay_steps": share}}
        for share in (0.4, 0.7)
    },
    **{f"warm-up {share:.0%}": {"shares": {"warmup_steps": share}} for share in (0.01, 0.15)},
    "6 × 208": {"model": {"layers": 6, "hidden": 208, "heads": 2, "intermediate": 576}},
    "3 × 304": {"model": {"layers": 3, "hidden": 304, "heads": 2, "intermediate": 832}},
    "2 × 384": {"model": {"layers": 2, "hidden": 384, "intermediate": 1024}},
    **{f"{heads} heads": {"model": {"heads": heads}} for heads in (2, 8)},
    "gradients not scaled": train(max_grad_norm=0.0),
    "mean of the last 5 %": {"shares": {"average_steps": 0.05}},
    **{f"weight decay {decay:g}": train(weight_decay=decay) for decay in (0.0, 0.1, 0.3)},
    "betas 0.9, 0.95": train(betas=[0.9, 0.95]),
    "eps 1e-8": train(eps=1e-8),
    **{f"momentum {share:g}": train(momentum=share) for share in (0.9, 0.98)},
    "window 16": window(16),
    "whole words": masks(unit="word"),
}
"""Each by its name. A family of its own replaces the model; `shares` are of the run's steps."""


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the log: what a change came to."""

    name: str
    seed: int
    tokens: int
    choose: float
    score: float
    device: str


def main(options: Options) -> None:
    log = kept.log_of("experiments")
    if options.fresh and not options.quick and log.exists():
        write_text(log, "")
    known = [] if options.quick else read_log(log)
    done = {(line.name, line.seed) for line in known}
    seeds = [int(seed) for seed in (options.seeds or "0,1").split(",")]
    wanted = [
        (name, seed)
        for seed in seeds
        for name in CHANGES
        if (name, seed) not in done and options.only.lower() in name.lower()
    ]
    text, tokens = corpus(), 4 * BATCH * LENGTH if options.quick else TOKENS
    processes = min(AT_ONCE, os.cpu_count() or 1) if torch.cuda.is_available() else 1
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        runs = [pool.submit(tried, text.folder, name, seed, tokens) for name, seed in wanted]
        for run in as_completed(runs):
            known.append(run.result())
            if not options.quick:
                kept.append(log, msgspec.json.encode(known[-1]).decode() + "\n")
    for line in sorted(known, key=lambda line: line.choose):
        print(f"{line.score:.3f}  {line.choose:.3f}  {line.name}, seed {line.seed}")


def read_log(path: Path) -> list[Tried]:
    return kept.lines(path, Tried)


def settings_of(name: str, seed: int, tokens: int) -> dict[str, Any]:
    """The run file of a change."""
    change = dict(CHANGES[name])
    shares = SHARES | change.pop("shares", {})
    base = {k: v for k, v in BASE.items() if k != "model"} if "family" in change else BASE
    run = merged(base, change)
    size = run["train"].get("batch_size", BATCH)
    steps = max(8, round(tokens / (size * LENGTH)))
    lengths = {what: max(1, round(share * steps)) for what, share in shares.items()}
    return merged(run, train(steps=steps, batch_size=size, seed=seed, **lengths))


def tried(folder: Path, name: str, seed: int, tokens: int) -> Tried:
    if torch.cuda.is_available():
        torch.set_num_threads(1)
    text = Corpus.open(folder)
    with TemporaryDirectory() as place:
        with quietly():
            pretrain(settings_of(name, seed, tokens), corpus=folder, out=Path(place) / "run")
        model = load(Path(place) / "run").model
    choose, score = (loss_of(model, exam(text, half)) for half in (0, 1))
    return Tried(name=name, seed=seed, tokens=tokens, choose=choose, score=score, device=device())
