"""The optimizer and what it may decay."""

from __future__ import annotations

from collections.abc import Collection, Mapping

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


def _depths(names: Collection[str]) -> dict[str, int]:
    """How deep each weight stands: embeddings 0, then the blocks, heads above them all."""
    blocks = {n: int(n.split(".")[2]) + 1 for n in names if n.startswith("encoder.blocks.")}
    top = max(blocks.values(), default=0) + 1
    return {n: blocks.get(n, 0 if n.startswith("encoder.") else top) for n in names}
