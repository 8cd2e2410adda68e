"""Workers on a Ray cluster. Each work unit is a task of Ray core."""

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
"""Size in bytes of the object store of a local cluster. Messages are small."""

MAX_TEMPORARY_PATH_BYTES = 28
"""Maximum length in bytes of a temporary directory's path. Ray creates sockets in it, whose paths
have at most 107 bytes.
"""

ALONE = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Environment of a local cluster, set before Ray is imported.

It disables usage statistics. Ray binds to 127.0.0.1 only, because the second variable disables
clusters of several machines.
"""


class RayPool:
    """Tasks of a Ray cluster that run units, like the processes of a `WorkerPool`.

    The unit of a worker that dies is restarted, and all tasks end with the pool's owner. Every node
    needs the same files at the same paths, and the same version of bertkit. The next command waits
    with flock for workers whose owner was killed; on other machines this requires a file system
    with flock across machines, such as NFS 4.

    Raises:
        ConfigError: If Ray is not installed or the cluster cannot be reached.
    """

    def __init__(self, worker: WorkerTask, processes: int | None) -> None:
        self._worker, self._processes = worker, processes
        self._units: dict[Any, int] = {}
        """Unit of each running task. A task is the generator of its messages."""
        self._opened = ExitStack()

    def __enter__(self) -> RayPool:
        self._ray = self._opened.enter_context(connected(self._processes))
        self._processes = self._processes or int(self._ray.cluster_resources().get("CPU", 1))
        # `run` restarts units. Retries by Ray are not logged and never end if memory is low.
        remote = self._ray.remote(num_cpus=1, max_retries=0)
        self._task = remote(_task).options(num_returns="streaming")
        return self

    def __exit__(self, *_: object) -> None:
        for task in self._units:
            self._ray.cancel(task, force=True)
        self._opened.close()

    def run(self, step: Step, units: dict[int, Unit]) -> Iterator[tuple[int, Message]]:
        """Run a step for all units, like `WorkerPool.run`.

        Raises:
            DeviceError: If a node cannot run bertkit.
        """
        ray, waiting, tries = self._ray, iter(units), Tries()
        for number in islice(waiting, self._processes):
            self._begin(step, number, units[number])
        while self._units:
            (task,), _ = ray.wait(list(self._units), num_returns=1, fetch_local=False)
            number = self._units[task]
            try:
                message = ray.get(next(task))
            except ray.exceptions.RayTaskError as error:
                # Errors of the worker are sent as messages.
                raise DeviceError(
                    f"a node of the Ray cluster cannot run bertkit: {error}"
                ) from None
            except ray.exceptions.RayError:
                del self._units[task]
                yield number, -tries.restart(number)
                self._begin(step, number, units[number])
                continue
            if isinstance(message, Exception):
                raise message
            yield number, message
            if isinstance(message, int):
                tries.add(number, message)
            else:
                del self._units[task]
                for number in islice(waiting, 1):
                    self._begin(step, number, units[number])

    def _begin(self, step: Step, number: int, unit: Unit) -> None:
        self._units[self._task.remote(self._worker, Path.cwd(), step, number, unit)] = number


def _task(
    worker: WorkerTask, folder: Path, step: Step, number: int, unit: Unit
) -> Iterator[Message | Exception]:
    """Run a unit in a Ray process, in the directory of its owner, because paths may be relative."""
    # A task has one core.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        os.chdir(folder)
    except OSError as error:
        yield DataError(
            f"{folder}: {error.strerror} on {socket.gethostname()}; use a directory that all nodes "
            "of the Ray cluster can access"
        )
        return
    yield from messages(worker, step, number, unit)


@contextmanager
def connected(processes: int | None) -> Iterator[Any]:
    """Connect to the Ray cluster of RAY_ADDRESS, or start one on this machine for the block.

    If the calling application is already connected to Ray, its connection is used and stays open.

    Args:
        processes: Number of processes of a local cluster. Default: the number of cores.

    Raises:
        ConfigError: If Ray is not installed or the cluster cannot be reached.
    """
    loaded = sys.modules.get("ray")
    if loaded is not None and loaded.is_initialized():
        yield loaded
        return
    address = os.environ.get("RAY_ADDRESS") or "local"
    if address == "local":
        for name, value in ALONE.items():
            os.environ.setdefault(name, value)
        # Otherwise Ray creates a token and stores it in the home directory.
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        import ray
    except ImportError:
        raise ConfigError(
            "engine = 'ray' requires Ray; run pip install 'bertkit[cleaning]'"
        ) from None
    with ExitStack() as stack:
        # Ray prints messages about dead workers to stdout.
        stack.enter_context(redirect_stdout(sys.stderr))
        options: dict[str, Any] = {}
        if address == "local":
            folder = stack.enter_context(_folder())
            options = {
                "num_cpus": processes or cores(),
                "num_gpus": 0,
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE_BYTES,
                # A subdirectory, because Ray makes its directory accessible to all users.
                "_temp_dir": f"{folder}/r",
            }
        try:
            _check_address(address)
            ray.init(address, log_to_driver=False, logging_level=logging.CRITICAL, **options)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise ConfigError(f"RAY_ADDRESS = {address}: {error}") from None
        stack.callback(ray.shutdown)
        yield ray


def _folder() -> TemporaryDirectory[str]:
    folder = gettempdir()
    if len(os.fsencode(folder)) > MAX_TEMPORARY_PATH_BYTES:
        folder = "/tmp"
    return TemporaryDirectory(prefix="ray-", dir=folder, ignore_cleanup_errors=True)


def _check_address(address: str) -> None:
    """Check that a cluster can be reached. Ray itself would retry for many minutes.

    Raises:
        OSError: If no process listens at the address.
        ConfigError: If the address is for Ray Client.
    """
    if address.startswith("ray://"):
        raise ConfigError(
            f"RAY_ADDRESS = {address}: Ray Client is not supported; run the command on a node of "
            "the cluster with RAY_ADDRESS=auto"
        )
    host, colon, port = address.rpartition(":")
    if colon:
        socket.create_connection((host, int(port)), timeout=10).close()
