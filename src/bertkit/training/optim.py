"""The optimizer and what it may decay."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor


def adamw(
    weights: Mapping[str, Tensor],
    *,
    learning_rate: float,
    weight_decay: float,
    layer_decay: float = 1.0,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
) -> torch.optim.AdamW:
    """AdamW with BERT's groups: matrices decay, biases and norms do not.

    With `layer_decay` below 1 each layer learns that much slower than the one above it (Howard &
    Ruder 2018, section 3.2, and ELECTRA's fine-tuning).

    Bias correction is on, unlike google-research/bert's optimizer: it steadies short runs
    (Mosbach et al. 2021; Zhang et al. 2021).
    """
    depths = _depths(weights)
    top = max(depths.values(), default=0)
    groups: dict[tuple[int, bool], list[Tensor]] = {}
    for name, w in weights.items():
        below = 0 if layer_decay == 1.0 else top - depths[name]
        groups.setdefault((below, w.ndim == 1), []).append(w)
    return torch.optim.AdamW(
        [
            {
                "params": groups[below, flat],
                "lr": learning_rate * layer_decay**below,
                "weight_decay": 0.0 if flat else weight_decay,
            }
            for below, flat in sorted(groups)
        ],
        betas=betas,
        eps=eps,
        fused=True,
    )


def muon(
    weights: Mapping[str, Tensor], *, learning_rate: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Muon for the matrices of the layers, whose steps it makes orthogonal; AdamW for the rest.

    Its steps are as large as AdamW's, so that both go by one learning rate. Source: Jordan et al.
    2024; Liu et al. 2025, section 2.2, for their size.
    """
    matrices = {n: w for n, w in weights.items() if n.startswith("encoder.blocks.") and w.ndim == 2}
    rest = {name: w for name, w in weights.items() if name not in matrices}
    return _Together(
        torch.optim.Muon(
            matrices.values(),
            lr=learning_rate,
            weight_decay=weight_decay,
            adjust_lr_fn="match_rms_adamw",
        ),
        adamw(rest, learning_rate=learning_rate, weight_decay=weight_decay),
    )


class _Together(torch.optim.Optimizer):
    """Optimizers of different weights, as one: their groups and states are its own."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        super().__init__([g for part in parts for g in part.param_groups], {})
        self.parts, self.state = parts, defaultdict(dict)
        self.param_groups = [group for part in parts for group in part.param_groups]
        for part in parts:
            part.state = self.state

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for part in self.parts:
            part.step()


def _depths(names: Collection[str]) -> dict[str, int]:
    """How deep each weight stands: embeddings 0, then the blocks; heads, and the norm that a
    pre-norm encoder ends with, above them all."""
    blocks = {n: int(n.split(".")[2]) + 1 for n in names if n.startswith("encoder.blocks.")}
    top = max(blocks.values(), default=0) + 1
    return {n: blocks.get(n, 0 if n.startswith("encoder.embedding.") else top) for n in names}
