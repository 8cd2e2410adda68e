"""From samples to packed batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from bertkit.batch import Batch, Packed
from bertkit.data.segments import Sample


def collate(samples: Sequence[Sample], *, head: str | None, budget_tokens: int) -> list[Batch]:
    """Samples sorted by length and cut into batches of at most `budget_tokens` tokens.

    `head` is the one that learns beside masked words: nsp or sop, from pairs; or rtd, whose targets
    are all pieces as they were.
    """
    ordered = sorted(samples, key=len)
    groups = cut_by_tokens([len(sample) for sample in ordered], budget_tokens)
    return [_batch(ordered[group], head) for group in groups]


def cut_by_tokens(lengths: Sequence[int], budget_tokens: int) -> list[slice]:
    """Neighbors whose lengths add up to at most the budget; a longer sequence stands alone."""
    cuts, total, start = [], 0, 0
    for place, length in enumerate(lengths):
        if place > start and total + length > budget_tokens:
            cuts.append(slice(start, place))
            start, total = place, 0
        total += length
    if start < len(lengths):
        cuts.append(slice(start, len(lengths)))
    return cuts


def _batch(samples: Sequence[Sample], head: str | None) -> Batch:
    layout = Packed.of([len(sample) for sample in samples])
    offsets = layout.first.numpy()
    targets = {"mlm": torch.from_numpy(np.concatenate([s.labels for s in samples]))}
    ids = torch.from_numpy(np.concatenate([s.ids for s in samples]))
    places = torch.from_numpy(
        np.concatenate([s.places + o for s, o in zip(samples, offsets, strict=True)])
    )
    if head == "rtd":
        targets[head] = ids.index_copy(0, places, targets["mlm"])
    elif head is not None:
        targets[head] = torch.tensor([s.pair for s in samples])
    return Batch(
        ids=ids,
        types=torch.from_numpy(np.concatenate([s.types for s in samples])),
        layout=layout,
        places=places,
        targets=targets,
    )
