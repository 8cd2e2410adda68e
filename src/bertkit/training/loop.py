"""Training loop: a generator that yields each finished optimizer step.

The caller iterates over the steps. Between two steps, it can log, evaluate, save, or stop.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from bertkit import memory
from bertkit.batch import Batch
from bertkit.errors import TrainingError
from bertkit.models.model import Model
from bertkit.objectives.loss import Loss, Objective, Totals, totals
from bertkit.training.distributed import SINGLE_PROCESS, Ranks
from bertkit.training.master_weights import Masters
from bertkit.training.optimizer import Optimizer
from bertkit.training.schedule import Schedule


@dataclass(frozen=True)
class Step:
    """Results of a finished optimizer step, combined over all processes."""

    number: int
    """Number of the step, from 1."""
    loss: float
    parts: Mapping[str, float]
    """Loss of each head. `loss` is the sum of these losses."""
    accuracy: Mapping[str, float]
    """Accuracy of each head for which it is computed."""
    gradient_norm: float
    """Gradient norm before clipping."""
    learning_rate: float
    """Learning rate of the first parameter group."""
    tokens: int
    """Number of input tokens."""
    seconds: float
    """Duration of the step, in seconds."""
    data_wait: float
    """Time spent waiting for the batches of the step, in seconds."""
    stopping: bool = False
    """Whether the run must stop, because a process received a signal."""
    slowest: int | None = None
    """Rank of the slowest process, or None if there is only one process."""

    @property
    def record(self) -> dict[str, float]:
        """Journal record of the step."""
        return {
            "step": self.number,
            "loss": self.loss,
            **self.parts,
            **{f"{name}_accuracy": value for name, value in self.accuracy.items()},
            "gradient_norm": self.gradient_norm,
            "learning_rate": self.learning_rate,
            "tokens": self.tokens,
            "tokens_per_second": self.tokens / self.seconds,
            "data_wait": self.data_wait,
            "peak_memory": memory.peak(),
            **({} if self.slowest is None else {"slowest_rank": self.slowest}),
        }


def steps(
    masters: Masters,
    objective: Objective,
    groups: Iterable[Sequence[Batch]],
    optimizer: Optimizer,
    schedule: Schedule,
    *,
    max_grad_norm: float,
    seed: int,
    start: int = 0,
    ranks: Ranks = SINGLE_PROCESS,
    stopping: Callable[[], bool] = lambda: False,
) -> Iterator[Step]:
    """Run one optimizer step for each group of batches.

    The gradients of a group are accumulated in fp32, and summed over all processes. Dropout depends
    only on the seed, the number of the step, and the part of the step. Therefore, a resumed run
    repeats the same steps, even with a different number of processes.

    Args:
        masters: Master weights of the model.
        objective: Function that computes the loss of a batch.
        groups: Batches of each step. In a distributed run, they are only the batches that this
            process computes.
        optimizer: The optimizer.
        schedule: Function that returns the factor of the learning rate for a step.
        max_grad_norm: Maximum gradient norm for clipping. Infinity disables clipping.
        seed: Random seed of dropout.
        start: Number of finished steps.
        ranks: Processes of a distributed run.
        stopping: Function that returns whether a signal requested a stop.

    Yields:
        The results of each step, after the weights are updated.

    Raises:
        TrainingError: If a loss or gradient is not finite. The weights are not updated.
    """
    model, device = masters.model, next(iter(masters.weights.values())).device
    memory.retain_freed()
    rates = [group["lr"] for group in optimizer.param_groups]
    model.train()
    for number, (group, data_wait) in enumerate(_timed(groups), start + 1):
        started = time.perf_counter()
        counts = _totals_over_ranks(ranks, totals(group))
        sums, part_of_step = _Sums(counts), None
        for batch in group:
            if batch.part != part_of_step:
                part_of_step = batch.part
                _seed(seed, number, part_of_step)
            with masters.sparse_gradients():
                loss = model(batch.to(device), partial(objective, totals=counts))
                loss.total.backward()
            masters.receive_gradients()
            sums.add(loss)
        tokens = sum(batch.tokens for batch in group if ranks.first or not batch.shared)
        stop, slowest = stopping(), None
        if ranks.world > 1:
            sums.read()  # This waits for the device, so that its time is measured.
            elapsed = time.perf_counter() - started
            tokens, stop, slowest = _all_reduce(ranks, masters, sums, tokens, stop, elapsed)
        norm_tensor = torch.nn.utils.clip_grad_norm_(masters.weights.values(), max_grad_norm)
        # Only the next two lines wait for the device in a step.
        parts, accuracy = sums.means()
        total, norm = sum(parts.values()), norm_tensor.item()
        _check_finite(number, total, norm, optimizer)
        factor = schedule(number)
        for settings, rate in zip(optimizer.param_groups, rates, strict=True):
            settings["lr"] = rate * factor
        optimizer.step()
        optimizer.zero_grad()
        masters.update_model()
        yield Step(
            number=number,
            loss=total,
            parts=parts,
            accuracy=accuracy,
            gradient_norm=norm,
            learning_rate=rates[0] * factor,
            tokens=tokens,
            seconds=time.perf_counter() - started,
            data_wait=data_wait,
            stopping=stop,
            slowest=slowest,
        )
        model.train()


def _check_finite(step: int, loss: float, norm: float, optimizer: Optimizer) -> None:
    """If the loss or gradient norm is not finite, clear the gradients and raise TrainingError."""
    if not (math.isfinite(loss) and math.isfinite(norm)):
        optimizer.zero_grad()
        raise TrainingError(
            f"step {step}: the loss is {loss:g} and the gradient norm {norm:g}; start over with a "
            "lower learning rate or a longer warmup"
        )


def _seed(seed: int, step: int, part: int) -> None:
    """Set torch's random seed for a part of a step. Part 0 has the seed of an undivided step."""
    sequence = np.random.SeedSequence((seed, step), spawn_key=(part,) if part else ())
    # The values are hashed to 32 bits, because torch's CPU generator uses only the low 32 bits.
    torch.manual_seed(int(sequence.generate_state(1)[0]))


