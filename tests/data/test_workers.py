"""Worker processes that die or fail.

This file does not import torch, because each worker process imports the file.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from bertkit.data import workers
from bertkit.errors import BertkitError, StorageError


class _Dies:
    """A worker killed by the system, for example when memory runs out."""

    def __init__(self, work: Path) -> None:
        self.lock = work

    def __call__(self, *_: object) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


class _Fails(_Dies):
    def __call__(self, *_: object) -> Any:
        raise ZeroDivisionError("a mistake of ours")


class _DiesOnce(_Dies):
    """A worker that dies once, in the middle of a unit."""

    def __call__(self, step: object, number: int, unit: workers.Unit) -> Any:
        yield 10
        if not (self.lock / f"died-{number}").exists() and number == 1:
            (self.lock / f"died-{number}").touch()
            time.sleep(0.2)  # The message needs time to arrive.
            super().__call__()
        yield unit


def test_pool_raises_after_repeated_worker_deaths(tmp_path: Path) -> None:
    pool = workers.WorkerPool(_Dies(tmp_path), 2)  # type: ignore[arg-type]
    with pool, pytest.raises(StorageError, match="worker processes died 3 times on the same text"):
        list(pool.run("check", {0: workers.Unit([])}))


def test_unit_of_dead_worker_is_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    units = {number: workers.Unit([("text", number, number + 1)]) for number in range(4)}
    with workers.WorkerPool(_DiesOnce(tmp_path), 2) as pool:  # type: ignore[arg-type]
        messages = list(pool.run("check", units))
    assert {n: m for n, m in messages if isinstance(m, workers.Unit)} == units
    assert sum(m for _, m in messages if isinstance(m, int)) == 40
    assert (1, -10) in messages
    assert "a new worker process restarts its part" in capsys.readouterr().err


def test_worker_error_includes_its_traceback(tmp_path: Path) -> None:
    pool = workers.WorkerPool(_Fails(tmp_path), 2)  # type: ignore[arg-type]
    with pool, pytest.raises(ZeroDivisionError) as caught:
        list(pool.run("check", {0: workers.Unit([])}))
    assert not isinstance(caught.value, BertkitError)
    assert "in __call__" in caught.value.__notes__[0]
