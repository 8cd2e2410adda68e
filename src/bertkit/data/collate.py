"""From samples to packed batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import torch

from bertkit.batch import Batch, by_length
from bertkit.data.blocks import TokenBlock
from bertkit.data.pairs import Pair, pair_batch
from bertkit.data.samples import Sample


def collate(
    samples: Sequence[Sample] | Sequence[TokenBlock] | Sequence[Pair],
    *,
    head: str | None,
    max_batch_tokens: int,
) -> list[Batch]:
    """Samples sorted by length and cut into batches of at most `max_batch_tokens` tokens.

    `head` is the one that learns beside masked words: nsp or sop, from pairs; or rtd, whose targets
    are all pieces as they were. It is lm where next words are learned, from blocks or pairs.
    """
    lengths = [len(sample) for sample in samples]
    groups = by_length(lengths, max_batch_tokens)
    if isinstance(samples[0], Pair):
        pairs = cast(Sequence[Pair], samples)
        return [pair_batch([pairs[place] for place in group]) for group in groups]
    rest = cast(Sequence[Sample | TokenBlock], samples)
    return [_batch([rest[place] for place in group], head) for group in groups]


def _batch(samples: Sequence[Sample | TokenBlock], head: str | None) -> Batch:
    labels = torch.from_numpy(np.concatenate([s.labels for s in samples]))
    if head == "lm":
        return Batch.of(samples, targets={head: labels})
    samples = cast(Sequence[Sample], samples)
    batch = Batch.of(samples, token_indices=[s.masked_positions for s in samples])
    targets = {"mlm": labels}
    if head == "rtd":
        assert batch.token_indices is not None
        targets[head] = batch.ids.index_copy(0, batch.token_indices, labels)
    elif head is not None:
        targets[head] = torch.tensor([s.pair for s in samples])
    return replace(batch, targets=targets)
