"""Loss of the next and previous word at each position: Peters et al. 2018, section 3.1."""

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
    """Compute the sum of the mean cross-entropies of both directions, with a full softmax.

    The forward direction predicts each word and the end of a sentence; the backward direction
    predicts each word and the beginning.

    Args:
        model: A `BiLM`.
        batch: The batch.
        totals: Totals of the optimizer step.
    """
    # `BiLM` has the methods of a model that objectives use.
    bilm = cast(BiLM, model)
    sides = bilm.states(batch).chunk(2, -1)
    softmax = bilm.softmax
    parts, correct = {}, {}
    for name, states in zip(DIRECTIONS, sides, strict=True):
        rows = states[predicting_positions(batch.layout, name)]
        loss, correct[name] = linear_cross_entropy(
            rows, softmax.weight, softmax.bias, batch.targets[name]
        )
        parts[name] = loss / max(totals[name], 1)
    total = torch.stack(list(parts.values())).sum()
    return Loss(total, {name: part.detach() for name, part in parts.items()}, correct)


def predicting_positions(layout: Packed, direction: str) -> Tensor:
    """Return the positions that predict a word: all but a sentence's last (backward: first).

    Args:
        layout: The sentences.
        direction: "forward" or "backward".
    """
    edge = layout.cu_seqlens[1:] - 1 if direction == "forward" else layout.first
    mask = torch.ones(layout.total, dtype=torch.bool, device=edge.device)
    mask[edge] = False
    return mask.nonzero()[:, 0]
