"""Measure two ways of doing the same work in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from statistics import median
from typing import TypeVar

from benchmarks.kept import Book, How, Row, asked, progress, row

Found = TypeVar("Found")

SILENT_SECONDS = 10
"""Shortest time between two lines of progress."""


@dataclass(frozen=True)
class Options:
    """What the command line asks of a benchmark."""

    quick: bool = False
    fresh: bool = False
    only: str = ""
    minutes: float | None = None
    tasks: str | None = None
    seeds: str | None = None
    speed: bool = False
    began: float = field(default_factory=time.monotonic)

    def book(self, name: str, forget: Callable[[str, str], bool] | None = None) -> Book:
        """The rows that are kept of a benchmark, less those that are to be measured again: with
        --fresh those that `forget` names, by default those of --only.
        """

        def again(what: str, peer: str) -> bool:
            return self.fresh and (forget or partial(asked, self.only))(what, peer)

        return Book(name, quick=self.quick, forget=again, only=self.only)

    @property
    def late(self) -> bool:
        """Whether nothing more is to be begun."""
        return self.minutes is not None and time.monotonic() - self.began > 60 * self.minutes


def bf16_here() -> bool:
    """Whether bf16 is faster on this processor; where it is not, such rows are left out."""
    from bertkit.nn import precision  # here: preparing a corpus is measured without torch

    return precision.gains_by_bf16("cpu")


def turns(
    calls: Mapping[str, Callable[[], Found]], rounds: int, *, warm: int = 1
) -> tuple[dict[str, list[float]], dict[str, list[Found]]]:
    """Time each side in turn (A B C A B C …), after `warm` rounds that do not count.

    Prints a line after each round that ends at least ten seconds after the last line.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    answers: dict[str, list[Found]] = {name: [] for name in calls}
    printed = time.monotonic()
    for number in range(warm + rounds):
        if time.monotonic() > printed + SILENT_SECONDS:
            progress(f"round {number + 1} of {warm + rounds}")
            printed = time.monotonic()
        for name, call in calls.items():
            start = time.perf_counter()
            answer = call()
            if number >= warm:
                times[name].append(time.perf_counter() - start)
                answers[name].append(answer)
    return times, answers


def compare(
    what: str,
    ours: Callable[[], object],
    peer: Callable[[], object],
    *,
    peer_name: str,
    unit: str,
    work: float | None,
    target: float,
    how: tuple[How, How],
    repeats: int = 3,
) -> Row:
    """Time ours and peer in turn (A B A B …) after one unmeasured call of each; medians count.

    `work` is what one call gets done, in the unit before "/s". The row then holds rates, and its
    ratio is our rate over the peer's. With `work=None` the row holds seconds a call (unit "s"),
    where lower is better, and its ratio is the peer's seconds over ours.
    """
    times, _ = turns({"ours": ours, "peer": peer}, repeats)
    a, b = (median(kept) for kept in times.values())
    ours_side, peer_side = (a, b) if work is None else (work / a, work / b)
    return row(
        what,
        ours_side,
        peer_side,
        peer_name=peer_name,
        unit=unit,
        target=target,
        better="lower" if work is None else "higher",
        how=how,
    )


def apart(call: Callable[..., Found], *given: object) -> Found:
    """What a function of a module returns, called in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(call, *given).result()


def milliseconds(
    call: Callable[[str], object], queries: Sequence[str], *, warm: int
) -> list[float]:
    """How long each query takes, after the first `warm` of them, which do not count."""
    found = []
    for query in [*queries[:warm], *queries]:
        start = time.perf_counter()
        call(query)
        found.append((time.perf_counter() - start) * 1000)
    return found[-len(queries) :]
