"""Pretraining objectives: MLM, NSP, and sentence order prediction (BERT), and causal LM (GPT).

Sources: Devlin et al. 2019, section 3.1; Radford et al. 2018, equation 1.
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
    """Compute the pretraining loss: the sum of the mean cross-entropies of all heads.

    Depending on the head, the mean is over masked positions, over sequences, or over all tokens.

    Args:
        model: The model.
        batch: The batch. For each head, it contains targets with the name of the head.
        totals: Totals of the optimizer step.
        smoothing: Label smoothing for language model heads.
        z_loss: Weight of the z-loss for language model heads (see `linear_cross_entropy`).

    Returns:
        The loss of the batch.
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


def compute_mlm_loss(outputs: Tensor, batch: Batch, totals: Totals, head: nn.Module) -> Loss:
    """Compute the MLM loss from logits that another term of the loss also uses.

    Shapes:
        outputs: (M, V), one row per masked position.
    """
    targets = batch.targets["mlm"]
    loss = F.cross_entropy(outputs, targets, reduction="sum") / max(totals["mlm"], 1)
    return Loss(loss, {"mlm": loss.detach()}, {"mlm": (outputs.argmax(-1) == targets).sum()})
