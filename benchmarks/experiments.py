"""What each setting is worth to a small encoder that learns for minutes: one change at a time.

A run learns from 4 million tokens of the speedrun's corpus, on a CPU from one million, and is
scored by its held-out samples: `choose` by the half that settings may be chosen by, `score` by the
other. Everything is tried at
BERT-mini's size, and what may win again at those of BERT-small and BERT-base. On a GPU many runs go
on at once. What has run is kept (`experiments.jsonl` beside the results) and not run again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import torch

from benchmarks import kept
from benchmarks.finetune import numbers
from benchmarks.harness import Options, at_once
from benchmarks.speedrun import corpus, device, exam, loss_of
from bertkit.checkpoint.folder import load
from bertkit.config import merged
from bertkit.console import quietly
from bertkit.data.corpus import Corpus
from bertkit.recipes.pretrain import pretrain
from bertkit.storage import write_text

TOKENS = 4_000_000 if torch.cuda.is_available() else 1_000_000
LENGTH, BATCH = 128, 64
BASE: dict[str, Any] = {
    "family": "modernbert",
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
SIZES: Mapping[str, dict[str, Any]] = {
    "bert-mini": {"layers": 4, "hidden": 256, "heads": 4},
    "bert-small": {"layers": 4, "hidden": 512, "heads": 8},
    "bert-base": {"layers": 12, "hidden": 768, "heads": 12},
}
FAMILIES: Mapping[str, Callable[[int], dict[str, Any]]] = {
    "modernbert": lambda hidden: {
        "intermediate": hidden * 11 // 4,
        "attention": {"window": {"tokens": 128, "global_every": 1}},
    },
    "bert": lambda hidden: {"intermediate": 4 * hidden},
    "gte": lambda hidden: {"intermediate": hidden * 11 // 4},
    "nomic_bert": lambda hidden: {"intermediate": hidden * 11 // 4},
}
"""What their models have besides, by hidden size: gated layers have three matrices, and so narrower
ones."""
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


TOGETHER = train(batch_size=32, embedding_learning_rate=1e-3, schedule="wsd", zero_init=True)
"""As the run file bertkit-mini has it, but for the length of its warm-up."""

PAPERS: Mapping[str, dict[str, Any]] = {
    **{
        f"BERT's layers, AdamW {rate}, 15 %": {
            "family": "bert",
            "model": STILL,
            **train(**ADAMW, learning_rate=float(rate)),
            **masks(mlm_probability=0.15),
        }
        for rate in ("1e-3", "3e-4")
    },
    "bert-mini's run file at 64 samples": {
        "family": "bert",
        "sampling": {"pairs": "nsp", "cross_documents": False, "short_seq_probability": 0.1},
        **train(**ADAMW, learning_rate=5e-4, betas=[0.9, 0.999]),
        **masks(mlm_probability=0.15),
    },
}
"""What people copy."""

ALONE: Mapping[str, dict[str, Any]] = {
    "BERT's layers": {"family": "bert", "model": STILL},
    "GTE's layers": {"family": "gte", "model": STILL},
    "GTE's layers, dropout": {"family": "gte", "model": {"dropout": 0.1}},
    "Nomic's layers": {"family": "nomic_bert", "model": STILL},
    **{
        f"rotary base {base:g}": {"model": {"positions": {"kind": "rotary", "base": base}}}
        for base in (1e2, 1e3, 1e4)
    },
    "documents apart": {
        "sampling": {"cross_documents": False, "short_seq_probability": 0.1},
    },
    "AdamW 2e-3": train(**ADAMW, learning_rate=2e-3),
    "AdamW 4e-3": train(**ADAMW),
    **{f"rate {rate:g}": train(learning_rate=rate) for rate in (1e-3, 2e-3, 8e-3, 1.6e-2)},
    **{f"{size} samples a step": train(batch_size=size) for size in (16, 32, 128)},
    "16 to 64 samples": {
        **train(first_batch_size=16, batch_size=64),
        "shares": {"batch_warmup_steps": 0.5},
    },
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
    "8 × 176": {"model": {"layers": 8, "hidden": 176, "heads": 2, "intermediate": 480}},
    "6 × 208": {"model": {"layers": 6, "hidden": 208, "heads": 2, "intermediate": 576}},
    "3 × 304": {"model": {"layers": 3, "hidden": 304, "heads": 2, "intermediate": 832}},
    "2 × 384": {"model": {"layers": 2, "hidden": 384, "intermediate": 1024}},
    **{f"{heads} heads": {"model": {"heads": heads}} for heads in (2, 8)},
    "ReLU²": {"model": {"feedforward": {"activation": "relu2"}}},
    "gradients not scaled": train(max_grad_norm=0.0),
    "mean of the last 5 %": {"shares": {"average_steps": 0.05}},
    **{f"weight decay {decay:g}": train(weight_decay=decay) for decay in (0.0, 0.1, 0.3)},
    "betas 0.9, 0.95": train(betas=[0.9, 0.95]),
    "eps 1e-8": train(eps=1e-8),
    **{f"momentum {share:g}": train(momentum=share) for share in (0.9, 0.98)},
    **{f"window {tokens}": window(tokens) for tokens in (8, 16, 32)},
    **{f"first window {tokens}": train(first_window=tokens) for tokens in (4, 8, 16)},
    **{
        f"first window 8, {share:.0%}": train(first_window=8, first_window_share=share)
        for share in (0.1, 0.25, 0.75)
    },
    "whole words": masks(unit="word"),
}
"""Each by its name; `shares` are of the run's steps."""

