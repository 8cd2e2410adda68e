"""The optimizer and what it may decay."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bertkit.models.lora import depths
from bertkit.training.ranks import Ranks

CRF = (".crf.transitions", ".crf.start", ".crf.end")
"""How the names of a CRF's scores end."""

CRF_RATE = 100.0
"""How many times faster a CRF's scores learn: they are logits that begin at zero, and steps as
small as those of pretrained weights would leave them there."""

STACKED = "qkv.weight"
"""The end of the name of a stack of three matrices."""


def adamw(
    weights: Mapping[str, Tensor],
    *,
    learning_rate: float,
    weight_decay: float,
    layer_decay: float = 1.0,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
) -> torch.optim.AdamW:
    """AdamW with BERT's groups: matrices decay, biases and norms do not, nor do a CRF's scores.

    These learn `CRF_RATE` times faster than the rest. With `layer_decay` below 1 each layer learns
    that much slower than the one above it (Howard & Ruder 2018, section 3.2, and ELECTRA's
    fine-tuning).

    Bias correction is on, unlike google-research/bert's optimizer: it steadies short runs
    (Mosbach et al. 2021; Zhang et al. 2021).
    """
    place = depths(weights)
    top = max(place.values(), default=0)
    groups: dict[tuple[float, int, bool], list[Tensor]] = {}
    for name, w in weights.items():
        crf = name.endswith(CRF)
        below = 0 if layer_decay == 1.0 else top - place[name]
        group = (CRF_RATE if crf else 1.0, below, w.ndim > 1 and not crf)
        groups.setdefault(group, []).append(w)
    return torch.optim.AdamW(
        [
            {
                "params": groups[faster, below, decays],
                "lr": learning_rate * faster * layer_decay**below,
                "weight_decay": weight_decay if decays else 0.0,
            }
            for faster, below, decays in sorted(groups)
        ],
        betas=betas,
        eps=eps,
        fused=True,
    )


def muon(
    weights: Mapping[str, Tensor],
    *,
    learning_rate: float,
    weight_decay: float,
    betas: tuple[float, float] = (0.9, 0.999),
) -> torch.optim.Optimizer:
    """Muon for the matrices of the layers, whose steps it makes orthogonal; AdamW for the rest.

    Those of queries, keys and values, which are stored as one, are three to it.
    Its steps are as large as AdamW's, so that both go by one learning rate. Source: Jordan et al.
    2024; Liu et al. 2025, section 2.2, for their size.
    """
    matrices = {n: w for n, w in weights.items() if n.startswith("encoder.blocks.") and w.ndim == 2}
    rest = {name: w for name, w in weights.items() if name not in matrices}
    return _Together(
        _Muon(
            [w for n, w in matrices.items() if not n.endswith(STACKED)],
            stacked=[w for n, w in matrices.items() if n.endswith(STACKED)],
            lr=learning_rate,
            weight_decay=weight_decay,
            adjust_lr_fn="match_rms_adamw",
        ),
        adamw(rest, learning_rate=learning_rate, weight_decay=weight_decay, betas=betas),
    )


OPTIMIZERS = {"adamw": adamw, "muon": muon}
"""By the names they have in run files."""


class _Muon(torch.optim.Muon):
    """Muon to which a stack of three matrices is three."""

    def __init__(self, single: list[Tensor], *, stacked: list[Tensor], **settings: Any) -> None:
        super().__init__([*single, *stacked], **settings)
        self.stacked = stacked

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        (group,) = self.param_groups
        params, parts = group["params"], []
        for w in self.stacked:
            if w.grad is None:
                continue
            kept = self.state[w].setdefault("momentum_buffer", torch.zeros_like(w))
            for part, grad, buffer in zip(
                w.detach().chunk(3), w.grad.chunk(3), kept.chunk(3), strict=True
            ):
                part.grad, self.state[part] = grad, {"momentum_buffer": buffer}
                parts.append(part)
        group["params"] = [*params[: len(params) - len(self.stacked)], *parts]
        super().step()  # type: ignore[no-untyped-call]
        group["params"] = params
        for part in parts:
            del self.state[part]


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


class Sharded(torch.optim.Optimizer):
    """An optimizer of which each process keeps the state of its own share of the weights alone.

    It moves these, and gets the rest from the processes that have moved them: what is learned is
    the same, bit for bit. Weights are dealt whole, which Muon's matrices need.
    Source: Rajbhandari et al. 2020, section 5.1 (ZeRO-1).
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, weights: Mapping[str, Tensor], ranks: Ranks
    ) -> None:
        super().__init__(optimizer.param_groups, {})
        self.optimizer, self.state = optimizer, optimizer.state
        self.param_groups = optimizer.param_groups
        owners = ranks.owners({name: w.numel() for name, w in weights.items() if w.requires_grad})
        self.ranks, self.owners = ranks, {name: (weights[name], o) for name, o in owners.items()}

    def owns(self, name: str) -> bool:
        """Whether this process keeps the state of a weight."""
        return self.owners[name][1] == self.ranks.rank

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        moved: list[list[Tensor]] = [[] for _ in range(self.ranks.world)]
        for weight, owner in self.owners.values():
            if weight.grad is not None:
                moved[owner].append(weight)
                if owner != self.ranks.rank:
                    weight.grad = None
        self.optimizer.step()
        for owner, weights in enumerate(moved):
            self.ranks.give(weights, owner)
