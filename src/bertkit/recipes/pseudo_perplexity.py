"""How well a masked language model foresees each token of a text from the others."""

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
from bertkit.pipelines.base import batched, load_on
from bertkit.progress import progress
from bertkit.training.loop import evaluate

SAMPLES_AT_ONCE = 256
"""Masked sequences made at a time."""


class PseudoPerplexity(msgspec.Struct, frozen=True):
    """What a text's tokens are worth to a model that sees all others."""

    loss: float
    """The mean negative log-probability of a token that alone is masked, in nats."""
    pseudo_perplexity: float
    """e to the loss: it depends on the vocabulary."""
    accuracy: float
    """How often the token is the likeliest."""
    masked: int
    """Tokens that were masked."""
    tokens: int
    """Tokens of the text."""


def evaluate_masked(
    model: str | Path | Loaded,
    texts: Sequence[Path],
    /,
    *,
    tokens: Count = 2000,
    device: str = "auto",
) -> PseudoPerplexity:
    """Compute the loss and pseudo-perplexity of a masked language model.

    Each token is masked alone and foreseen from all others of its block. Blocks are as long as the
    model reads, and know nothing of each other. As each token costs a pass of a block, of a long
    text as many tokens are masked as are asked for, evenly spread.
    Raises: CheckpointError for a model without such a head; DataError for files without text.
    Source: Salazar et al. 2020, "Masked Language Model Scoring", equations 1 and 2.

    Args:
        model: A model folder or hub id with a masked-LM head.
        texts: Files or folders of .txt, .jsonl or .parquet, also .gz.
        tokens: How many tokens are masked at most.
        device: auto, cpu or a CUDA device such as cuda:0. auto is a GPU if PyTorch finds one.
    """
    loaded = load_on(model, device)
    if "mlm" not in loaded.model.heads or any(
        name.startswith("heads.mlm.") for name in loaded.report.fresh
    ):
        raise CheckpointError(
            f"{loaded.folder}: has no masked-LM head that was trained; take a pretrained model "
            "such as BERT, or for a model that writes `bertkit evaluate text`"
        )
    tokenizer, room = loaded.tokenizer, loaded.length - 2
    blocks = [
        ids[start : start + room]
        for document in documents(texts)
        for ids in tokenizer.ids([document.text])
        for start in range(0, len(ids), room)
    ]
    total = sum(map(len, blocks))
    if not total:
        raise DataError(f"{texts[0]}: no text")
    count = min(tokens, total)
    chosen = np.linspace(0, total - 1, count).round().astype(np.int64)
    if count < total:
        say(f"{count:,} of {total:,} tokens are masked, evenly spread (--tokens)")
    alone = Model(loaded.model.encoder, {"mlm": loaded.model.heads["mlm"]})
    frame = tokenizer.cls, tokenizer.sep, tokenizer.mask
    nats, right = 0.0, 0.0
    with progress() as bar:
        task = bar.add_task("masked tokens", total=count, note="")
        for part in batched(_samples(blocks, chosen, frame), SAMPLES_AT_ONCE):
            batches = collate(part, head=None, max_batch_tokens=MAX_BATCH_TOKENS)
            losses, accuracy = evaluate(alone, pretrain, batches)
            nats += losses["mlm"] * len(part)
            right += accuracy["mlm"] * len(part)
            bar.update(task, advance=len(part))
    return PseudoPerplexity(nats / count, math.exp(nats / count), right / count, count, total)


def _samples(
    blocks: Sequence[NDArray[np.int64]], chosen: NDArray[np.int64], frame: tuple[int, int, int]
) -> Iterator[Sample]:
    """A sequence for each chosen token, counted through all blocks: it alone is masked."""
    begin, end, mask = frame
    first = 0
    for block in blocks:
        low, high = np.searchsorted(chosen, (first, first + len(block)))
        for place in (chosen[low:high] - first).tolist():
            ids = np.concatenate([[begin], block, [end]])
            label = ids[place + 1 : place + 2].copy()
            ids[place + 1] = mask
            yield Sample(ids, np.zeros_like(ids), np.array([place + 1]), label, None)
        first += len(block)
