"""Prefetching of batches by a thread or by worker processes during training."""

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
"""Batches of a step."""

MAX_LOADER_PROCESSES = 4
"""Maximum default number of worker processes per GPU. A sample takes about 0.2 ms, and a GPU
processes about 10,000 samples per second."""


def processes_for(device: str) -> int:
    """Return the default number of worker processes: 0 on a CPU, where training uses all cores.

    Args:
        device: Type of the device, such as "cuda".
    """
    available = cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return min(MAX_LOADER_PROCESSES, max(available - 1, 0)) if device == "cuda" else 0


@contextmanager
def prefetched(
    batches: Callable[[int], Step], steps: range, *, processes: int = 0
) -> Iterator[Iterator[Step]]:
    """Prefetch the batches of each step.

    If CUDA is available, batches are in pinned memory.

    Args:
        batches: Function that returns the batches of a step. They must depend only on the step's
            number, because each worker process computes different steps.
        steps: Numbers of the steps.
        processes: Number of worker processes; 0 uses a thread.

    Yields:
        An iterator over the batches of each step.

    Raises:
        TrainingError: If a worker process stops.
    """
    loaded = _by_processes(batches, steps, processes) if processes else (batches(n) for n in steps)
    pool = ThreadPoolExecutor(1)

    def take() -> Step | None:
        step = next(loaded, None)
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
            "a loader process stopped, perhaps out of memory; continue with --resume and fewer "
            f"train.loader_processes ({str(error).splitlines()[0]})"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        loaded.close()  # This stops the worker processes.


class _Steps(Dataset[Any]):
    """Dataset of steps as NumPy arrays. Sending tensors would keep a file open for each tensor."""

    def __init__(self, batches: Callable[[int], Step]) -> None:
        self._batches = batches

    def __getitem__(self, step: int) -> Any:
        try:
            return [batch.map_tensors(Tensor.numpy) for batch in self._batches(step)]
        except BertkitError as error:
            # If raised here, DataLoader would put the worker's traceback into the message.
            return error


def _by_processes(batches: Callable[[int], Step], steps: range, count: int) -> Generator[Step]:
    loader = DataLoader(
        _Steps(batches),
        sampler=steps,
        batch_size=None,
        collate_fn=_same,
        num_workers=count,
        # Forked processes share open files, and scripts need no `if __name__ == "__main__":`.
        multiprocessing_context="fork",
        worker_init_fn=_set_signals,
        # The default generator would change the random numbers of the model.
        generator=torch.Generator(),
    )
    return _as_tensors(iter(loader))


def _as_tensors(steps: Any) -> Generator[Step]:
    try:
        for step in steps:
            if isinstance(step, BertkitError):
                raise step
            yield [batch.map_tensors(torch.from_numpy) for batch in step]
    finally:
        # Otherwise the workers run while anything refers to `steps`, such as a traceback.
        steps._shutdown_workers()


def _same(step: Any) -> Any:
    return step


def _set_signals(_: int) -> None:
    """Ignore Ctrl-C, and stop on SIGTERM: the training process handles signals."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
