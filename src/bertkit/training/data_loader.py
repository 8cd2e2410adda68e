"""Batches made ahead, while a model learns from those before: by a thread, or by processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from bertkit.batch import Batch
from bertkit.errors import BertkitError, TrainingError
from bertkit.threads import cores

Step = list[Batch]
"""The batches of one."""

MAX_LOADER_PROCESSES = 4
"""Processes that a GPU is given by itself: a sample takes about 0.2 ms, and a GPU reads some
10,000 in a second."""


def processes_for(device: str) -> int:
    """How many suit a device: none for a CPU, whose cores all learn."""
    share = cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return min(MAX_LOADER_PROCESSES, max(share - 1, 0)) if device == "cuda" else 0


@contextmanager
def prefetched(
    batches: Callable[[int], Step], steps: range, *, processes: int = 0
) -> Iterator[Iterator[Step]]:
    """What `batches` gives for each of these steps, the next ones made ahead.

    It follows from a step's number alone, so that processes can take steps in turn. Where there is
    a GPU, batches are in pinned memory.
    Raises: TrainingError where a process ends.
    """
    made = _by_processes(batches, steps, processes) if processes else (batches(n) for n in steps)
    pool = ThreadPoolExecutor(1)

    def take() -> Step | None:
        step = next(made, None)
        if step is None or not torch.cuda.is_available():
            return step
        return [batch.map_tensors(Tensor.pin_memory) for batch in step]

    def each() -> Iterator[Step]:
        coming = pool.submit(take)
        while (step := coming.result()) is not None:
            coming = pool.submit(take)
            yield step

    try:
        yield each()
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise TrainingError(
            "a process that makes batches has ended (out of memory?); go on with --resume, perhaps "
            f"with fewer train.loader_processes ({str(error).splitlines()[0]})"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        made.close()  # and with it the processes


class _Steps(Dataset[Any]):
    """Steps by their numbers, as arrays: each tensor on its way would hold a file open."""

    def __init__(self, batches: Callable[[int], Step]) -> None:
        self._batches = batches

    def __getitem__(self, step: int) -> Any:
        try:
            return [batch.map_tensors(Tensor.numpy) for batch in self._batches(step)]
        except BertkitError as error:
            return error  # raised, it would come with a traceback in its words


def _by_processes(batches: Callable[[int], Step], steps: range, count: int) -> Generator[Step]:
    loader = DataLoader(
        _Steps(batches),
        sampler=steps,
        batch_size=None,
        collate_fn=_same,
        num_workers=count,
        # forked: they share what is open, and a script needs no `if __name__ == "__main__":`
        multiprocessing_context="fork",
        worker_init_fn=_begin,
        generator=torch.Generator(),  # else it draws from that of the model
    )
    return _arrived(iter(loader))


def _arrived(steps: Any) -> Generator[Step]:
    try:
        for step in steps:
            if isinstance(step, BertkitError):
                raise step
            yield [batch.map_tensors(torch.from_numpy) for batch in step]
    finally:
        steps._shutdown_workers()  # else when nothing refers to it, as an error's traceback does


def _same(step: Any) -> Any:
    return step


def _begin(_: int) -> None:
    """Signals are for the process that learns, which ends this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
