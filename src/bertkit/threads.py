"""Functions that choose the number of threads of a process."""

from __future__ import annotations

import math
import os
from pathlib import Path

SPIN_COUNT = "1000"
"""Number of iterations for which an idle GNU OpenMP thread spins before it sleeps.

This value is used for processes that run for hours. By default, idle threads spin for milliseconds,
which slows down other processes. On a machine without other processes, this value makes small
training steps up to a third slower, because threads sleep sooner.
"""

_workers = 1
"""Number of processes that share the CPU cores."""

CGROUP = Path("/sys/fs/cgroup")


def cores() -> int:
    """Return the number of CPU cores that this process may use.

    It is the number of cores in the CPU affinity of the process or, if that is smaller, the CPU
    quota of its control group, rounded up.
    """
    share = quota()
    return bound() if share is None else max(1, min(bound(), math.ceil(share)))


def bound() -> int:
    """Return the number of CPU cores in the CPU affinity of this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share_cores(workers: int) -> None:
    """Set the number of processes that compute at the same time, such as a server's workers."""
    global _workers
    _workers = workers


def own_cores() -> int:
    """Return the number of threads that this process may use for computation.

    It is this process's share of the cores (see `share_cores`), up to `thread_limit`.
    """
    return max(1, min(cores() // _workers, thread_limit()))


def thread_limit() -> int:
    """Return the number of cores, or OMP_NUM_THREADS if that is smaller.

    Thread pools other than OpenMP's ignore OMP_NUM_THREADS, so they use this function.
    """
    # OMP_NUM_THREADS can be a list, with one number for each level of nested parallelism.
    limit = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return min(cores(), int(limit)) if limit.isdecimal() and int(limit) > 0 else cores()


def quota(root: Path = CGROUP, own: Path = Path("/proc/self/cgroup")) -> float | None:
    """Return the smallest CPU quota, in cores, of this process's control group and its parents.

    If there is no quota, return None. Source: `cpu.max` in the kernel's cgroup-v2.rst, and
    `cpu.cfs_quota_us` of version 1.
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
    """Compute the quota in cores from files with the quota and the period.

    Return None if there is no limit.
    """
    try:
        most, period = (int(word) for file in files for word in file.read_text().split())
    except (OSError, ValueError):
        # The file does not exist, or contains "max".
        return None
    return most / period if most > 0 and period > 0 else None


def settle(*, lasting: bool) -> None:
    """Set the environment variables that OpenMP reads when torch is imported.

    Variables that the user has set are not changed.

    Args:
        lasting: Whether the process runs for hours. If true, idle threads sleep instead of
            spinning.
    """
    if lasting and "OMP_WAIT_POLICY" not in os.environ and "GOMP_SPINCOUNT" not in os.environ:
        os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
    if cores() < bound():
        os.environ.setdefault("OMP_NUM_THREADS", str(cores()))
