"""Cores that a process may use, how its threads wait for each other, and one beside another."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import TypeVar

T = TypeVar("T")

SPINS = "1000"
"""Turns that a thread of GNU OpenMP waits at full speed before it sleeps. By default it turns for
milliseconds, which a busy neighbour's core has to pay; on an idle machine threads that sleep make
small steps of learning a third longer (docs/log.md)."""

LOOKS = 3
"""How often it is asked whether another process computes, a millisecond apart."""

_workers = 1
"""Among how many processes the cores are shared."""

BEGUN = "begun"
"""The name of threads whose work somebody will ask for, or nobody, where an error comes first."""

CGROUP = Path("/sys/fs/cgroup")
LOAD = Path("/proc/loadavg")


def cores() -> int:
    """How many cores this process may use: those it is bound to, and no more than its control
    group has time for, rounded up."""
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
    the user has said."""
    return max(1, min(cores() // _workers, thread_limit()))


def thread_limit() -> int:
    """How many threads may compute: one a core, and no more than OMP_NUM_THREADS, which runtimes
    with threads of their own would not ask."""
    said = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # a list where nested
    return min(cores(), int(said)) if said.isdecimal() and int(said) > 0 else cores()


def quota(root: Path = CGROUP, own: Path = Path("/proc/self/cgroup")) -> float | None:
    """Cores' worth of time that the control group of this process has, and those it is in; None
    where none has a bound, or there are no such groups. Source: the kernel's cgroup-v2.rst,
    `cpu.max`, and `cpu.cfs_quota_us` of v1."""
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


def busy() -> bool:
    """Whether another process computes just now, or that can't be known."""
    for look in range(LOOKS):
        if look:
            time.sleep(0.001)
        try:
            running = int(LOAD.read_text().split()[3].split("/")[0])  # this process is one of them
        except (OSError, ValueError, IndexError):
            return True
        if running == 1:
            return False
    return True


def settle(*, lasting: bool) -> None:
    """Say in the environment, which OpenMP reads when torch is imported, how threads wait and how
    many there are. What the user has said stays.

    Threads sleep soon where another process computes, and in a `lasting` one, beside which others
    will come.
    """
    said = "OMP_WAIT_POLICY" in os.environ or "GOMP_SPINCOUNT" in os.environ
    if not said and (lasting or busy()):
        os.environ["GOMP_SPINCOUNT"] = SPINS
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
    thread = Thread(target=run, name=BEGUN)
    thread.start()
    return result
