"""Trackers: programs that keep the numbers of many runs and draw them, told what the journal is.

Each has a class of a few lines, which begins a run with its name and settings or goes on with
one by its id, logs numbers by step, and closes. Where they keep or send their numbers is theirs to
say, by their own environment variables.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Literal, Protocol

from bertkit.config import flat
from bertkit.console import say
from bertkit.errors import ConfigError
from bertkit.training.journal import is_plottable
from bertkit.training.run import Run

Track = Literal["none", "tensorboard", "trackio", "wandb", "mlflow"]
"""Which tracker is told."""

DEFAULT_PROJECT = "bertkit"
"""Under which runs stand where the environment names nothing else."""

TIMEOUT_SECONDS = 25.0
"""Seconds that a run waits at its end for its tracker to be done: torchrun kills after 30."""

SECRET = re.compile(r"(?<=//)[^/@\s]+(?=@)|(?<=token=)[^&\s]+")
"""What an address in an error's text may hold."""


@dataclass(frozen=True)
class Begin:
    """What a tracker is told of a run when it begins, or goes on."""

    run: Run
    start: int
    """The last step that was taken."""
    id: str | None
    """That it had before; None for a run that is new to the tracker."""

    @property
    def name(self) -> str:
        return self.run.out.resolve().name

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.run.record)


class Tracker(Protocol):
    """One run of a tracker."""

    id: str
    """By which it is found again."""

    def __init__(self, begin: Begin) -> None: ...

    def log(self, numbers: Mapping[str, float], step: int) -> None: ...

    def close(self, *, finished: bool) -> None: ...


class TensorBoard:
    """Events in the run's folder; what came after the step that a run goes on from is dropped."""

    def __init__(self, begin: Begin) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.id = "tensorboard"
        purge = begin.start + 1 if begin.id else 0  # of a run that is told anew, all
        self.writer = SummaryWriter(str(begin.run.out / self.id), purge_step=purge)
        if not begin.id:
            rows = "".join(
                f"| {path} | {value} |\n" for path, value in _rows(begin.settings).items()
            )
            self.writer.add_text(begin.name, f"| setting | value |\n|---|---|\n{rows}")

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        for name, number in numbers.items():
            self.writer.add_scalar(name, number, step)

    def close(self, *, finished: bool) -> None:
        self.writer.close()


class Trackio:
    """A run of trackio, by its name: a store on this machine, unless TRACKIO_SPACE_ID says more."""

    def __init__(self, begin: Begin) -> None:
        import trackio

        self.id = begin.id or f"{begin.name}-{secrets.token_hex(4)}"
        self.trackio = trackio
        trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", DEFAULT_PROJECT),
            name=self.id,
            config=begin.settings,
            resume="allow",
            embed=False,
        )

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        self.trackio.log(dict(numbers), step=step)

    def close(self, *, finished: bool) -> None:
        self.trackio.finish()


class WandB:
    """A run of Weights & Biases, which sends it unless WANDB_MODE is offline; no output, no code.

    What a resumed run takes again has the same numbers, and W&B keeps the first.
    """

    def __init__(self, begin: Begin) -> None:
        import wandb

        self.id = begin.id or secrets.token_hex(4)
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", DEFAULT_PROJECT),
            name=begin.name,
            id=self.id,
            config=begin.settings,
            resume="allow",
            settings=wandb.Settings(console="off", disable_git=True, save_code=False),
        )

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        self.run.log(dict(numbers), step=step)

    def close(self, *, finished: bool) -> None:
        self.run.finish(exit_code=0 if finished else 1)


class MLflow:
    """A run of MLflow, where MLFLOW_TRACKING_URI says: a server, or a store on this machine."""

    def __init__(self, begin: Begin) -> None:
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self.client, self.metric = MlflowClient(), Metric
        if begin.id is not None:
            self.id = begin.id
            self.client.update_run(self.id, status="RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", DEFAULT_PROJECT)
        experiment = self.client.get_experiment_by_name(name)
        place = experiment.experiment_id if experiment else self.client.create_experiment(name)
        self.id = self.client.create_run(place, run_name=begin.name).info.run_id
        rows = [Param(path, value[:500]) for path, value in _rows(begin.settings).items()]
        for first in range(0, len(rows), 100):  # its limits: so many at once, so many letters
            self.client.log_batch(self.id, params=rows[first : first + 100])

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        now = int(1000 * time.time())
        metrics = [self.metric(name, number, now, step) for name, number in numbers.items()]
        self.client.log_batch(self.id, metrics=metrics)

    def close(self, *, finished: bool) -> None:
        self.client.set_terminated(self.id, "FINISHED" if finished else "KILLED")


