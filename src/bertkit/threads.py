"""The number of cores that a process may use, how its threads wait, and work in a thread."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import TypeVar

T = TypeVar("T")

SPIN_COUNT = "1000"
"""Iterations for which a thread of GNU OpenMP waits at full speed before it sleeps, in processes
that run for hours. By default it waits for milliseconds, which slows other processes down; on an
idle machine, threads that sleep make small training steps up to a third slower."""

_workers = 1
"""Among how many processes the cores are shared."""

WORKER_NAME = "begun"
"""The name of threads whose work somebody will ask for, or nobody, where an error comes first."""

CGROUP = Path("/sys/fs/cgroup")


def cores() -> int:
    """How many cores this process may use: those it is bound to, and no more than its control
    group has time for, rounded up.
    """
    share = quota()
    return bound() if share is None else max(1, min(bound(), math.ceil(share)))


def bound() -> int:
    """The cores that this process is bound to."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share_cores(workers: int) -> None:
    """Be one of so many processes that compute at the same time, such as a server's workers."""
    global _workers
    _workers = workers


def own_cores() -> int:
    """How many threads this process computes with at most: its share of the cores, and no more than
    the user has said.
    """
    return max(1, min(cores() // _workers, thread_limit()))


def thread_limit() -> int:
    """How many threads may compute: one a core, and no more than OMP_NUM_THREADS, which runtimes
    with threads of their own would not ask.
    """
    said = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # a list where nested
    return min(cores(), int(said)) if said.isdecimal() and int(said) > 0 else cores()


def quota(root: Path = CGROUP, own: Path = Path("/proc/self/cgroup")) -> float | None:
    """Cores' worth of time that the control group of this process has, and those it is in; None
    where none has a bound, or there are no such groups. Source: the kernel's cgroup-v2.rst,
    `cpu.max`, and `cpu.cfs_quota_us` of v1.
    """
    shares = [_share(root / "cpu" / "cpu.cfs_quota_us", root / "cpu" / "cpu.cfs_period_us")]
    try:
        below = [line.split(":", 2)[2] for line in own.read_text().splitlines()]
    except (OSError, IndexError):
        below = []
    for group in {root / name.lstrip("/") for name in ["", *below]}:
        inside = [group, *group.parents]
        for each in inside[: inside.index(root) + 1 if root in inside else 0]:
            shares.append(_share(each / "cpu.max"))
    return min((share for share in shares if share is not None), default=None)


def _share(*files: Path) -> float | None:
    """Of time and period, which one file holds or two do."""
    try:
        most, period = (int(word) for file in files for word in file.read_text().split())
    except (OSError, ValueError):  # no such file, or "max": no bound
        return None
    return most / period if most > 0 and period > 0 else None


def settle(*, lasting: bool) -> None:
    """Set the environment variables that OpenMP reads when torch is imported.

    Variables that the user has set are not changed.

    Args:
        lasting: Whether the process runs for hours; its threads then sleep while they wait.
    """
    if lasting and "OMP_WAIT_POLICY" not in os.environ and "GOMP_SPINCOUNT" not in os.environ:
        os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
    if cores() < bound():
        os.environ.setdefault("OMP_NUM_THREADS", str(cores()))


def begun(work: Callable[[], T]) -> Callable[[], T]:
    """Begin work in a thread; what this returns waits for its result, or raises what it raised.

    An executor would do the same, and takes 5 ms to import.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    def result() -> T:
        thread.join()
        for error in errors:
            raise error.with_traceback(None)  # of one wait, not of all
        return results[0]

    # no daemon: one that is in a library as Python ends aborts it
    thread = Thread(target=run, name=WORKER_NAME)
    thread.start()
    return result
