"""Workers on a Ray cluster: each unit is a task of Ray core, as a `Pool` hands it to a process."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

from bertkit.data.workers import Message, Step, Tries, Unit, WorkerTask, messages
from bertkit.errors import ConfigError, DataError, DeviceError
from bertkit.threads import cores

OBJECT_STORE_BYTES = 128 << 20
"""Bytes of the object store of our own cluster: messages are small."""

MAX_TEMPORARY_PATH_BYTES = 28
"""Bytes of a temporary folder's path: Ray makes sockets in it, whose paths have at most 107."""

ALONE = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Environment of our own cluster, from before Ray is imported: it tells nobody of itself, and
listens on 127.0.0.1 alone, which it does where (by this name) it may be no cluster of machines."""


class RayPool:
    """Tasks of a Ray cluster that take units in turn, like the processes of a `Pool`: one whose
    worker dies is begun again, and none outlives the owner.

    Every node sees the same files at the same paths, and has the same bertkit. A worker whose owner
    was killed is waited for by flock, so on another machine only where the file system knows flock
    across machines, as NFS 4 does.
    Raises: ConfigError if Ray or the cluster is missing.
    """

    def __init__(self, worker: WorkerTask, processes: int | None) -> None:
        self._worker, self._processes = worker, processes
        self._units: dict[Any, int] = {}
        """The unit of each task that runs; a task is the generator of its messages."""
        self._opened = ExitStack()

    def __enter__(self) -> RayPool:
        self._ray = self._opened.enter_context(connected(self._processes))
        self._processes = self._processes or int(self._ray.cluster_resources().get("CPU", 1))
        # A retry of Ray's own says nothing, and has no end where memory is short: we begin again.
        remote = self._ray.remote(num_cpus=1, max_retries=0)
        self._task = remote(_task).options(num_returns="streaming")
        return self

    def __exit__(self, *_: object) -> None:
        for task in self._units:
            self._ray.cancel(task, force=True)
        self._opened.close()

    def run(self, step: Step, units: dict[int, Unit]) -> Iterator[tuple[int, Message]]:
        """Run a step for all units, as `Pool.run` does.

        Raises: DeviceError where a node cannot run bertkit.
        """
        ray, left, tries = self._ray, iter(units), Tries()
        for number in islice(left, self._processes):
            self._begin(step, number, units[number])
        while self._units:
            (task,), _ = ray.wait(list(self._units), num_returns=1, fetch_local=False)
            number = self._units[task]
            try:
                message = ray.get(next(task))
            except ray.exceptions.RayTaskError as error:  # our own errors come as messages
                raise DeviceError(
                    f"a node of the Ray cluster cannot run bertkit: {error}"
                ) from None
            except ray.exceptions.RayError:
                del self._units[task]
                yield number, -tries.again(number)
                self._begin(step, number, units[number])
                continue
            if isinstance(message, Exception):
                raise message
            yield number, message
            if isinstance(message, int):
                tries.add(number, message)
            else:
                del self._units[task]
                for number in islice(left, 1):
                    self._begin(step, number, units[number])

    def _begin(self, step: Step, number: int, unit: Unit) -> None:
        self._units[self._task.remote(self._worker, Path.cwd(), step, number, unit)] = number


def _task(
    worker: WorkerTask, folder: Path, step: Step, number: int, unit: Unit
) -> Iterator[Message | Exception]:
    """Run a unit in a process of Ray's, in the folder of its owner: paths may be relative."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a task has one core
    try:
        os.chdir(folder)
    except OSError as error:
        yield DataError(
            f"{folder}: {error.strerror} on {socket.gethostname()}; every node of the Ray cluster "
            "must see the same files"
        )
        return
    yield from messages(worker, step, number, unit)


@contextmanager
def connected(processes: int | None) -> Iterator[Any]:
    """Ray, connected to the cluster of RAY_ADDRESS, or to one of this machine that ends with the
    block; what the calling program has connected stays so. Raises: ConfigError.
    """
    loaded = sys.modules.get("ray")
    if loaded is not None and loaded.is_initialized():
        yield loaded
        return
    address = os.environ.get("RAY_ADDRESS") or "local"
    if address == "local":
        for name, value in ALONE.items():
            os.environ.setdefault(name, value)
        # else Ray makes one itself, and leaves it in the home folder
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        import ray
    except ImportError:
        raise ConfigError(
            "engine: 'ray' needs Ray, which is not installed: pip install 'bertkit[cleaning]'"
        ) from None
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(sys.stderr))  # for Ray tells of dead workers there
        own: dict[str, Any] = {}
        if address == "local":
            folder = stack.enter_context(_folder())
            own = {
                "num_cpus": processes or cores(),
                "num_gpus": 0,
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE_BYTES,
                "_temp_dir": f"{folder}/r",  # within it, for Ray opens its own to everyone
            }
        try:
            _reach(address)
            ray.init(address, log_to_driver=False, logging_level=logging.CRITICAL, **own)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise ConfigError(f"RAY_ADDRESS: {address}: {error}") from None
        stack.callback(ray.shutdown)
        yield ray


def _folder() -> TemporaryDirectory[str]:
    place = gettempdir()
    if len(os.fsencode(place)) > MAX_TEMPORARY_PATH_BYTES:
        place = "/tmp"
    return TemporaryDirectory(prefix="ray-", dir=place, ignore_cleanup_errors=True)


def _reach(address: str) -> None:
    """Raises: OSError where nobody listens, for Ray itself would try again for many minutes;
    ConfigError for an address that cannot serve.
    """
    if address.startswith("ray://"):
        raise ConfigError(
            f"RAY_ADDRESS: {address}: Ray's client cannot do this; run the command on a node of "
            "the cluster, with RAY_ADDRESS=auto"
        )
    host, colon, port = address.rpartition(":")
    if colon:
        socket.create_connection((host, int(port)), timeout=10).close()
