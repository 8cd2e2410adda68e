"""Memory of the process: allocator, caches and garbage collection."""

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
"""Constants of malloc.h."""

CACHED_SHAPES = "64"
"""Number of prepared computations that oneDNN and torch cache."""


@cache
def retain_freed() -> None:
    """Make glibc reuse freed memory instead of returning it to the kernel.

    By default, glibc returns large blocks to the kernel and requests new ones for each tensor. On
    CPUs, page faults took a quarter of the time of a small training step (notes/2026-11.md). The
    process keeps its maximum size until `give_back`. Other allocators are not changed.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_MMAP_MAX, 0)
    mallopt(_TRIM_THRESHOLD, -1)


def give_back() -> None:
    """Return freed memory in all arenas of malloc to the kernel.

    Each thread that processed a long text keeps the memory, and after `retain_freed` it is never
    returned automatically. Other allocators are not changed.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return
    trim(0)


def peak() -> float:
    """Return the peak memory of this process in GiB, or of its GPU if it uses one."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return float(torch.cuda.max_memory_allocated()) / 2**30
    # getrusage includes memory of the parent process before the fork.
    status = Path("/proc/self/status")
    if status.exists() and (match := re.search(r"VmHWM:\s*(\d+) kB", status.read_text())):
        return int(match[1]) / 2**20
    max_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return max_rss / 2 ** (30 if sys.platform == "darwin" else 20)


def limit_onednn_cache() -> None:
    """Limit the number of computations that oneDNN caches. Call this before any computation.

    By default, oneDNN caches computations for the last 1,024 shapes. Nearly every batch of tokens
    without padding has a new shape. The cache is therefore useless for a long stream of texts, and
    grows to a gigabyte (notes/2026-11.md). Environment variables take precedence.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, CACHED_SHAPES)


def freeze_objects() -> None:
    """Exclude all existing objects, such as models and libraries, from garbage collection.

    A collection of these objects takes 150 ms, in which no request is served. Call this before
    requests are served: objects of requests can be in cycles, which would never be freed.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable garbage collection in the block.

    Use it for code that creates many objects without cycles. The collector would traverse all
    objects repeatedly, which takes as long as reading 60,000 rows.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def installed() -> int:
    """Return the memory of this machine in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
