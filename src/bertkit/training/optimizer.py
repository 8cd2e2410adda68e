"""Optimizers AdamW and Muon, and sharding of their state over several processes."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim.adamw import adamw as fused_adamw

from bertkit.errors import ConfigError
from bertkit.models.lora import depths
from bertkit.nn.precision import bf16_is_faster
from bertkit.training.distributed import Ranks

CRF = (".crf.transitions", ".crf.start", ".crf.end")
"""Suffixes of the names of the scores of a CRF."""

CRF_RATE = 100.0
"""Factor by which the learning rate is multiplied for the scores of a CRF. The scores are logits
that are initialized to zero, and the small steps of pretrained weights would not move them far."""

STACKED_SUFFIX = "qkv.weight"
"""Suffix of the names of matrices in which query, key and value matrices are stacked."""

STACKED_CROSS = "cross.kv.weight"
"""Suffix of the names of matrices in which the key and value matrices of a decoder's
cross-attention are stacked."""

LAYERS = re.compile(r"(^|\.)(encoder|decoder)\.blocks\.")
"""Matches the name of a weight in a layer, also in a layer of a generator (ELECTRA)."""

TABLE = re.compile(r"(encoder|decoder)\.embedding\.(tokens|positions|types)\.weight$")
"""Matches the name of an embedding matrix."""

MUON_MOMENTUM = 0.95
"""Default momentum of Muon."""


class Optimizer(Protocol):
    """Interface of an optimizer. The optimizers of torch.optim also implement it."""

    param_groups: list[dict[str, Any]]
    """Parameter groups: the weights (`params`) and settings of each group."""
    state: defaultdict[Tensor, Any]
    """State of each weight."""

    def step(self) -> Any:
        """Update the weights that have a gradient."""

    def zero_grad(self) -> Any:
        """Delete the gradients."""


def adamw(
    weights: Mapping[str, Tensor],
    *,
    learning_rate: float,
    weight_decay: float,
    layer_decay: float = 1.0,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
    embedding_learning_rate: float | None = None,
    crf_rate: float = CRF_RATE,
) -> Optimizer:
    """Build AdamW, without weight decay for biases, normalization weights and scores of a CRF.

    Unlike the optimizer of google-research/bert, this one corrects the bias of the moments, which
    stabilizes short runs (Mosbach et al. 2021; Zhang et al. 2021).

    Args:
        weights: Weights to train, by name.
        learning_rate: Peak learning rate.
        weight_decay: Weight decay of matrices.
        layer_decay: Learning rate of a layer, divided by the learning rate of the layer above it
            (Howard & Ruder 2018, section 3.2; fine-tuning of ELECTRA).
        betas: Decay rates of the first and second moments of the gradient.
        eps: Term added to the denominator for numerical stability.
        embedding_learning_rate: Learning rate of embedding matrices. Default: `learning_rate`.
        crf_rate: Factor by which the learning rate is multiplied for the scores of a CRF.

    Returns:
        The optimizer.

    Raises:
        ConfigError: If `embedding_learning_rate` is set and there are no embedding matrices.
    """
    depth = depths(weights)
    top = max(depth.values(), default=0)
    if embedding_learning_rate is not None and not any(map(TABLE.match, weights)):
        raise ConfigError(
            "train.embedding_learning_rate requires an embedding matrix; remove the setting"
        )
    tables = learning_rate if embedding_learning_rate is None else embedding_learning_rate
    rates = {"": learning_rate, "crf": learning_rate * crf_rate, "table": tables}
    groups: dict[tuple[str, int, bool], list[Tensor]] = {}
    for name, w in weights.items():
        kind = "crf" if name.endswith(CRF) else "table" if TABLE.match(name) else ""
        below = 0 if layer_decay == 1.0 else top - depth[name]
        groups.setdefault((kind, below, w.ndim > 1 and kind != "crf"), []).append(w)
    return _AdamW(
        {
            "params": groups[kind, below, decays],
            "lr": rates[kind] * layer_decay**below,
            "weight_decay": weight_decay if decays else 0.0,
            "betas": betas,
            "eps": eps,
        }
        for kind, below, decays in sorted(groups)  # The rate of the first group is logged.
    )


def muon(
    weights: Mapping[str, Tensor],
    *,
    learning_rate: float,
    weight_decay: float,
    momentum: float = MUON_MOMENTUM,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
    adamw_learning_rate: float | None = None,
    adamw_weight_decay: float | None = None,
    embedding_learning_rate: float | None = None,
) -> Optimizer:
    """Build Muon for the matrices of the layers, and AdamW for all other weights.

    Muon orthogonalizes each update. If query, key and value matrices are stacked, the update of
    each is orthogonalized separately. Updates are scaled to the size of AdamW's updates, so that
    both optimizers can use the same learning rate.

    Args:
        weights: Weights to train, by name.
        learning_rate: Peak learning rate.
        weight_decay: Weight decay.
        momentum: Momentum of Muon.
        betas: Decay rates of the moments in AdamW.
        eps: Term added to the denominator in AdamW for numerical stability.
        adamw_learning_rate: Learning rate of AdamW. Default: `learning_rate`.
        adamw_weight_decay: Weight decay of AdamW. Default: `weight_decay`.
        embedding_learning_rate: Learning rate of embedding matrices. Default: the learning rate of
            AdamW.

    Returns:
        The optimizer.

    Raises:
        ConfigError: If the model has no matrices in its layers.

    Source: Jordan et al. 2024. The scale of updates is from Liu et al. 2025, section 2.2.
    """
    matrices = {n: w for n, w in weights.items() if LAYERS.search(n) and w.ndim == 2}
    if not matrices:
        raise ConfigError(
            'train.optimizer = "muon" requires attention or feed-forward layers with matrices; '
            'use "adamw"'
        )
    rest = {name: w for name, w in weights.items() if name not in matrices}
    return _Combined(
        _Muon(matrices, learning_rate, weight_decay, momentum),
        adamw(
            rest,
            learning_rate=learning_rate if adamw_learning_rate is None else adamw_learning_rate,
            weight_decay=weight_decay if adamw_weight_decay is None else adamw_weight_decay,
            betas=betas,
            eps=eps,
            embedding_learning_rate=embedding_learning_rate,
        ),
    )


OPTIMIZERS = {"adamw": adamw, "muon": muon}
"""Function that builds each optimizer, by its name in run files."""


class _Groups:
    """Base class of optimizers, with parameter groups and the state of each weight.

    It does not inherit from torch.optim.Optimizer, because the constructor of that class imports
    the compiler of torch, which takes a second in each process (notes/2026-11.md).
    """

    def __init__(self, groups: Iterable[dict[str, Any]]) -> None:
        self.param_groups = [*groups]
        self.state: defaultdict[Tensor, Any] = defaultdict(dict)

    def zero_grad(self) -> None:
        for group in self.param_groups:
            for w in group["params"]:
                w.grad = None


class _AdamW(_Groups):
    """AdamW, as in torch.optim. One fused kernel updates all weights of a group.

    Source: Loshchilov & Hutter 2019, algorithm 2.
    """

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            weights = [w for w in group["params"] if w.grad is not None]
            for w in weights:
                if not self.state[w]:
                    self.state[w] = {
                        "step": torch.zeros((), device=w.device),
                        "exp_avg": torch.zeros_like(w),
                        "exp_avg_sq": torch.zeros_like(w),
                    }
            states = [self.state[w] for w in weights]
            beta1, beta2 = group["betas"]
            fused_adamw(
                weights,
                [w.grad for w in weights],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [state["step"] for state in states],
                fused=True,
                amsgrad=False,
                beta1=beta1,
                beta2=beta2,
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=False,
            )


class _Muon(_Groups):
    """Muon, as in torch.optim with `match_rms_adamw`, except that stacked matrices are split.

    It computes in bf16 only if bf16 is faster than fp32. torch.optim.Muon always computes in bf16,
    which takes 4.6 times as long as fp32 on a processor that emulates bf16 (notes/2026-11.md).
    """

    def __init__(
        self, matrices: Mapping[str, Tensor], lr: float, weight_decay: float, momentum: float
    ) -> None:
        settings = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__([{"params": [*matrices.values()], **settings}])
        device = str(next(iter(matrices.values())).device)
        self.dtype = torch.bfloat16 if bf16_is_faster(device) else torch.float32
        self.stacked: dict[int, list[int]] = {}
        """For the id of a stacked matrix, the number of rows of each matrix that it contains: query
        (if any), key and value."""
        for name, w in matrices.items():
            if name.endswith(STACKED_SUFFIX):
                queries = matrices[name.removesuffix(STACKED_SUFFIX) + "out.weight"].shape[1]
                self.stacked[id(w)] = [queries, *[(len(w) - queries) // 2] * 2]
            elif name.endswith(STACKED_CROSS):
                self.stacked[id(w)] = [len(w) // 2] * 2

    @torch.no_grad()
    def step(self) -> None:
        (group,) = self.param_groups
        momentum = group["momentum"]
        for w in group["params"]:
            if w.grad is None:
                continue
            state = self.state[w]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(w)
            mean = state["momentum_buffer"]
            mean.lerp_(w.grad, 1 - momentum)
            nesterov = w.grad.lerp(mean, momentum)
            w.mul_(1 - group["lr"] * group["weight_decay"])
            rows = self.stacked.get(id(w), [len(w)])
            for part, update in zip(w.split(rows), nesterov.split(rows), strict=True):
                size = 0.2 * math.sqrt(max(part.shape))
                part.add_(orthogonalize(update.to(self.dtype)), alpha=-group["lr"] * size)


def orthogonalize(matrix: Tensor) -> Tensor:
    """Approximate the semi-orthogonal matrix that is nearest to a matrix.

    The singular values of the result are close to 1. They are computed with five steps of a quintic
    Newton-Schulz iteration.

    Source: Jordan et al. 2024.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


