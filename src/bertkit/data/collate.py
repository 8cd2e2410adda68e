"""From samples to packed batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from bertkit.batch import Batch, by_length
from bertkit.data.segments import Sample


def collate(samples: Sequence[Sample], *, head: str | None, max_batch_tokens: int) -> list[Batch]:
    """Samples sorted by length and cut into batches of at most `max_batch_tokens` tokens.

    `head` is the one that learns beside masked words: nsp or sop, from pairs; or rtd, whose targets
    are all pieces as they were.
    """
    lengths = [len(sample) for sample in samples]
    groups = by_length(lengths, max_batch_tokens)
    return [_batch([samples[place] for place in group], head) for group in groups]


def _batch(samples: Sequence[Sample], head: str | None) -> Batch:
    labels = torch.from_numpy(np.concatenate([s.labels for s in samples]))
    batch = Batch.of(samples, token_indices=[s.masked_positions for s in samples])
    targets = {"mlm": labels}
    if head == "rtd":
        assert batch.token_indices is not None
        targets[head] = batch.ids.index_copy(0, batch.token_indices, labels)
    elif head is not None:
        targets[head] = torch.tensor([s.pair for s in samples])
    return replace(batch, targets=targets)
