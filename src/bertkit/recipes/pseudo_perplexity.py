"""Pseudo-perplexity of masked language models."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from bertkit.checkpoint.directory import Loaded
from bertkit.config import Count
from bertkit.console import say
from bertkit.data.collate import collate
from bertkit.data.document_readers import documents
from bertkit.data.samples import Sample
from bertkit.engine.engine import MAX_BATCH_TOKENS
from bertkit.errors import CheckpointError, DataError
from bertkit.models.model import Model
from bertkit.objectives.pretrain import pretrain
from bertkit.pipelines.base import load_on
from bertkit.progress import progress
from bertkit.tasks.inference import batched
from bertkit.training.loop import evaluate

SAMPLES_AT_ONCE = 256
"""Number of masked sequences that are built at a time."""


class PseudoPerplexity(msgspec.Struct, frozen=True):
    """Scores of a model that predicts masked tokens of a text, each from all other tokens."""

    loss: float
    """Mean negative log-probability of the masked tokens, in nats."""
    pseudo_perplexity: float
    """Exponential of the loss. Only models with the same vocabulary are comparable."""
    accuracy: float
    """Fraction of the masked tokens that the model predicts as the most probable token."""
    masked: int
    """Number of tokens that were masked."""
    tokens: int
    """Number of tokens of the text."""


def evaluate_masked(
    model: str | Path | Loaded,
    texts: Sequence[Path],
    /,
    *,
    tokens: Count = 2000,
    device: str = "auto",
) -> PseudoPerplexity:
    """Compute the loss and pseudo-perplexity of a masked language model.

    The text is split into independent blocks of the model's maximum length. A token is scored by
    masking only this token, and predicting it from all other tokens of its block. Because this
    requires a forward pass of the block for each token, only evenly spaced tokens of a long text
    are scored.

    Args:
        model: Model directory or hub id of a model with an MLM head.
        texts: Text files (.txt, .jsonl or .parquet, also with .gz), or directories of them.
        tokens: Maximum number of tokens to mask.
        device: Device, such as cpu or cuda:0. auto selects a GPU if PyTorch finds one.

    Returns:
        The loss, the pseudo-perplexity, the accuracy, and the numbers of masked and of all tokens.

    Raises:
        CheckpointError: If the model does not have a trained MLM head.
        DataError: If the files contain no text.

    Source:
        Salazar et al. 2020, "Masked Language Model Scoring", equations 1 and 2.
    """
    loaded = load_on(model, device)
    if "mlm" not in loaded.model.heads or any(
        name.startswith("heads.mlm.") for name in loaded.report.fresh
    ):
        raise CheckpointError(
            f"{loaded.folder} does not contain a trained MLM head; use a pretrained model such as "
            "BERT, or for a generative model `bertkit evaluate text`"
        )
    tokenizer, block_length = loaded.tokenizer, loaded.length - 2
    blocks = [
        ids[start : start + block_length]
        for document in documents(texts)
        for ids in tokenizer.ids([document.text])
        for start in range(0, len(ids), block_length)
    ]
    total = sum(map(len, blocks))
    if not total:
        raise DataError(f"{texts[0]} contains no text")
    count = min(tokens, total)
    chosen = np.linspace(0, total - 1, count).round().astype(np.int64)
    if count < total:
        say(f"masking {count:,} of {total:,} tokens, evenly spaced (--tokens)")
    mlm_model = Model(loaded.model.encoder, {"mlm": loaded.model.heads["mlm"]})
    special = tokenizer.cls, tokenizer.sep, tokenizer.mask
    nats, right = 0.0, 0.0
    with progress() as bar:
        task = bar.add_task("masked tokens", total=count, note="")
        for part in batched(_samples(blocks, chosen, special), SAMPLES_AT_ONCE):
            batches = collate(part, head=None, max_batch_tokens=MAX_BATCH_TOKENS)
            losses, accuracy = evaluate(mlm_model, pretrain, batches)
            nats += losses["mlm"] * len(part)
            right += accuracy["mlm"] * len(part)
            bar.update(task, advance=len(part))
    return PseudoPerplexity(nats / count, math.exp(nats / count), right / count, count, total)


def _samples(
    blocks: Sequence[NDArray[np.int64]], chosen: NDArray[np.int64], special: tuple[int, int, int]
) -> Iterator[Sample]:
    """Yield, for each chosen token, the sequence of its block in which only this token is masked.

    `chosen` contains indices into the concatenated blocks.
    """
    begin, end, mask = special
    first = 0
    for block in blocks:
        low, high = np.searchsorted(chosen, (first, first + len(block)))
        for index in (chosen[low:high] - first).tolist():
            ids = np.concatenate([[begin], block, [end]])
            label = ids[index + 1 : index + 2].copy()
            ids[index + 1] = mask
            yield Sample(ids, np.zeros_like(ids), np.array([index + 1]), label, None)
        first += len(block)
