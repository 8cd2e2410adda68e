"""What a pretraining would cost on more GPUs: a model of a step's time, from one that was measured.

A step on n GPUs takes their share of the arithmetic, as long as the slowest of them takes, and then
the sum of the gradients over all of them, which nothing hides:

    step = t · B / n · (1 + m(n) · σ / (μ √(B / n))) + gradients / bandwidth + 2 log₂ n · latency

t is seconds a sample on one GPU, B samples a step; a sample has μ tokens, give or take σ, so that
shares differ, and m(n) is how many deviations the largest of n normal numbers is above their mean.
A ring sends 2 (n - 1) / n of the gradients' bytes: within a node at its bandwidth, between nodes
that of each GPU's part (Thakur et al. 2005, section 4).
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from statistics import NormalDist, fmean, median, stdev
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from bertkit.checkpoint.directory import load
from bertkit.checkpoint.run_directory import RUN
from bertkit.config import Count, Positive
from bertkit.console import say
from bertkit.errors import ConfigError, TrainingError
from bertkit.recipes.run_file import Train
from bertkit.storage import read_json
from bertkit.training.journal import Journal

SKIPPED_LINES = 3
"""Lines of a journal that are not counted: the first steps take longer."""

FEWEST = 5

WORTHWHILE_SPEEDUP = 1.5
"""Twice as many GPUs that are so many times as fast are said to pay."""


class Estimate(msgspec.Struct, frozen=True):
    """A run on some number of GPUs, by the model."""

    gpus: int
    seconds: float
    """Of a step."""
    sums: float
    """Seconds of it in which gradients are summed."""
    slowest: float
    """How many times as long as the mean the slowest share takes."""
    tokens_per_second: float
    efficiency: float
    """Speed over that of one GPU, over their number."""
    days: float
    price: float


class Measured(msgspec.Struct, frozen=True):
    """What the model needs of a run."""

    samples: int
    """Of a step."""
    steps: int
    """Of the whole run."""
    tokens: float
    """Of a sample, on average."""
    spread: float
    """Standard deviation of a sample's tokens."""
    tokens_per_second: float
    """Of one device."""
    gradients: float
    """Bytes of them."""


class Machines(msgspec.Struct, frozen=True):
    """What GPUs stand in."""

    per_node: Count = 8
    inside: Positive = 300.0
    """GB/s of a GPU to the others of its node."""
    between: Positive = 40.0
    """GB/s of a GPU to other nodes."""
    latency: Positive = 8.0
    """Microseconds of a message."""


def scale(
    run: Path,
    /,
    *,
    gpus: str = "8,64,256,1024",
    per_node: Count = 8,
    inside: Positive = 300.0,
    between: Positive = 40.0,
    latency: Positive = 8.0,
    price: Positive = 2.5,
    json: bool = False,
) -> list[Estimate] | None:
    """What a run would take on more GPUs, modelled from the steps that it took on one device.

    Nothing is run. A table of seconds a step, efficiency, days and price, and where more GPUs stop
    paying. Raises: ConfigError, TrainingError for a run with too few steps.

    Args:
        run: A pretraining's folder; a few dozen steps are enough.
        gpus: Numbers of GPUs, such as 8,64,256.
        per_node: GPUs of a node.
        inside: GB/s between a GPU and the others of its node.
        between: GB/s between a GPU and other nodes.
        latency: Microseconds that a message takes.
        price: Price of a GPU hour.
        json: Print JSON.
    """
    counts = _numbers(gpus)
    measured = measured_of(run)
    if too_many := [f"{count:,}" for count in counts if count > measured.samples]:
        say(f"{', '.join(too_many)} GPUs: left out, a step has {measured.samples:,} samples")
        counts = [count for count in counts if count <= measured.samples]
    machines = Machines(per_node, inside, between, latency)
    rows = [estimate(measured, machines, count, price) for count in counts]
    if json:
        return rows
    table = Table(
        "GPUs", "seconds a step", "sums", "slowest", "tokens/s", "efficiency", "days", "price"
    )
    for row in rows:
        table.add_row(
            f"{row.gpus:,}", f"{row.seconds:.4f}", f"{row.sums:.4f}", f"{row.slowest:.2f} ×",
            f"{row.tokens_per_second:,.0f}", f"{row.efficiency:.0%}", f"{row.days:,.2f}",
            f"{row.price:,.0f}",
        )  # fmt: skip
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    console.print(_verdict(measured, machines), markup=False, highlight=False)
    return None


