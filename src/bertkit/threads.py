"""Number of cores and threads of a process, and work in background threads."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import TypeVar

T = TypeVar("T")

SPIN_COUNT = "1000"
"""Number of iterations for which a thread of GNU OpenMP spins before it sleeps, in processes that
run for hours. By default it spins for milliseconds, which slows other processes down. On an idle
machine, threads that sleep make small training steps up to a third slower.
"""

_workers = 1
"""Number of processes that share the cores."""

WORKER_NAME = "begun"
"""Name of background threads. Their result may remain unused after an error."""

CGROUP = Path("/sys/fs/cgroup")


def cores() -> int:
    """Return the number of cores that this process may use.

    The limits are its CPU affinity and the CPU quota of its control group, rounded up.
    """
    share = quota()
    return bound() if share is None else max(1, min(bound(), math.ceil(share)))


def bound() -> int:
    """Return the number of cores in the CPU affinity of this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share_cores(workers: int) -> None:
    """Set the number of processes that compute at the same time, such as a server's workers."""
    global _workers
    _workers = workers


def own_cores() -> int:
    """Return the maximum number of threads of this process.

    It is the fraction of the cores of this process, up to the limit of the user.
    """
    return max(1, min(cores() // _workers, thread_limit()))


def thread_limit() -> int:
    """Return the number of cores, up to OMP_NUM_THREADS, which other thread pools ignore."""
    # For nested parallelism, the value is a list.
    limit = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return min(cores(), int(limit)) if limit.isdecimal() and int(limit) > 0 else cores()


def quota(root: Path = CGROUP, own: Path = Path("/proc/self/cgroup")) -> float | None:
    """Return the CPU quota in cores of this process's control group and its parents, if any.

    Source: the kernel's cgroup-v2.rst, `cpu.max`, and `cpu.cfs_quota_us` of v1.
    """
    shares = [_share(root / "cpu" / "cpu.cfs_quota_us", root / "cpu" / "cpu.cfs_period_us")]
    try:
        below = [line.split(":", 2)[2] for line in own.read_text().splitlines()]
    except (OSError, IndexError):
        below = []
    for group in {root / name.lstrip("/") for name in ["", *below]}:
        inside = [group, *group.parents]
        for parent in inside[: inside.index(root) + 1 if root in inside else 0]:
            shares.append(_share(parent / "cpu.max"))
    return min((share for share in shares if share is not None), default=None)


def _share(*files: Path) -> float | None:
    """Return the quota in cores from files of quota and period, or None if there is no limit."""
    try:
        most, period = (int(word) for file in files for word in file.read_text().split())
    except (OSError, ValueError):
        # There is no such file, or it contains "max".
        return None
    return most / period if most > 0 and period > 0 else None


def settle(*, lasting: bool) -> None:
    """Set the environment variables that OpenMP reads when torch is imported.

    Variables that the user has set are not changed.

    Args:
        lasting: If true, the process runs for hours. Its threads then sleep while they wait.
    """
    if lasting and "OMP_WAIT_POLICY" not in os.environ and "GOMP_SPINCOUNT" not in os.environ:
        os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
    if cores() < bound():
        os.environ.setdefault("OMP_NUM_THREADS", str(cores()))


def start_in_background(work: Callable[[], T]) -> Callable[[], T]:
    """Run work in a background thread.

    An executor would do the same, but its import takes 5 ms.

    Args:
        work: The work.

    Returns:
        Function that waits for the result, and returns it or raises the error of the work.
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
            # Without this, each call would extend the traceback.
            raise error.with_traceback(None)
        return results[0]

    # A daemon thread that runs library code while Python exits aborts the process.
    thread = Thread(target=run, name=WORKER_NAME)
    thread.start()
    return result
