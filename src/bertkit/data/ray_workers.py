"""Workers on a Ray cluster. Each unit of work is run as a Ray task."""

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
from bertkit.errors import ConfigError, DataError, DeviceError, missing_package
from bertkit.threads import cores

OBJECT_STORE_BYTES = 128 << 20
"""Size in bytes of a local cluster's object store. It only contains messages, which are small."""

MAX_TEMPORARY_PATH_BYTES = 28
"""Maximum length in bytes of the path of the temporary directory. Ray creates sockets in this
directory, and the path of a socket can have at most 107 bytes.
"""

ALONE = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Environment variables for a local cluster, which are set before Ray is imported.

The first variable disables usage statistics. The second disables clusters of several machines, so
that Ray listens on 127.0.0.1 only.
"""


class RayPool:
    """Pool of Ray tasks that run units of work, with the same interface as `WorkerPool`.

    If a worker dies, its unit is restarted. All tasks end when the process that created the pool
    ends. Every node of the cluster must have the same files at the same paths, and the same version
    of bertkit.

    If the process that created the pool is killed, the next command waits with flock until the
    workers have ended. For workers on other machines, this requires a file system that supports
    flock across machines, such as NFS 4.

    Raises:
        BertkitError: If Ray is not installed.
        ConfigError: If the cluster cannot be reached.
    """

    def __init__(self, worker: WorkerTask, processes: int | None) -> None:
        self._worker, self._processes = worker, processes
        self._units: dict[Any, int] = {}
        """Index of the unit that each running task processes. A task is a generator of messages."""
        self._opened = ExitStack()

    def __enter__(self) -> RayPool:
        self._ray = self._opened.enter_context(connected(self._processes))
        self._processes = self._processes or int(self._ray.cluster_resources().get("CPU", 1))
        # `run` restarts units itself, because Ray does not log its retries, and repeats them
        # endlessly if memory is low.
        remote = self._ray.remote(num_cpus=1, max_retries=0)
        self._task = remote(_task).options(num_returns="streaming")
        return self

    def __exit__(self, *_: object) -> None:
        for task in self._units:
            self._ray.cancel(task, force=True)
        self._opened.close()

    def run(self, step: Step, units: dict[int, Unit]) -> Iterator[tuple[int, Message]]:
        """Run a step for all units and yield their messages, like `WorkerPool.run`.

        Raises:
            DeviceError: If a node of the cluster cannot run bertkit.
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
                # This is not an error of the worker, which would be sent as a message.
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
    """Run a unit in a Ray process.

    The process first changes to the working directory of the command, because paths may be
    relative.
    """
    # Each task has only one core.
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
    """Connect to the Ray cluster in RAY_ADDRESS, and disconnect at the end of the `with` block.

    If RAY_ADDRESS is not set, a cluster is started on this machine. If this process is already
    connected to Ray, the existing connection is used and stays open.

    Args:
        processes: Number of processes of a cluster on this machine. Default: the number of cores.

    Raises:
        BertkitError: If Ray is not installed.
        ConfigError: If the cluster cannot be reached.
    """
    loaded = sys.modules.get("ray")
    if loaded is not None and loaded.is_initialized():
        yield loaded
        return
    address = os.environ.get("RAY_ADDRESS") or "local"
    if address == "local":
        for name, value in ALONE.items():
            os.environ.setdefault(name, value)
        # Without this variable, Ray creates a token and stores it in the home directory.
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        import ray
    except ImportError as error:
        raise missing_package(error) from None
    with ExitStack() as stack:
        # stdout is redirected, because Ray prints messages about dead workers to it.
        stack.enter_context(redirect_stdout(sys.stderr))
        options: dict[str, Any] = {}
        if address == "local":
            folder = stack.enter_context(_folder())
            options = {
                "num_cpus": processes or cores(),
                "num_gpus": 0,
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE_BYTES,
                # Ray makes its directory accessible to all users, so it gets a subdirectory.
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
        OSError: If the address does not accept connections.
        ConfigError: If the address is for Ray Client, which is not supported.
    """
    if address.startswith("ray://"):
        raise ConfigError(
            f"RAY_ADDRESS = {address}: Ray Client is not supported; run the command on a node of "
            "the cluster with RAY_ADDRESS=auto"
        )
    host, colon, port = address.rpartition(":")
    if colon:
        socket.create_connection((host, int(port)), timeout=10).close()
