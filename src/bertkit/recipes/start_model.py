"""Settings and initial weights of a run that continues the pretraining of a model.

Source: Gururangan et al. 2020.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from bertkit.checkpoint.directory import Loaded, load
from bertkit.config import override, plain
from bertkit.console import say
from bertkit.errors import ConfigError
from bertkit.recipes.pretrain_config import read_config

PAIR_HEADS = ("nsp", "sop")
SHAPE = ("model.", "family", "generator")
"""Prefixes of the settings that are taken from the model, and so cannot be changed."""

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
"""Defaults of continued pretraining that differ from the defaults of pretraining from scratch."""


def load_start(
    model: str, changes: Sequence[tuple[str, str]], recorded: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], Loaded]:
    """Load a model whose pretraining is continued, and return the settings of the run.

    A causal model is trained to predict the next token. Any other model is trained to predict
    masked tokens and, if it has a head for sentence pairs, on these pairs. A missing head is newly
    initialized.

    Args:
        model: Model directory or hub id.
        changes: Names of settings and their new values, such as `("train.steps", "300")`.
        recorded: Settings of the run, if it is resumed.

    Returns:
        The settings of a run file, and the model.

    Raises:
        ConfigError: If the model is an encoder-decoder model, or a change would affect its shape.
    """
    fixed = next((name for name, _ in changes if name.startswith(SHAPE)), None)
    if fixed is not None:
        raise ConfigError(f"{fixed}: {model} determines this setting; remove {fixed}")
    loaded = load(model)
    settings = override(recorded or _settings(loaded, model), changes)
    config = read_config(settings, loaded.tokenizer)
    torch.manual_seed(config.train.seed)
    start = load(model, heads=config.heads)
    missing = sorted({name.split(".")[1] for name in start.report.fresh})
    if missing:
        say(f"{model} does not contain the head {', '.join(missing)}; it is newly initialized")
    return settings, start


def _settings(loaded: Loaded, model: str) -> dict[str, Any]:
    """Return settings, as in a run file, with which the pretraining of a model continues."""
    if loaded.model.decoder is not None:
        raise ConfigError(
            f"{model}: pretraining of encoder-decoder models is not supported; use `bertkit "
            "finetune seq2seq`"
        )
    pairs = next((head for head in PAIR_HEADS if head in loaded.model.heads), "none")
    config = loaded.model.config
    return {
        **DEFAULTS,
        "family": loaded.family.name,
        "objective": "next" if config.is_causal else "masked",
        "model": plain(config),
        "sampling": {**DEFAULTS["sampling"], "pairs": pairs},
    }
