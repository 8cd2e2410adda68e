"""Sums over the processes of a distributed run, through which gradients flow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist

from bertkit.errors import TrainingError


def share_of(sizes: Sequence[int], rank: int, world: int) -> slice:
    """Return the consecutive items that a process computes: at least one.

    The total sizes of the shares are about equal.

    Args:
        sizes: Size of each item. There are at least as many items as processes.
        rank: Rank of the process.
        world: Number of processes.
    """
    ends, ranks = np.cumsum(sizes), np.arange(world + 1)
    bounds = np.searchsorted(ends, ends[-1] * ranks / world, side="right")
    bounds = np.minimum(np.maximum.accumulate(bounds - ranks), len(sizes) - world) + ranks
    return slice(*bounds[rank : rank + 2].tolist())


def sum_over_ranks(values: Tensor) -> Tensor:
    """Sum a tensor over all processes. Its gradient is also summed over all processes.

    Raises:
        TrainingError: If another process has stopped.
    """
    total: Tensor = _SumOverRanks.apply(values)  # type: ignore[no-untyped-call]
    return total


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        with connection_errors():
            dist.all_reduce(total := values.clone())
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _SumOverRanks.forward(ctx, gradient)


@contextmanager
def connection_errors() -> Iterator[None]:
    """Convert errors of torch.distributed to TrainingError within a context."""
    try:
        yield
    except RuntimeError as error:
        raise TrainingError(
            "another process of the run has stopped or cannot be reached; see its output, then run "
            f"the same command with --resume auto ({str(error).splitlines()[0]})"
        ) from None
