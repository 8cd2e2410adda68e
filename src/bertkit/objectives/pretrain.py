"""Masked words, and next sentence or sentence order: Devlin et al. 2019, section 3.1. Next words:
Radford et al. 2018, equation 1.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertkit.batch import Batch
from bertkit.models.heads import LanguageModelHead
from bertkit.models.model import Model
from bertkit.nn.cross_entropy import linear_cross_entropy
from bertkit.objectives.loss import Loss, Totals


def pretrain(
    model: Model, batch: Batch, totals: Totals, *, smoothing: float = 0.0, z_loss: float = 0.0
) -> Loss:
    """The mean cross-entropy of each head, summed: over masked places, over sequences, or over all
    tokens; of words with label `smoothing` and `z_loss`.
    """
    states = model.states(batch)
    parts, correct = {}, {}
    for name, head in model.heads.items():
        targets = batch.targets[name]
        if isinstance(head, LanguageModelHead):
            features = head.features(states, batch)
            loss, correct[name] = linear_cross_entropy(
                features, head.weight, head.bias, targets, smoothing, z_loss
            )
        else:
            logits = head(states, batch).float()
            loss = F.cross_entropy(logits, targets, reduction="sum")
            correct[name] = (logits.argmax(-1) == targets).sum()
        parts[name] = loss / max(totals[name], 1)
    total = torch.stack(list(parts.values())).sum()
    return Loss(total, {k: v.detach() for k, v in parts.items()}, correct)


def masked_words_of(outputs: Tensor, batch: Batch, totals: Totals, head: nn.Module) -> Loss:
    """The same of masked words alone, where what the head says is needed anyway.

    Shapes: outputs (M, V).
    """
    targets = batch.targets["mlm"]
    loss = F.cross_entropy(outputs, targets, reduction="sum") / max(totals["mlm"], 1)
    return Loss(loss, {"mlm": loss.detach()}, {"mlm": (outputs.argmax(-1) == targets).sum()})
