"""Order, content, and errors of batches prepared by loader processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from functools import partial

import pytest
import torch

from bertkit.batch import Batch, Packed
from bertkit.errors import DataError, TrainingError
from bertkit.training.data_loader import prefetched, processes_for


def step_of(number: int, fails: Exception | None = None) -> list[Batch]:
    if number == 5 and fails is not None:
        raise fails
    lengths = [number % 3 + 1, 4]
    ids = torch.arange(sum(lengths)) + number
    targets = {"mlm": ids * 2}
    return [
        Batch(ids, ids, Packed.of(lengths), token_indices=ids, targets=targets, part=part)
        for part in range(number % 2 + 1)
    ]


def equal(first: Batch, second: Batch) -> bool:
    tensors: list[list[torch.Tensor]] = [[], []]
    for batch, items in zip((first, second), tensors, strict=True):
        batch.map_tensors(items.append)
    same = all(torch.equal(a, b) for a, b in zip(*tensors, strict=True))
    return same and (first.part, first.layout.lengths) == (second.part, second.layout.lengths)


@pytest.mark.parametrize("processes", [0, 1, 2])
def test_steps_keep_order_and_content(processes: int) -> None:
    state = torch.get_rng_state()
    with prefetched(step_of, range(2, 13), processes=processes) as loaded:
        steps = list(loaded)
    assert len(steps) == 11
    for number, step in enumerate(steps, 2):
        expected = step_of(number)
        assert len(step) == len(expected)
        assert all(equal(a, b) for a, b in zip(step, expected, strict=True))
    assert torch.equal(state, torch.get_rng_state())  # The random state of the model is unchanged.
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize("error", [DataError("the fifth"), ValueError("the fifth")])
def test_loader_raises_the_error_of_a_step(error: Exception, processes: int) -> None:
    steps = range(10)
    with (
        prefetched(partial(step_of, fails=error), steps, processes=processes) as loaded,
        pytest.raises(type(error), match="the fifth") as raised,
    ):
        list(loaded)
    if isinstance(error, DataError):
        assert str(raised.value) == "the fifth"
    assert not multiprocessing.active_children()


def test_dead_loader_process_raises_training_error() -> None:
    def kill_worker() -> None:
        with prefetched(step_of, range(10**6), processes=2) as loaded:
            for number, _ in enumerate(loaded):
                if number == 3:
                    victim = multiprocessing.active_children()[0].pid
                    assert victim is not None
                    os.kill(victim, signal.SIGKILL)

    with pytest.raises(TrainingError, match="a loader process stopped"):
        kill_worker()
    assert not multiprocessing.active_children()


def test_loader_processes_ignore_sigint() -> None:
    with prefetched(step_of, range(40), processes=1) as loaded:
        next(loaded)
        (process,) = multiprocessing.active_children()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
        time.sleep(0.1)
        assert len(list(loaded)) == 39


def test_next_step_is_prepared_in_background() -> None:
    made = threading.Event()

    def recorded_step(number: int) -> list[Batch]:
        if number == 1:
            made.set()
        return step_of(number)

    with prefetched(recorded_step, range(2)) as loaded:
        next(loaded)
        assert made.wait(10)


def test_process_count_depends_on_device_and_local_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertkit.training.data_loader.cores", lambda: 12)
    assert processes_for("cpu") == 0
    assert processes_for("cuda") == 4
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert processes_for("cuda") == 2
