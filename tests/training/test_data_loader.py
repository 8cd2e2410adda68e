"""Batches made ahead: in order, the same by any number of processes, none of which is left."""

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


def equal(one: Batch, other: Batch) -> bool:
    tensors: list[list[torch.Tensor]] = [[], []]
    for batch, found in zip((one, other), tensors, strict=True):
        batch.map_tensors(found.append)
    same = all(torch.equal(a, b) for a, b in zip(*tensors, strict=True))
    return same and (one.part, one.layout.lengths) == (other.part, other.layout.lengths)


@pytest.mark.parametrize("processes", [0, 1, 2])
def test_steps_come_in_order_and_whole(processes: int) -> None:
    state = torch.get_rng_state()
    with prefetched(step_of, range(2, 13), processes=processes) as found:
        steps = list(found)
    assert len(steps) == 11
    for number, step in enumerate(steps, 2):
        wanted = step_of(number)
        assert len(step) == len(wanted)
        assert all(equal(a, b) for a, b in zip(step, wanted, strict=True))
    assert torch.equal(state, torch.get_rng_state())  # the model's draws stay as they are
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize("error", [DataError("the fifth"), ValueError("the fifth")])
def test_what_failed_is_said(error: Exception, processes: int) -> None:
    steps = range(10)
    with (
        prefetched(partial(step_of, fails=error), steps, processes=processes) as found,
        pytest.raises(type(error), match="the fifth") as told,
    ):
        list(found)
    if isinstance(error, DataError):
        assert str(told.value) == "the fifth"
    assert not multiprocessing.active_children()


def test_a_process_that_dies_ends_the_steps_with_a_sentence() -> None:
    def dies() -> None:
        with prefetched(step_of, range(10**6), processes=2) as found:
            for number, _ in enumerate(found):
                if number == 3:
                    victim = multiprocessing.active_children()[0].pid
                    assert victim is not None
                    os.kill(victim, signal.SIGKILL)

    with pytest.raises(TrainingError, match="a loader process stopped"):
        dies()
    assert not multiprocessing.active_children()


def test_a_signal_to_all_leaves_the_processes_at_work() -> None:
    with prefetched(step_of, range(40), processes=1) as found:
        next(found)
        (process,) = multiprocessing.active_children()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
        time.sleep(0.1)
        assert len(list(found)) == 39


def test_the_next_step_is_made_while_one_is_used() -> None:
    made = threading.Event()

    def noted(number: int) -> list[Batch]:
        if number == 1:
            made.set()
        return step_of(number)

    with prefetched(noted, range(2)) as found:
        next(found)
        assert made.wait(10)


def test_a_cpu_gets_no_processes_and_the_ranks_of_a_machine_share_its_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bertkit.training.data_loader.cores", lambda: 12)
    assert processes_for("cpu") == 0
    assert processes_for("cuda") == 4
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert processes_for("cuda") == 2