CHANGES: Mapping[str, dict[str, Any]] = {
    "base": {},
    **PAPERS,
    **ALONE,
    "together": TOGETHER,
    "together, no zero-init": merged(TOGETHER, train(zero_init=False)),
    "together, no zero-init, first window 8": merged(
        TOGETHER, train(zero_init=False, first_window=8)
    ),
    "together, even decay": merged(TOGETHER, train(schedule="linear")),
    **{
        f"together, {name}": both
        for name, change in ALONE.items()
        if (both := merged(TOGETHER, change)) != TOGETHER
    },
}
"""One by one, and on top of those that won."""

AGAIN: Mapping[str, tuple[str, ...]] = {
    "bert-base": (
        "together",
        "together, rate 0.002",
        "together, rate 0.001",
        "BERT's layers, AdamW 3e-4, 15 %",
    ),
    "bert-small": (
        "base",
        "together",
        "together, rate 0.002",
        "together, rate 0.008",
        "together, no zero-init",
        "together, no zero-init, first window 8",
        "BERT's layers, AdamW 1e-3, 15 %",
        "BERT's layers, AdamW 3e-4, 15 %",
        "AdamW 2e-3",
        "32 samples a step",
        "rate of embeddings 0.001",
        "decay over 40%",
        "zero-init",
    ),
}
"""What is tried at other sizes, those that take longest first."""


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the log: what a change came to."""

    name: str
    seed: int
    size: str = "bert-mini"
    tokens: int
    choose: float
    score: float
    device: str


def main(options: Options) -> None:
    log = kept.log_of("experiments")
    if options.fresh and not options.quick and log.exists():
        write_text(log, "")
    known = [] if options.quick else read_log(log)
    done = {(line.size, line.name, line.seed) for line in known if line.tokens == TOKENS}
    text, tokens = corpus(), 4 * BATCH * LENGTH if options.quick else TOKENS
    wanted = [
        (text.folder, size, name, seed, tokens)
        for seed in numbers(options.seeds or ("0" if options.quick else "0,1,2"))
        for size, names in {**AGAIN, "bert-mini": CHANGES}.items()
        for name in names
        if (size, name, seed) not in done and options.only.lower() in f"{size}, {name}".lower()
    ]
    for line in at_once(tried, wanted, options):
        known.append(line)
        if not options.quick:
            kept.append(log, msgspec.json.encode(line).decode() + "\n")
    for line in sorted(known, key=lambda line: line.choose):
        print(
            f"{line.score:.3f}  {line.choose:.3f}  {line.size}, {line.name}, seed {line.seed}, "
            f"{line.tokens / 1e6:g} million tokens"
        )


def read_log(path: Path) -> list[Tried]:
    return kept.lines(path, Tried)


def settings_of(size: str, name: str, seed: int, tokens: int) -> dict[str, Any]:
    """The run file of a change."""
    change = dict(CHANGES[name])
    shares = SHARES | change.pop("shares", {})
    model = {"max_positions": 512, **SIZES[size]}
    model |= FAMILIES[change.get("family", BASE["family"])](model["hidden"])
    run = merged(BASE | {"model": model}, change)
    samples = run["train"].get("batch_size", BATCH)
    steps = max(8, round(tokens / (samples * LENGTH)))
    lengths = {what: max(1, round(share * steps)) for what, share in shares.items()}
    return merged(run, train(steps=steps, batch_size=samples, seed=seed, **lengths))


def tried(folder: Path, size: str, name: str, seed: int, tokens: int) -> Tried:
    if torch.cuda.is_available():
        torch.set_num_threads(1)
    text = Corpus.open(folder)
    with TemporaryDirectory() as place:
        with quietly():
            run = settings_of(size, name, seed, tokens)
            pretrain(run, corpus=folder, out=Path(place) / "run")
        model = load(Path(place) / "run").model
    choose, score = (loss_of(model, exam(text, half)) for half in (0, 1))
    return Tried(
        name=name, seed=seed, size=size, tokens=tokens, choose=choose, score=score, device=device()
    )
