"""Training as a generator of finished optimizer steps; policy belongs to who iterates."""

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
from bertkit.training.distributed import ALONE, Ranks
from bertkit.training.master_weights import Masters
from bertkit.training.optimizer import Optimizer
from bertkit.training.schedule import Schedule


@dataclass(frozen=True)
class Step:
    """One update of the weights, done."""

    number: int
    """From 1."""
    loss: float
    parts: Mapping[str, float]
    accuracy: Mapping[str, float]
    gradient_norm: float
    learning_rate: float
    tokens: int
    seconds: float
    waited: float
    """Seconds before it, until its batches were there."""
    stopping: bool = False
    """Whether a signal has asked one of the processes to stop."""
    slowest: int | None = None
    """Of several processes the one whose batches took longest."""

    @property
    def record(self) -> dict[str, float]:
        """What the journal says of it."""
        return {
            "step": self.number,
            "loss": self.loss,
            **self.parts,
            **{f"{name}_accuracy": value for name, value in self.accuracy.items()},
            "gradient_norm": self.gradient_norm,
            "learning_rate": self.learning_rate,
            "tokens": self.tokens,
            "tokens_per_second": self.tokens / self.seconds,
            "data_wait": self.waited,
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
    ranks: Ranks = ALONE,
    stopping: Callable[[], bool] = lambda: False,
) -> Iterator[Step]:
    """Take one optimizer step for each group of batches and yield it.

    Gradients of a group are summed in fp32 before the step, over all processes, each of which has
    the batches of its own parts. Dropout depends only on seed, step and part, so that a resumed run
    has the same steps, also with another number of processes.

    Args:
        masters: The weights.
        objective: Function that computes the loss of a batch.
        groups: Batches of each step.
        optimizer: The optimizer.
        schedule: Function that returns the factor of the learning rate of a step.
        max_grad_norm: Largest norm of the gradient, which is scaled down; may be infinite.
        seed: Random seed of dropout.
        start: Number of finished steps.
        ranks: Processes of a distributed run.
        stopping: Function that returns whether a signal requested a stop.

    Raises:
        TrainingError: If a loss or gradient is not finite, before the weights are updated.
    """
    model, device = masters.model, next(iter(masters.weights.values())).device
    memory.retain_freed()
    rates = [group["lr"] for group in optimizer.param_groups]
    model.train()
    for number, (group, waited) in enumerate(_timed(groups), start + 1):
        began = time.perf_counter()
        counts = _over(ranks, totals(group))
        sums = _Sums(counts)
        part_of_step = None
        for batch in group:
            if batch.part != part_of_step:
                part_of_step = batch.part
                _seed(seed, number, part_of_step)
            with masters.gradients_of_rows():
                loss = model(batch.to(device), partial(objective, totals=counts))
                loss.total.backward()
            masters.receive_gradients()
            sums.add(loss)
        tokens, stop, slowest = sum(batch.tokens for batch in group), stopping(), None
        if ranks.world > 1:
            sums.read()  # the time is that of a device, too
            took = time.perf_counter() - began
            tokens, stop, slowest = _added_up(ranks, masters, sums, tokens, stop, took)
        size = torch.nn.utils.clip_grad_norm_(masters.weights.values(), max_grad_norm)
        parts, accuracy = sums.means()  # with the norm the one time that a device is waited for
        total, norm = sum(parts.values()), size.item()
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
            seconds=time.perf_counter() - began,
            waited=waited,
            stopping=stop,
            slowest=slowest,
        )
        model.train()


def _check_finite(step: int, loss: float, norm: float, optimizer: Optimizer) -> None:
    """Raise TrainingError, without gradients, if the loss or the gradient is not finite."""
    if not (math.isfinite(loss) and math.isfinite(norm)):
        optimizer.zero_grad()
        raise TrainingError(
            f"step {step}: the loss is {loss:g} and the gradient's norm {norm:g}; begin "
            "again with a lower learning rate or a longer warmup"
        )


