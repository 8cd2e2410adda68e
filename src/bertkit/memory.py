"""Memory use of this process: the allocator, caches and garbage collection."""

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

    By default, glibc returns large blocks to the kernel and requests new ones for each tensor. The
    resulting page faults took a quarter of the time of a small training step on a CPU
    (notes/2026-11.md). With this setting, the process keeps its maximum size until `give_back` is
    called. Other allocators are not changed.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_MMAP_MAX, 0)
    mallopt(_TRIM_THRESHOLD, -1)


def give_back() -> None:
    """Return the freed memory of all threads to the kernel.

    A thread that has processed a long text keeps the memory that it used. After `retain_freed`,
    glibc never returns this memory automatically. Other allocators are not changed.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return
    trim(0)


def peak() -> float:
    """Return the peak memory of this process in GiB, or its peak GPU memory if it uses a GPU."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return float(torch.cuda.max_memory_allocated()) / 2**30
    # getrusage also counts memory that the parent process used before the fork.
    status = Path("/proc/self/status")
    if status.exists() and (match := re.search(r"VmHWM:\s*(\d+) kB", status.read_text())):
        return int(match[1]) / 2**20
    max_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return max_rss / 2 ** (30 if sys.platform == "darwin" else 20)


def limit_onednn_cache() -> None:
    """Limit the number of prepared computations that oneDNN caches.

    Call this before any computation. By default, oneDNN caches the prepared computations of the
    last 1,024 tensor shapes. Nearly every batch without padding has a new shape. For a long stream
    of texts, the cache is therefore useless, and grows to a gigabyte (notes/2026-11.md).
    Environment variables that the user has set take precedence.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, CACHED_SHAPES)


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable garbage collection in a `with` block.

    Use this for code that creates many objects without reference cycles. Otherwise, the garbage
    collector repeatedly traverses all objects. When 60,000 rows are read, this takes as long as the
    reading itself.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def installed() -> int:
    """Return the size of this machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