class _Combined(_Groups):
    """Combination of optimizers, each for different weights, that share groups and state."""

    def __init__(self, *parts: Optimizer) -> None:
        super().__init__(group for part in parts for group in part.param_groups)
        self.parts = parts
        for part in parts:
            part.state = self.state

    def step(self) -> None:
        for part in self.parts:
            part.step()


class Sharded(_Groups):
    """Optimizer whose state is sharded over the processes of a run (ZeRO-1).

    Each process updates the weights that it owns, and then receives the other weights from their
    owners. The result is bit-identical to the result of an optimizer that is not sharded. A weight
    is never divided between processes, because Muon needs complete matrices.

    Args:
        optimizer: Optimizer of all weights.
        weights: The weights, by name.
        ranks: Processes of the run.

    Source: Rajbhandari et al. 2020, section 5.1 (ZeRO-1).
    """

    def __init__(self, optimizer: Optimizer, weights: Mapping[str, Tensor], ranks: Ranks) -> None:
        super().__init__(optimizer.param_groups)
        self.optimizer, self.state = optimizer, optimizer.state
        owners = ranks.assign({name: w.numel() for name, w in weights.items() if w.requires_grad})
        self.ranks, self.owners = ranks, {name: (weights[name], o) for name, o in owners.items()}

    def owns(self, name: str) -> bool:
        """Return whether this process keeps the state of a weight."""
        return self.owners[name][1] == self.ranks.rank

    def step(self) -> None:
        updated: list[list[Tensor]] = [[] for _ in range(self.ranks.world)]
        for weight, owner in self.owners.values():
            if weight.grad is not None:
                updated[owner].append(weight)
                if owner != self.ranks.rank:
                    weight.grad = None
        self.optimizer.step()
        for owner, weights in enumerate(updated):
            self.ranks.broadcast(weights, owner)