class _Sums:
    """Sums of the loss and of the correct predictions of each head, over the batches of a step.

    The values stay on their device until they are read.
    """

    def __init__(self, counts: Totals) -> None:
        self._counts = counts
        self._names: list[tuple[str, str]] = []
        self._tensors: list[Tensor] = []
        self._sums: dict[tuple[str, str], float] = {}

    def add(self, loss: Loss) -> None:
        for kind, values in (("loss", loss.parts), ("correct", loss.correct)):
            for name, value in values.items():
                self._names.append((kind, name))
                self._tensors.append(value)

    def read(self) -> dict[tuple[str, str], float]:
        """Return the sums in double precision, by kind ("loss" or "correct") and head."""
        if self._tensors:
            values = torch.stack([tensor.float() for tensor in self._tensors]).tolist()
            for name, value in zip(self._names, values, strict=True):
                self._sums[name] = self._sums.get(name, 0.0) + value
            self._names, self._tensors = [], []
        return self._sums

    def means(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return the loss and the accuracy of each head."""
        sums = self.read().items()
        losses = {name: value for (kind, name), value in sums if kind == "loss"}
        correct = {name: value for (kind, name), value in sums if kind == "correct"}
        return losses, {name: value / max(self._counts[name], 1) for name, value in correct.items()}


def _totals_over_ranks(ranks: Ranks, counts: Totals) -> Totals:
    """Sum the totals of a step over all processes."""
    if ranks.world == 1:
        return counts
    sums = ranks.sum([*counts.values(), counts.tokens, counts.sequences, counts.positions])
    *targets, tokens, sequences, positions = map(int, sums)
    result = Totals([])
    result.update(zip(counts, targets, strict=True))
    result.tokens, result.sequences, result.positions = tokens, sequences, positions
    return result


def _all_reduce(
    ranks: Ranks, masters: Masters, sums: _Sums, tokens: int, stop: bool, seconds: float
) -> tuple[int, bool, int]:
    """Replace the gradients and results of a step by their sums over all processes.

    Returns:
        The number of tokens, whether to stop, and the rank of the slowest process.
    """
    weights = [w for w in masters.weights.values() if w.requires_grad]
    has_gradient = [w.grad is not None for w in weights]
    times = [seconds if rank == ranks.rank else 0.0 for rank in range(ranks.world)]
    local = sums.read()
    reduced = ranks.sum([*local.values(), tokens, stop, *times, *has_gradient])
    for name in local:
        local[name] = reduced.pop(0)
    tokens, stop, times = int(reduced[0]), reduced[1] > 0, reduced[2 : 2 + ranks.world]
    counts = reduced[2 + ranks.world :]
    ranks.sum_gradients(w for w, count in zip(weights, counts, strict=True) if count)
    return tokens, stop, times.index(max(times))


def _timed(groups: Iterable[Sequence[Batch]]) -> Iterator[tuple[Sequence[Batch], float]]:
    """Yield each group of batches, and the time spent waiting for it, in seconds."""
    iterator = iter(groups)
    while True:
        started = time.perf_counter()
        group = next(iterator, None)
        if group is None:
            return
        yield group, time.perf_counter() - started


def evaluate(
    model: Model, objective: Objective, batches: Sequence[Batch]
) -> tuple[dict[str, float], dict[str, float]]:
    """Evaluate a model without gradients.

    Args:
        model: The model. It is in evaluation mode afterwards.
        objective: Function that computes the loss of a batch.
        batches: Batches of the evaluation set.

    Returns:
        The mean loss and the accuracy of each head.
    """
    device = next(model.parameters()).device
    counts = totals(batches)
    sums = _Sums(counts)
    model.eval()
    with torch.no_grad():
        for batch in batches:
            sums.add(model(batch.to(device), partial(objective, totals=counts)))
    return sums.means()
