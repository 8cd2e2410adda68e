"""The optimizer and what it may decay."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def adamw(
    weights: Mapping[str, Tensor],
    *,
    learning_rate: float,
    weight_decay: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
) -> torch.optim.AdamW:
    """AdamW with BERT's groups: matrices decay, biases and norms do not.

    Bias correction is on, unlike google-research/bert's optimizer: it steadies short runs
    (Mosbach et al. 2021; Zhang et al. 2021).
    """
    groups = [
        {"params": [w for w in weights.values() if w.ndim > 1], "weight_decay": weight_decay},
        {"params": [w for w in weights.values() if w.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [g for g in groups if g["params"]], lr=learning_rate, betas=betas, eps=eps, fused=True
    )
