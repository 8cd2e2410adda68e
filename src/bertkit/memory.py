"""How the process holds memory."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""Of malloc.h."""

CACHED_SHAPES = "64"
"""How many prepared computations oneDNN, and torch above it, are asked to keep."""


@cache
def retain_freed() -> None:
    """Tell glibc to reuse freed memory instead of returning it to the kernel.

    glibc gives large blocks back to the kernel and asks anew for each tensor; on CPUs fetching
    their pages was a quarter of the time of a small training step (notes/2026-11.md). The process
    stays as large as it once was, until `give_back`. Other allocators are left as they are.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_MMAP_MAX, 0)
    mallopt(_TRIM_THRESHOLD, -1)


def give_back() -> None:
    """Give the kernel what malloc keeps of memory that was freed, in all its arenas.

    Each thread that ever read a long text keeps what that took, and `hold` has none of it given
    back by itself. Other allocators are left as they are.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return
    trim(0)


def peak() -> float:
    """GiB that this process has held at most, or its GPU where it has used one."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return float(torch.cuda.max_memory_allocated()) / 2**30
    status = Path("/proc/self/status")  # getrusage counts what the parent held before it began us
    if status.exists() and (held := re.search(r"VmHWM:\s*(\d+) kB", status.read_text())):
        return int(held[1]) / 2**20
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 2 ** (30 if sys.platform == "darwin" else 20)


def limit_onednn_cache() -> None:
    """Ask oneDNN, before it computes anything, to keep little of what it prepares.

    It keeps that for the last 1,024 shapes. Batches of tokens without padding have new shapes
    nearly every time, so that these are of no use to a long stream of texts, and come to a gigabyte
    (notes/2026-11.md). The environment may say otherwise.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, CACHED_SHAPES)


def freeze_objects() -> None:
    """Exclude all objects of now, models and libraries, from Python's garbage collection.

    Going through them takes 150 ms, now and then, in which no request is served. Call this before
    requests are served: their objects can be in cycles, which would never be freed.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def uncollected() -> Iterator[None]:
    """Without Python's collector, for what makes many objects and no cycles: it would look through
    all there are again and again, which takes as long as reading 60,000 rows itself.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def installed() -> int:
    """Bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
