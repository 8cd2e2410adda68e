"""Loss for predicting the next and the previous word: Peters et al. 2018, section 3.1."""

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
    """Compute the mean cross-entropy of each direction with a full softmax, and add both.

    The forward direction predicts each word and the end of the sentence. The backward direction
    predicts each word and the beginning of the sentence.

    Args:
        model: A `BiLM`.
        batch: The batch.
        totals: Numbers of predicted words in the optimizer step, for each direction.
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
    """Return the positions at which a direction predicts a word.

    The forward direction predicts a word at every position except the last of each sentence, and
    the backward direction at every position except the first.

    Args:
        layout: Layout of the packed sentences.
        direction: "forward" or "backward".
    """
    edge = layout.cu_seqlens[1:] - 1 if direction == "forward" else layout.first
    mask = torch.ones(layout.total, dtype=torch.bool, device=edge.device)
    mask[edge] = False
    return mask.nonzero()[:, 0]
