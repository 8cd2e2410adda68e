"""The optimizer and what it may decay."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim.adamw import adamw as move_by_adamw

from bertkit.errors import ConfigError
from bertkit.models.lora import depths
from bertkit.nn.precision import gains_by_bf16
from bertkit.training.distributed import Ranks

CRF = (".crf.transitions", ".crf.start", ".crf.end")
"""How the names of a CRF's scores end."""

CRF_RATE = 100.0
"""How many times faster a CRF's scores learn: they are logits that begin at zero, and steps as
small as those of pretrained weights would leave them there."""

STACKED_SUFFIX = "qkv.weight"
"""The end of the name of a stack of three matrices."""

STACKED_CROSS = "cross.kv.weight"
"""The end of the name of a stack of two, in a decoder that attends to an encoder."""

LAYERS = re.compile(r"(^|\.)(encoder|decoder)\.blocks\.")
"""What the names of layers' weights have, also of a generator's."""

TABLE = re.compile(r"(encoder|decoder)\.embedding\.(tokens|positions|types)\.weight$")
"""The names of embedding tables."""

MUON_MOMENTUM = 0.95
"""Muon's, by default."""


class Optimizer(Protocol):
    """What moves weights; those of torch.optim are such, too."""

    param_groups: list[dict[str, Any]]
    """Of each group its weights, `params`, and its settings."""
    state: defaultdict[Tensor, Any]
    """What is kept of each weight."""

    def step(self) -> Any:
        """Move the weights that have a gradient."""

    def zero_grad(self) -> Any:
        """Forget the gradients."""


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
    """AdamW with BERT's groups: matrices decay, biases and norms do not, nor do a CRF's scores.

    These learn `crf_rate` times faster than the rest. With `layer_decay` below 1 each layer learns
    that much slower than the one above it (Howard & Ruder 2018, section 3.2, and ELECTRA's
    fine-tuning). `embedding_learning_rate` is that of the embedding tables.

    Bias correction is on, unlike google-research/bert's optimizer: it steadies short runs
    (Mosbach et al. 2021; Zhang et al. 2021).
    Raises: ConfigError for `embedding_learning_rate` without such tables.
    """
    place = depths(weights)
    top = max(place.values(), default=0)
    if embedding_learning_rate is not None and not any(map(TABLE.match, weights)):
        raise ConfigError(
            "train.embedding_learning_rate: the model has no table of tokens; leave it out"
        )
    tables = learning_rate if embedding_learning_rate is None else embedding_learning_rate
    rates = {"": learning_rate, "crf": learning_rate * crf_rate, "table": tables}
    groups: dict[tuple[str, int, bool], list[Tensor]] = {}
    for name, w in weights.items():
        kind = "crf" if name.endswith(CRF) else "table" if TABLE.match(name) else ""
        below = 0 if layer_decay == 1.0 else top - place[name]
        groups.setdefault((kind, below, w.ndim > 1 and kind != "crf"), []).append(w)
    return _AdamW(
        {
            "params": groups[kind, below, decays],
            "lr": rates[kind] * layer_decay**below,
            "weight_decay": weight_decay if decays else 0.0,
            "betas": betas,
            "eps": eps,
        }
        for kind, below, decays in sorted(groups)  # the first has the rate that is logged
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
    """Muon for the matrices of the layers, whose steps it makes orthogonal; AdamW for the rest.

    Those of queries, keys and values, which are stored as one, are three to it, and the keys and
    values of a decoder that attends to an encoder two.
    Its steps are as large as AdamW's, so that both can go by one learning rate; AdamW has one of
    its own, and a weight decay, where they are given. Source: Jordan et al. 2024; Liu et al. 2025,
    section 2.2, for the size of steps.
    Raises: ConfigError for a model without such matrices.
    """
    matrices = {n: w for n, w in weights.items() if LAYERS.search(n) and w.ndim == 2}
    if not matrices:
        raise ConfigError(
            'train.optimizer = "muon": moves the matrices of attention and feed-forward networks, '
            'and the model has none; choose "adamw"'
        )
    rest = {name: w for name, w in weights.items() if name not in matrices}
    return _Together(
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
"""By the names they have in run files."""


class _Groups:
    """Groups of weights, and what is kept of each weight.

    It is no torch.optim.Optimizer: making one imports torch's compiler, which takes a process a
    second (notes/2026-11.md).
    """

    def __init__(self, groups: Iterable[dict[str, Any]]) -> None:
        self.param_groups = [*groups]
        self.state: defaultdict[Tensor, Any] = defaultdict(dict)

    def zero_grad(self) -> None:
        for group in self.param_groups:
            for w in group["params"]:
                w.grad = None


class _AdamW(_Groups):
    """torch.optim.AdamW, in one kernel for all weights of a group.

    Source: Loshchilov & Hutter 2019, algorithm 2.
    """

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            moved = [w for w in group["params"] if w.grad is not None]
            for w in moved:
                if not self.state[w]:
                    self.state[w] = {
                        "step": torch.zeros((), device=w.device),
                        "exp_avg": torch.zeros_like(w),
                        "exp_avg_sq": torch.zeros_like(w),
                    }
            kept = [self.state[w] for w in moved]
            beta1, beta2 = group["betas"]
            move_by_adamw(
                moved,
                [w.grad for w in moved],
                [state["exp_avg"] for state in kept],
                [state["exp_avg_sq"] for state in kept],
                [],
                [state["step"] for state in kept],
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
    """torch.optim.Muon with `match_rms_adamw`, to which a stack of matrices is as many.

    It computes in bf16 where that is faster than fp32. torch's own does so everywhere, and a
    processor that emulates bf16 takes 4.6 times as long as in fp32 (notes/2026-11.md).
    """

    def __init__(
        self, matrices: Mapping[str, Tensor], lr: float, weight_decay: float, momentum: float
    ) -> None:
        settings = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__([{"params": [*matrices.values()], **settings}])
        device = str(next(iter(matrices.values())).device)
        self.dtype = torch.bfloat16 if gains_by_bf16(device) else torch.float32
        self.stacked: dict[int, list[int]] = {}
        """Rows of queries, if there are, of keys and of values."""
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
            kept = self.state[w]
            if "momentum_buffer" not in kept:
                kept["momentum_buffer"] = torch.zeros_like(w)
            mean = kept["momentum_buffer"]
            mean.lerp_(w.grad, 1 - momentum)
            ahead = w.grad.lerp(mean, momentum)  # Nesterov's
            w.mul_(1 - group["lr"] * group["weight_decay"])
            rows = self.stacked.get(id(w), [len(w)])
            for part, update in zip(w.split(rows), ahead.split(rows), strict=True):
                size = 0.2 * math.sqrt(max(part.shape))
                part.add_(orthogonalized(update.to(self.dtype)), alpha=-group["lr"] * size)


def orthogonalized(matrix: Tensor) -> Tensor:
    """The nearest orthogonal matrix, roughly: its singular values lie around 1.

    Source: Jordan et al. 2024, five steps of a quintic Newton-Schulz iteration.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


class _Together(_Groups):
    """Optimizers of different weights, as one: their groups and states are its own."""

    def __init__(self, *parts: Optimizer) -> None:
        super().__init__(group for part in parts for group in part.param_groups)
        self.parts = parts
        for part in parts:
            part.state = self.state

    def step(self) -> None:
        for part in self.parts:
            part.step()


class Sharded(_Groups):
    """An optimizer of which each process keeps the state of its own share of the weights alone.

    It moves these, and gets the rest from the processes that have moved them: what is learned is
    the same, bit for bit. Weights are dealt whole, which Muon's matrices need.
    Source: Rajbhandari et al. 2020, section 5.1 (ZeRO-1).
    """

    def __init__(self, optimizer: Optimizer, weights: Mapping[str, Tensor], ranks: Ranks) -> None:
        super().__init__(optimizer.param_groups)
        self.optimizer, self.state = optimizer, optimizer.state
        owners = ranks.owners({name: w.numel() for name, w in weights.items() if w.requires_grad})
        self.ranks, self.owners = ranks, {name: (weights[name], o) for name, o in owners.items()}

    def owns(self, name: str) -> bool:
        """Whether this process keeps the state of a weight."""
        return self.owners[name][1] == self.ranks.rank

    def step(self) -> None:
        moved: list[list[Tensor]] = [[] for _ in range(self.ranks.world)]
        for weight, owner in self.owners.values():
            if weight.grad is not None:
                moved[owner].append(weight)
                if owner != self.ranks.rank:
                    weight.grad = None
        self.optimizer.step()
        for owner, weights in enumerate(moved):
            self.ranks.give(weights, owner)
