"""How the process holds memory."""

from __future__ import annotations

import ctypes
from functools import cache

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""Of malloc.h."""


@cache
def hold() -> None:
    """Keep memory that is freed for what is asked for next, for as long as the process lives.

    glibc gives large blocks back to the kernel and asks anew for each tensor; on CPUs fetching
    their pages was a quarter of the time of a small training step (docs/log.md). The process stays
    as large as it once was. Other allocators are left as they are.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_MMAP_MAX, 0)
    mallopt(_TRIM_THRESHOLD, -1)
