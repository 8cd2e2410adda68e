"""Perplexity of generative models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bertkit.checkpoint.directory import Loaded
from bertkit.data.collate import pack_by_length
from bertkit.data.document_readers import documents
from bertkit.engine.engine import MAX_BATCH_TOKENS
from bertkit.errors import CheckpointError, DataError
from bertkit.extensions.generation.blocks import TokenBlock, block, pack_blocks
from bertkit.objectives.pretrain import pretrain
from bertkit.pipelines.base import load_on
from bertkit.tasks.inference import batched
from bertkit.training.loop import evaluate

BATCH_BLOCKS = 256
"""Number of blocks in memory at a time."""


class Perplexity(msgspec.Struct, frozen=True):
    """Perplexity of a model on texts."""

    perplexity: float
    """Exponential of the mean loss per token. Only perplexities of models with the same vocabulary
    can be compared."""
    bits_per_byte: float
    """Total loss in bits, divided by the number of UTF-8 bytes. It can be compared between models
    with different vocabularies."""
    tokens: int
    bytes: int


def evaluate_text(
    model: str | Path | Loaded, texts: Sequence[Path], /, *, device: str = "auto"
) -> Perplexity:
    """Compute the perplexity and bits per byte of a generative model.

    Each document is split into blocks of the model's maximum length. Tokens do not attend to
    previous blocks.

    Args:
        model: Model directory or hub id of a model with a language model head.
        texts: Files or directories with texts (.txt, .jsonl or .parquet, also .gz).
        device: Device, such as cpu or cuda:0. auto selects a GPU if PyTorch finds one.

    Returns:
        The perplexity and bits per byte.

    Raises:
        CheckpointError: If the model has no language model head.
        DataError: If the files contain no text.
    """
    loaded = load_on(model, device)
    if "lm" not in loaded.model.heads:
        raise CheckpointError(
            f"{loaded.folder}: has no language model head; use a generative model such as GPT-2"
        )
    tokenizer, length, size = loaded.tokenizer, loaded.length, 0
    # If the tokenizer adds no special tokens, the EOS token separates texts, as in GPT-2.
    end = None if any(tokenizer.added) else next(iter(tokenizer.ends), None)

    blocks: list[TokenBlock] = []
    for document in documents(texts):
        (ids,) = tokenizer.ids([document.text], special=True)
        size += len(document.text.encode())
        # Without an EOS token, no token predicts the first token, and none follows the last.
        starts = range(0, len(ids) + 1 if end is not None else len(ids) - 1, length)
        blocks += [block(ids, start, length, end) for start in starts]
    if not blocks:
        raise DataError(f"{texts[0]}: contains no text; use other files")
    nats, tokens = 0.0, sum(map(len, blocks))
    for part in batched(blocks, BATCH_BLOCKS):
        batches = pack_by_length(part, pack_blocks, MAX_BATCH_TOKENS)
        losses, _ = evaluate(loaded.model, pretrain, batches)
        nats += losses["lm"] * sum(map(len, part))
    return Perplexity(math.exp(nats / tokens), nats / math.log(2) / size, tokens, size)
