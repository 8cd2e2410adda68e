"""Prefetching of batches: a thread or worker processes prepare them during training."""

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
"""Upper limit of the default number of worker processes per GPU. Preparing a sample takes about
0.2 ms, and a GPU processes about 10,000 samples per second."""


def processes_for(device: str) -> int:
    """Return the default number of worker processes.

    It is 0 if the model is trained on the CPU, because training then uses all cores.

    Args:
        device: Type of the device, such as "cuda".
    """
    available = cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return min(MAX_LOADER_PROCESSES, max(available - 1, 0)) if device == "cuda" else 0


@contextmanager
def prefetched(
    batches: Callable[[int], Step], steps: range, *, processes: int = 0
) -> Iterator[Iterator[Step]]:
    """Prepare the batches of the next steps while a step is trained.

    If CUDA is available, the batches are stored in pinned memory.

    Args:
        batches: Function that returns the batches of a step. They must depend only on the number of
            the step, because the worker processes prepare different steps.
        steps: Numbers of the steps.
        processes: Number of worker processes. If it is 0, a thread prepares the batches.

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
            "a loader process stopped, perhaps because it ran out of memory; continue with "
            f"--resume and fewer train.loader_processes ({str(error).splitlines()[0]})"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        loaded.close()  # This stops the worker processes.


class _Steps(Dataset[Any]):
    """Dataset of steps, whose batches contain NumPy arrays.

    Sending tensors between processes would keep a file open for each tensor.
    """

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
        # With fork, processes share open files, and scripts need no `if __name__ == "__main__":`.
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
        # Otherwise, the workers keep running as long as anything, such as a traceback, refers to
        # `steps`.
        steps._shutdown_workers()


def _same(step: Any) -> Any:
    return step


def _set_signals(_: int) -> None:
    """Ignore Ctrl-C, which the training process handles, and stop on SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
