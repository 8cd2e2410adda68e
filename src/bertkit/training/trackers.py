"""Experiment trackers, to which the journal records of a run are forwarded.

For each tracker, a small class creates a run from a name and settings, or resumes a run by its id.
It then logs the metrics of each step, and closes the run. The environment variables of a tracker
configure where it stores the metrics.
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
"""Name of a tracker, or "none" to disable tracking."""

DEFAULT_PROJECT = "bertkit"
"""Name of the project in the tracker, unless an environment variable specifies another name."""

TIMEOUT_SECONDS = 25.0
"""Maximum time to wait for a tracker at the end of a run. It is shorter than the 30 seconds after
which torchrun kills processes."""

SECRET = re.compile(r"(?<=//)[^/@\s]+(?=@)|(?<=token=)[^&\s]+")
"""Matches credentials in a URL."""


@dataclass(frozen=True)
class Begin:
    """Data about a run with which a tracker creates or resumes its own run."""

    run: Run
    start: int
    """Number of finished steps."""
    id: str | None
    """Id of the run in the tracker, or None if the tracker has not recorded the run yet."""

    @property
    def name(self) -> str:
        return self.run.out.resolve().name

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.run.record)


class Tracker(Protocol):
    """Interface of a run in a tracker."""

    id: str
    """Id with which the run can be resumed."""

    def __init__(self, begin: Begin) -> None: ...

    def log(self, metrics: Mapping[str, float], step: int) -> None: ...

    def close(self, *, finished: bool) -> None: ...


class TensorBoard:
    """TensorBoard events in the run directory.

    If a run is resumed, the events after its last checkpoint are dropped.
    """

    def __init__(self, begin: Begin) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.id = "tensorboard"
        purge = begin.start + 1 if begin.id else 0  # A new run drops all events.
        self.writer = SummaryWriter(str(begin.run.out / self.id), purge_step=purge)
        if not begin.id:
            rows = "".join(
                f"| {path} | {value} |\n" for path, value in _rows(begin.settings).items()
            )
            self.writer.add_text(begin.name, f"| setting | value |\n|---|---|\n{rows}")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def close(self, *, finished: bool) -> None:
        self.writer.close()


class Trackio:
    """Trackio run, which is stored locally unless TRACKIO_SPACE_ID is set. Its id is its name."""

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

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.trackio.log(dict(metrics), step=step)

    def close(self, *, finished: bool) -> None:
        self.trackio.finish()


class WandB:
    """Weights & Biases run, which is uploaded unless WANDB_MODE is "offline".

    The console output and the code are not uploaded. If a resumed run repeats steps, W&B ignores
    them. This does no harm, because they have the same metrics.
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

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.run.log(dict(metrics), step=step)

    def close(self, *, finished: bool) -> None:
        self.run.finish(exit_code=0 if finished else 1)


class MLflow:
    """MLflow run at MLFLOW_TRACKING_URI, the address of a server or a local store."""

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
        parent = experiment.experiment_id if experiment else self.client.create_experiment(name)
        self.id = self.client.create_run(parent, run_name=begin.name).info.run_id
        rows = [Param(path, value[:500]) for path, value in _rows(begin.settings).items()]
        # MLflow accepts up to 100 parameters per call, with up to 500 characters each.
        for first in range(0, len(rows), 100):
            self.client.log_batch(self.id, params=rows[first : first + 100])

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        now = int(1000 * time.time())
        values = [self.metric(name, value, now, step) for name, value in metrics.items()]
        self.client.log_batch(self.id, metrics=values)

    def close(self, *, finished: bool) -> None:
        self.client.set_terminated(self.id, "FINISHED" if finished else "KILLED")


TRACKERS: Mapping[str, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "trackio": Trackio,
    "wandb": WandB,
    "mlflow": MLflow,
}
"""Class of each tracker, by the name of the tracker's package."""


def check_tracker(track: Track, setting: str) -> None:
    """Check that a tracker is installed.

    Args:
        track: The tracker.
        setting: Name of the setting that contains the tracker, for the message.

    Raises:
        ConfigError: If the tracker is not installed.
    """
    if track != "none" and importlib.util.find_spec(track) is None:
        raise ConfigError(f'{setting} = "{track}" is not installed; run pip install {track}')


@contextmanager
def tracked(track: Track, run: Run, *, start: int) -> Iterator[None]:
    """Within a context, forward all journal records to an experiment tracker.

    A resumed run continues the same run in the tracker. Only the first process forwards records. It
    uses a separate thread, so that no step waits for the tracker. If the tracker fails during
    training, a warning is printed and no more records are forwarded.

    Args:
        track: The tracker.
        run: The run.
        start: Number of finished steps.

    Raises:
        ConfigError: If the tracker cannot be initialized.
    """
    if track == "none" or not run.ranks.first:
        yield
        return
    ids = [r["tracked"] for r in run.journal.records() if r.get("tracker") == track]
    begin = Begin(run, start, ids[-1] if ids else None)
    try:
        with redirect_stdout(sys.stderr):  # Standard output contains only results.
            thread = _Thread(track, begin)
            tracker = thread.tracker.result()
    except Exception as error:
        raise ConfigError(
            f'track = "{track}": cannot start ({_summary(error)}); fix the error, or set "none"'
        ) from None
    if begin.id is None:  # The tracker does not have the earlier records yet.
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
    """Thread that initializes a tracker and logs to it until the run ends or an error occurs."""

    def __init__(self, track: Track, begin: Begin) -> None:
        self.track, self.tracker = track, Future[Tracker]()
        self.jobs: SimpleQueue[Callable[[Tracker], None] | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._work, args=[begin], name=track, daemon=True)
        self.thread.start()

    def log(self, record: Mapping[str, Any]) -> None:
        if self.thread.is_alive() and (metrics := metrics_of(record)):
            self.jobs.put(lambda tracker: tracker.log(metrics, record["step"]))

    def end(self, *, finished: bool) -> None:
        self.jobs.put(lambda tracker: tracker.close(finished=finished))
        self.jobs.put(None)
        self.thread.join(TIMEOUT_SECONDS)
        if self.thread.is_alive():
            say(f"warning: {self.track} did not finish in {TIMEOUT_SECONDS:.0f} seconds; {JOURNAL}")

    def _work(self, begin: Begin) -> None:
        try:
            self.tracker.set_result(TRACKERS[self.track](begin))
        except Exception as error:
            self.tracker.set_exception(error)
            return
        try:
            for job in iter(self.jobs.get, None):
                job(self.tracker.result())
        except Exception as error:
            say(f"warning: stopped logging to {self.track} ({_summary(error)}); {JOURNAL}")


JOURNAL = "all metrics are in journal.jsonl"


def metrics_of(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of a journal record. The name of a metric in a group is group/name."""
    return {
        name.replace(".", "/"): float(value)
        for name, value in flat(record).items()
        if is_plottable(value) and name != "step"
    }


def _rows(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return settings as text, by their dotted paths."""
    return {
        path: value if isinstance(value, str) else json.dumps(value)
        for path, value in flat(settings).items()
    }


def _summary(error: Exception) -> str:
    """Return the first line of an error message, without credentials in URLs."""
    line = next(iter(str(error).splitlines()), "")
    return SECRET.sub("…", f"{type(error).__name__}: {line}"[:300])