def _seed(seed: int, step: int, part: int) -> None:
    """Seed the draws of a part; the first one's are those of a step that was not cut."""
    draws = np.random.SeedSequence((seed, step), spawn_key=(part,) if part else ())
    # mixed: torch's generator on the CPU takes only the low 32 bits
    torch.manual_seed(int(draws.generate_state(1)[0]))


class _Sums:
    """Losses and right answers of a step's batches, on their device until they are read."""

    def __init__(self, counts: Totals) -> None:
        self._counts = counts
        self._names: list[tuple[str, str]] = []
        self._tensors: list[Tensor] = []
        self._sums: dict[tuple[str, str], float] = {}

    def add(self, loss: Loss) -> None:
        for kind, numbers in (("loss", loss.parts), ("right", loss.correct)):
            for name, number in numbers.items():
                self._names.append((kind, name))
                self._tensors.append(number)

    def read(self) -> dict[tuple[str, str], float]:
        """The sums of each head, in double precision."""
        if self._tensors:
            numbers = torch.stack([tensor.float() for tensor in self._tensors]).tolist()
            for name, number in zip(self._names, numbers, strict=True):
                self._sums[name] = self._sums.get(name, 0.0) + number
            self._names, self._tensors = [], []
        return self._sums

    def means(self) -> tuple[dict[str, float], dict[str, float]]:
        """The loss and the accuracy of each head."""
        read = self.read().items()
        losses = {name: value for (kind, name), value in read if kind == "loss"}
        right = {name: value for (kind, name), value in read if kind == "right"}
        return losses, {name: value / max(self._counts[name], 1) for name, value in right.items()}


def _over(ranks: Ranks, counts: Totals) -> Totals:
    """Of the same step in all processes."""
    if ranks.world == 1:
        return counts
    told = ranks.sum([*counts.values(), counts.tokens, counts.sequences, counts.places])
    *own, tokens, sequences, places = map(int, told)
    whole = Totals([])
    whole.update(zip(counts, own, strict=True))
    whole.tokens, whole.sequences, whole.places = tokens, sequences, places
    return whole


def _added_up(
    ranks: Ranks,
    masters: Masters,
    sums: _Sums,
    tokens: int,
    stop: bool,
    seconds: float,
) -> tuple[int, bool, int]:
    """Add up what all processes have of a step, gradients too; its tokens, whether to stop, and
    whose batches took longest."""
    weights = [w for w in masters.weights.values() if w.requires_grad]
    moved = [w.grad is not None for w in weights]
    times = [seconds if rank == ranks.rank else 0.0 for rank in range(ranks.world)]
    own = sums.read()
    told = ranks.sum([*own.values(), tokens, stop, *times, *moved])
    for name in own:
        own[name] = told.pop(0)
    tokens, stop, times = int(told[0]), told[1] > 0, told[2 : 2 + ranks.world]
    anywhere = told[2 + ranks.world :]
    ranks.sum_gradients(w for w, there in zip(weights, anywhere, strict=True) if there)
    return tokens, stop, times.index(max(times))


def _timed(groups: Iterable[Sequence[Batch]]) -> Iterator[tuple[Sequence[Batch], float]]:
    """Each, with the seconds that it took to come."""
    each = iter(groups)
    while True:
        asked = time.perf_counter()
        group = next(each, None)
        if group is None:
            return
        yield group, time.perf_counter() - asked


def evaluate(
    model: Model, objective: Objective, batches: Sequence[Batch]
) -> tuple[dict[str, float], dict[str, float]]:
    """The mean loss and the accuracy of each head over these batches, without learning."""
    device = next(model.parameters()).device
    counts = totals(batches)
    sums = _Sums(counts)
    model.eval()
    with torch.no_grad():
        for batch in batches:
            sums.add(model(batch.to(device), partial(objective, totals=counts)))
    return sums.means()
