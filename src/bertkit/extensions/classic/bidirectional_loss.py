"""The next word and the previous one of each place: Peters et al. 2018, section 3.1."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from bertkit.batch import Batch, Packed
from bertkit.extensions.classic.bidirectional_lm import DIRECTIONS, BiLM
from bertkit.models.model import Model
from bertkit.nn.cross_entropy import linear_cross_entropy
from bertkit.objectives.loss import Loss, Totals


def both_ways(model: Model, batch: Batch, totals: Totals) -> Loss:
    """The mean cross-entropy of both directions, summed; a full softmax over the vocabulary.

    Forwards each word and the end are told, backwards each word and the begin.
    """
    bilm = cast(BiLM, model)  # an objective asks no more of a model than this
    sides = bilm.states(batch).chunk(2, -1)
    softmax = bilm.softmax
    parts, correct = {}, {}
    for name, states in zip(DIRECTIONS, sides, strict=True):
        rows = states[told(batch.layout, name)]
        loss, correct[name] = linear_cross_entropy(
            rows, softmax.weight, softmax.bias, batch.targets[name]
        )
        parts[name] = loss / max(totals[name], 1)
    total = torch.stack(list(parts.values())).sum()
    return Loss(total, {name: part.detach() for name, part in parts.items()}, correct)


def told(layout: Packed, direction: str) -> Tensor:
    """The places from which a word is told: all but a sentence's last, or backwards its first."""
    edge = layout.cu_seqlens[1:] - 1 if direction == "forward" else layout.first
    kept = torch.ones(layout.total, dtype=torch.bool, device=edge.device)
    kept[edge] = False
    return kept.nonzero()[:, 0]
