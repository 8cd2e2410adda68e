"""Packing of samples into batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch

from bertkit.batch import Batch, by_length
from bertkit.data.samples import Sample

S = TypeVar("S", bound=Sized)


def pack_by_length(
    samples: Sequence[S], pack: Callable[[list[S]], Batch], max_batch_tokens: int
) -> list[Batch]:
    """Sort samples by length, and pack them into batches of up to `max_batch_tokens` tokens."""
    groups = by_length([len(sample) for sample in samples], max_batch_tokens)
    return [pack([samples[index] for index in group]) for group in groups]


def collate(samples: Sequence[Sample], *, head: str | None, max_batch_tokens: int) -> list[Batch]:
    """Sort masked samples by length, and pack them into batches.

    Args:
        samples: The masked samples.
        head: Head that is trained in addition to masked language modeling, or None. The targets of
            nsp and sop are the labels of the pairs. The targets of rtd are the original ids of all
            tokens.
        max_batch_tokens: Maximum number of tokens of a batch.
    """
    return pack_by_length(samples, partial(_batch, head=head), max_batch_tokens)


def _batch(samples: Sequence[Sample], head: str | None) -> Batch:
    """Pack masked samples into a batch, with the targets of the masked tokens and of the head."""
    labels = torch.from_numpy(np.concatenate([s.labels for s in samples]))
    batch = Batch.of(samples, token_indices=[s.masked_positions for s in samples])
    targets = {"mlm": labels}
    if head == "rtd":
        assert batch.token_indices is not None
        targets[head] = batch.ids.index_copy(0, batch.token_indices, labels)
    elif head is not None:
        targets[head] = torch.tensor([s.pair for s in samples])
    return replace(batch, targets=targets)
