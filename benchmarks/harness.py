"""Timing of several implementations of the same work, alternately."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from statistics import median
from typing import TypeVar

from benchmarks.kept import Book, Row, Setup, matches, progress, row

Found = TypeVar("Found")

SILENT_SECONDS = 10
"""Minimum time between two lines of progress."""


@dataclass(frozen=True)
class Options:
    """Options of the command line."""

    quick: bool = False
    fresh: bool = False
    only: str = ""
    minutes: float | None = None
    tasks: str | None = None
    seeds: str | None = None
    speed: bool = False
    began: float = field(default_factory=time.monotonic)

    def book(self, name: str, forget: Callable[[str, str], bool] | None = None) -> Book:
        """Open the rows of a benchmark, without the rows to measure again.

        With --fresh, these are the rows for which `forget` returns True. Default: the rows of
        --only.
        """

        def again(title: str, peer: str) -> bool:
            return self.fresh and (forget or partial(matches, self.only))(title, peer)

        return Book(name, quick=self.quick, forget=again, only=self.only)

    @property
    def late(self) -> bool:
        """Whether the time limit is exceeded, so that no measurement may start."""
        return self.minutes is not None and time.monotonic() - self.began > 60 * self.minutes


def bf16_here() -> bool:
    """Return whether bf16 is faster on this processor; otherwise its rows are skipped."""
    # The preparation of a corpus is measured without torch, so it is not imported above.
    from bertkit.nn import precision

    return precision.bf16_is_faster("cpu")


def turns(
    calls: Mapping[str, Callable[[], Found]], rounds: int, *, warm: int = 1
) -> tuple[dict[str, list[float]], dict[str, list[Found]]]:
    """Time each call alternately (A B C A B C …), after `warm` rounds that are not counted.

    A line of progress is printed at most every ten seconds.

    Returns:
        The times and the results of each call, by name.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    results: dict[str, list[Found]] = {name: [] for name in calls}
    printed = time.monotonic()
    for number in range(warm + rounds):
        if time.monotonic() > printed + SILENT_SECONDS:
            progress(f"round {number + 1} of {warm + rounds}")
            printed = time.monotonic()
        for name, call in calls.items():
            start = time.perf_counter()
            result = call()
            if number >= warm:
                times[name].append(time.perf_counter() - start)
                results[name].append(result)
    return times, results


def compare(
    title: str,
    run_bertkit: Callable[[], object],
    run_peer: Callable[[], object],
    *,
    peer_name: str,
    unit: str,
    work: float | None,
    target: float,
    setups: tuple[Setup, Setup],
    repeats: int = 3,
) -> Row:
    """Time bertkit and the baseline alternately (A B A B …), after one warmup call of each.

    Args:
        title: Description of the row.
        run_bertkit: Call of bertkit.
        run_peer: Call of the baseline.
        peer_name: Name of the baseline.
        unit: Unit of the values.
        work: Work of one call, in the unit before "/s". The row then contains rates, and its ratio
            is bertkit's rate divided by the baseline's. If None, the row contains seconds per call
            (unit "s"; lower is better), and its ratio is the baseline's time divided by bertkit's.
        target: Minimum ratio.
        setups: Settings of both sides.
        repeats: Number of calls of each side, of which the median is used.
    """
    times, _ = turns({"ours": run_bertkit, "peer": run_peer}, repeats)
    a, b = (median(values) for values in times.values())
    bertkit_value, peer_value = (a, b) if work is None else (work / a, work / b)
    return row(
        title,
        bertkit_value,
        peer_value,
        peer_name=peer_name,
        unit=unit,
        target=target,
        better="lower" if work is None else "higher",
        setups=setups,
    )


def run_in_process(call: Callable[..., Found], *arguments: object) -> Found:
    """Call a function of a module in a new process, and return its result."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(call, *arguments).result()


def milliseconds(
    call: Callable[[str], object], queries: Sequence[str], *, warm: int
) -> list[float]:
    """Return the time of each query, after a warmup with the first `warm` queries."""
    times = []
    for query in [*queries[:warm], *queries]:
        start = time.perf_counter()
        call(query)
        times.append((time.perf_counter() - start) * 1000)
    return times[-len(queries) :]
