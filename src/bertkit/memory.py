"""How the process holds memory."""

from __future__ import annotations

import ctypes
import os
from functools import cache

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""Of malloc.h."""

SHAPES = "64"
"""How many prepared computations oneDNN, and torch above it, are asked to keep."""


@cache
def hold() -> None:
    """Keep memory that is freed for what is asked for next, for as long as the process lives.

    glibc gives large blocks back to the kernel and asks anew for each tensor; on CPUs fetching
    their pages was a quarter of the time of a small training step (docs/log.md). The process stays
    as large as it once was. Other allocators are left as they are.

    oneDNN keeps what it prepared for the last 1,024 shapes. Batches of tokens without padding have a
    shape of their own each time, so that these are of no use, and grew to a gigabyte while a million
    texts were embedded: it is told to keep few, unless the environment says how many.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, SHAPES)
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_MMAP_MAX, 0)
    mallopt(_TRIM_THRESHOLD, -1)