TRACKERS: Mapping[str, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "trackio": Trackio,
    "wandb": WandB,
    "mlflow": MLflow,
}
"""By the names of their packages."""


def check_tracker(track: Track, setting: str) -> None:
    """Raises: ConfigError for a tracker that is not installed."""
    if track != "none" and importlib.util.find_spec(track) is None:
        raise ConfigError(f'{setting} = "{track}": it is not installed; pip install {track}')


@contextmanager
def tracked(track: Track, run: Run, *, start: int) -> Iterator[None]:
    """Tell a tracker all that the run's journal is told; a run that goes on stays the same run.

    The first process alone does, in a thread of its own that no step waits for. A tracker that
    fails on the way is told nothing more, and one line says so.
    Raises: ConfigError for a tracker that cannot begin.
    """
    if track == "none" or not run.ranks.first:
        yield
        return
    ids = [r["tracked"] for r in run.journal.records() if r.get("tracker") == track]
    begin = Begin(run, start, ids[-1] if ids else None)
    try:
        with redirect_stdout(sys.stderr):  # stdout is for data
            thread = _Thread(track, begin)
            tracker = thread.tracker.result()
    except Exception as error:
        raise ConfigError(
            f'track = "{track}": it cannot begin ({_words(error)}); mend that, or set it to "none"'
        ) from None
    if begin.id is None:  # the tracker knows nothing of what was before
        for record in run.journal.records():
            thread.log(record)
        run.journal.write({"step": 0, "tracker": track, "tracked": tracker.id})
    run.journal.on_record, finished = thread.log, False
    try:
        yield
        finished = True
    finally:
        run.journal.on_record = None
        with redirect_stdout(sys.stderr):
            thread.end(finished=finished)


class _Thread:
    """The thread in which a tracker lives, from its beginning to its end or its first error."""

    def __init__(self, track: Track, begin: Begin) -> None:
        self.track, self.tracker = track, Future[Tracker]()
        self.waiting: SimpleQueue[Callable[[Tracker], None] | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._live, args=[begin], name=track, daemon=True)
        self.thread.start()

    def log(self, record: Mapping[str, Any]) -> None:
        if self.thread.is_alive() and (numbers := numbers_of(record)):
            self.waiting.put(lambda tracker: tracker.log(numbers, record["step"]))

    def end(self, *, finished: bool) -> None:
        self.waiting.put(lambda tracker: tracker.close(finished=finished))
        self.waiting.put(None)
        self.thread.join(TIMEOUT_SECONDS)
        if self.thread.is_alive():
            say(f"warning: {self.track} is not done after {TIMEOUT_SECONDS:.0f} seconds; {JOURNAL}")

    def _live(self, begin: Begin) -> None:
        try:
            self.tracker.set_result(TRACKERS[self.track](begin))
        except Exception as error:
            self.tracker.set_exception(error)
            return
        try:
            for job in iter(self.waiting.get, None):
                job(self.tracker.result())
        except Exception as error:
            say(f"warning: {self.track} is told nothing more ({_words(error)}); {JOURNAL}")


JOURNAL = "the run’s journal has all numbers"


def numbers_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a record of the journal; those of a group are named group/name."""
    return {
        name.replace(".", "/"): float(value)
        for name, value in flat(record).items()
        if is_plottable(value) and name != "step"
    }


def _rows(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings by their dotted paths, as words."""
    return {
        path: value if isinstance(value, str) else json.dumps(value)
        for path, value in flat(settings).items()
    }


def _words(error: Exception) -> str:
    """The first line of an error, without the secrets of addresses."""
    line = next(iter(str(error).splitlines()), "")
    return SECRET.sub("…", f"{type(error).__name__}: {line}"[:300])