def measured_of(run: Path) -> Measured:
    """What a run's folder says of its steps. Raises: ConfigError, TrainingError."""
    if not (run / RUN).exists():
        raise ConfigError(f"{run}: no {RUN} here; name the folder of a pretraining")
    record = read_json(run / RUN, ConfigError, "name the folder of a pretraining")
    try:
        train = msgspec.convert(record["config"]["train"], Train)
    except (msgspec.ValidationError, KeyError, TypeError):
        raise ConfigError(f"{run / RUN}: not of a pretraining; name the folder of one") from None
    lines: list[dict[str, Any]] = [r for r in Journal(run).records() if "tokens_per_second" in r]
    lines = [
        r
        for r in lines[SKIPPED_LINES:]
        if train.samples(r["step"] - 1)[1] == train.batch_size and "slowest_rank" not in r
    ]
    if len(lines) < FEWEST:
        raise TrainingError(
            f"{run}: the journal has {len(lines)} steps of one process to measure by, and {FEWEST} "
            f"are needed behind the first {SKIPPED_LINES}; let it run on, or log more often "
            "(train.log_every)"
        )
    tokens = [r["tokens"] for r in lines]
    return Measured(
        samples=train.batch_size,
        steps=train.steps,
        tokens=fmean(tokens) / train.batch_size,
        spread=stdev(tokens) / math.sqrt(train.batch_size),
        tokens_per_second=median(r["tokens_per_second"] for r in lines),
        gradients=4.0 * sum(weight.numel() for weight in load(run).model.parameters()),
    )


def estimate(run: Measured, machines: Machines, gpus: int, price: float) -> Estimate:
    """The model; see the head of this file."""
    alone = run.samples * run.tokens / run.tokens_per_second
    share = run.samples / gpus
    slowest = 1 + _largest(gpus) * run.spread / (run.tokens * math.sqrt(share))
    sums = _sums(run.gradients, machines, gpus)
    seconds = alone / gpus * slowest + sums
    days = seconds * run.steps / 86_400
    return Estimate(
        gpus=gpus,
        seconds=seconds,
        sums=sums,
        slowest=slowest,
        tokens_per_second=run.samples * run.tokens / seconds,
        efficiency=alone / seconds / gpus,
        days=days,
        price=days * 24 * gpus * price,
    )


def _sums(gradients: float, machines: Machines, gpus: int) -> float:
    """Seconds in which gradients are summed over all GPUs."""
    within = min(gpus, machines.per_node)
    nodes = -(-gpus // machines.per_node)
    inside = 2 * (within - 1) / within * gradients / (machines.inside * 1e9)
    between = 2 * (nodes - 1) / nodes * gradients / within / (machines.between * 1e9)
    return inside + between + 2 * math.log2(gpus) * machines.latency * 1e-6


def _largest(count: int) -> float:
    """About how many deviations the largest of so many normal numbers is above their mean.

    Source: Blom 1958, "Statistical estimates and transformed beta-variables".
    """
    return 0.0 if count == 1 else NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def _verdict(run: Measured, machines: Machines) -> str:
    """Up to how many GPUs twice as many pay."""
    gpus = 1
    while 2 * gpus <= run.samples:
        now, twice = (estimate(run, machines, n, 1.0).seconds for n in (gpus, 2 * gpus))
        if now / twice < WORTHWHILE_SPEEDUP:
            return (
                f"Beyond {gpus:,} GPUs twice as many are less than "
                f"{WORTHWHILE_SPEEDUP} times as fast."
            )
        gpus *= 2
    return f"Twice as many GPUs pay up to {gpus:,}: a step has no more samples."


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        numbers = [0]
    if min(numbers) < 1:
        raise ConfigError(f"gpus: {text!r} is no list of numbers; write for instance 8,64,256")
    return numbers
