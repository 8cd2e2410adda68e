"""Loading of models for fine-tuning, with the head and the special tokens that a task needs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bertkit.checkpoint.directory import Loaded, load, resave
from bertkit.console import say
from bertkit.errors import ConfigError
from bertkit.models import model as models
from bertkit.models.encoder import FeatureEncoder
from bertkit.models.model import SEQUENCE_HEADS, HeadMaker, Model
from bertkit.models.surgery import with_vocabulary
from bertkit.tasks.task import Task
from bertkit.text.causal_format import DELIMITER, EXTRACT, START, add_causal_tokens

LM_WEIGHT = 0.5
"""Default weight of the auxiliary causal LM loss (Radford et al. 2018, section 4.1)."""


def load_for_finetuning(
    model: str | Path | Loaded,
    task: Task[Any, Any],
    lm_weight: float | None,
    *,
    features: str | None = None,
    random_weights: bool = False,
) -> tuple[Loaded, float]:
    """Load a model with the head of a task.

    If `model` is already loaded, it is copied. A causal model for classification or multiple choice
    reads texts in the format of `text.causal_format`. Special tokens of this format that the
    vocabulary lacks are added to it.

    Args:
        model: Model directory, hub id, or loaded model.
        task: The task.
        lm_weight: Weight of the auxiliary causal LM loss. Default: `LM_WEIGHT` if the model is
            causal and has an LM head.
        features: Hidden states of the frozen model that are the input of a new BiLSTM; see
            `Finetune`.
        random_weights: Whether to initialize the weights of the model randomly.

    Returns:
        The model, and the weight of the causal LM loss (0 if it is not used).

    Raises:
        ConfigError: If the model does not support the task or the causal LM loss.
    """
    if random_weights:
        model = _randomized(model if isinstance(model, Loaded) else load(model, heads=()))
    use_lm = task.head in SEQUENCE_HEADS and lm_weight != 0
    makers: dict[str, HeadMaker] = {task.head: task.build_head}
    if use_lm:
        makers["lm"] = lambda encoder: models.head("lm", encoder)
    if isinstance(model, Loaded):
        loaded = _with_heads(model, makers, task)
    else:
        loaded = load(model, heads=makers, labels=task.labels, features=features)
    network = loaded.model
    if isinstance(network.encoder, FeatureEncoder) and task.head not in loaded.family.heads:
        raise ConfigError(f"{task.name} is not supported with frozen features; use classify or tag")
    if not (network.causal and task.head in SEQUENCE_HEADS):
        if lm_weight:
            raise ConfigError(
                f"lm_weight requires a causal model such as GPT-2, and a task with labels or "
                f"choices, got {loaded.folder} ({loaded.family.name}) and {task.name}; remove "
                "lm_weight"
            )
        heads = {n: head for n, head in network.heads.items() if n != "lm" or not use_lm}
        return replace(loaded, model=Model(network.encoder, heads, network.decoder)), 0.0
    has_lm = "lm" in network.heads and "heads.lm.output" not in loaded.report.fresh
    if lm_weight and not has_lm:
        raise ConfigError(
            f"lm_weight: {loaded.folder} does not contain an LM head; remove lm_weight"
        )
    weight = (LM_WEIGHT if lm_weight is None else lm_weight) if has_lm else 0.0
    heads = {n: head for n, head in network.heads.items() if n != "lm" or weight}
    network, tokenizer = Model(network.encoder, heads), add_causal_tokens(loaded.tokenizer)
    size = max(network.config.vocab, tokenizer.vocab_size)
    note = f"; causal LM loss weight {weight:g}" if weight else ""
    say(f"text format: {START} text {EXTRACT}, or {START} text {DELIMITER} text {EXTRACT}{note}")
    return replace(loaded, model=with_vocabulary(network, size, {}), tokenizer=tokenizer), weight


def _randomized(loaded: Loaded) -> Loaded:
    """Return a model of the same shape with random weights.

    The state of the random generator is restored, so that new heads are initialized as with the
    pretrained model.

    Raises:
        ConfigError: If a BiLSTM is trained on features of the frozen model.
    """
    if isinstance(loaded.model.encoder, FeatureEncoder):
        raise ConfigError("random_weights is not supported with frozen features")
    config, decoder = loaded.model.config, loaded.model.decoder
    with torch.random.fork_rng(devices=[]):
        model = models.build(config, decoder=None if decoder is None else decoder.config)
    return replace(loaded, model=model)


def _with_heads(loaded: Loaded, makers: Mapping[str, HeadMaker], task: Task[Any, Any]) -> Loaded:
    """Return a copy of a loaded model with the head of the task.

    If the model does not have this head, or has it for other labels, a new head is initialized, as
    if the model were loaded from its directory.
    """
    labels = tuple(task.labels)
    if task.head in loaded.model.heads and (not labels or labels == tuple(loaded.labels)):
        return replace(loaded, model=copy.deepcopy(loaded.model))
    with TemporaryDirectory() as folder:
        resave(replace(loaded, format=None), loaded.model, Path(folder))
        again = load(folder, heads=makers, labels=labels)
    if isinstance(encoder := again.model.encoder, FeatureEncoder):
        # The features refer to files, which for the new model are in the temporary directory.
        encoder.features = loaded.model.encoder.features
    return replace(
        again,
        tokenizer=loaded.tokenizer,
        folder=loaded.folder,
        base=loaded.base,
        settings=loaded.settings,
    )
