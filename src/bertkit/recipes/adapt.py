"""Go on pretraining a model on the text of one's own field. Gururangan et al. 2020."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from bertkit.checkpoint.directory import load
from bertkit.config import override, plain
from bertkit.console import say
from bertkit.errors import ConfigError
from bertkit.recipes.pretrain import pretrain
from bertkit.recipes.pretrain_config import read_config
from bertkit.training.journal import Journal

PAIRS = ("nsp", "sop")

DEFAULTS: dict[str, Any] = {
    "sampling": {"length": 128},
    "train": {
        "steps": 1_000,
        "batch_size": 64,
        "learning_rate": 1e-4,
        "warmup_steps": 60,
        "evaluate_every": 250,
        "save_every": 250,
    },
}
"""Of a run that adapts; all else is as in pretraining, and the shape is the model's."""


def adapt(
    model: str | Path,
    *,
    corpus: Path | str,
    out: Path,
    settings: Iterable[tuple[str, str]] = (),
    resume: bool = False,
) -> dict[str, dict[str, float]]:
    """Pretrain a model further, and return its held-out losses before and after.

    `settings` are dotted names and values. A causal model learns the words that come next, another
    masked words and the pairs it was pretrained with, if its folder holds their head. A head that
    the folder lacks starts at random.
    Raises: ConfigError for a model with an encoder and a decoder, DataError for a corpus of another
    vocabulary.
    """
    loaded = load(model)
    if loaded.model.decoder is not None:
        raise ConfigError(
            f"{model}: has an encoder and a decoder, which learn from pairs of texts; fine-tune it "
            "(`bertkit finetune seq2seq`)"
        )
    pairs = next((head for head in PAIRS if head in loaded.model.heads), "none")
    causal = loaded.model.config.attention.causal
    data = {
        **DEFAULTS,
        "family": loaded.family.name,
        "objective": "next" if causal else "masked",
        "model": plain(loaded.model.config),
        "sampling": {**DEFAULTS["sampling"], "pairs": pairs},
    }
    settings = list(settings)
    shape = [name for name, _ in settings if name.startswith(("model.", "family", "generator"))]
    if shape:
        raise ConfigError(f"{shape[0]}: the shape is that of {model}; leave it out")
    data = override(data, settings)
    config = read_config(data, loaded.tokenizer)
    torch.manual_seed(config.train.seed)
    opened = load(model, heads=config.heads)
    fresh = sorted({name.split(".")[1] for name in opened.report.fresh})
    if fresh:
        say(f"{model}: has no head {', '.join(fresh)}; it starts at random")
    pretrain(data, corpus=corpus, out=out, resume=resume, start_from=opened)
    losses = [record["held_out"] for record in Journal(out).records() if "held_out" in record]
    return {"before": losses[0], "after": losses[-1]} if losses else {}
