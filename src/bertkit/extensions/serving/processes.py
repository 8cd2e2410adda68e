"""Server processes: they refuse requests while models load, and drain them at the end."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from bertkit.console import say
from bertkit.errors import BertkitError, ConfigError, ServeError
from bertkit.extensions.serving.admission import AdmissionMiddleware
from bertkit.extensions.serving.app import install_app
from bertkit.extensions.serving.batcher import Batcher
from bertkit.extensions.serving.connection import Connection, raise_file_limit
from bertkit.extensions.serving.limits import KEY_VARIABLE, Limits, read_keys
from bertkit.extensions.serving.metrics import WORKERS_VARIABLE, Metrics
from bertkit.extensions.serving.models import ModelRegistry
from bertkit.nn.precision import Inference
from bertkit.threads import own_cores, share_cores
from bertkit.view.runs import find_runs, read_run

LOADING_SECONDS = 120
"""Seconds that a worker may take to open its models."""

SWITCH_SECONDS = 0.0002
"""Seconds after which a thread releases the GIL if others wait for it. PyTorch releases the GIL in
each operation; with Python's default of 5 ms, a model waits that long after each of them."""

LOOPBACK = ("127.0.0.1", "[::1]", "::1", "localhost")


@dataclass(frozen=True)
class ServerSettings:
    """The settings of a server's processes."""

    models: Sequence[str]
    store: str | None = None
    keys: Path | None = None
    precision: Inference = "fp32"
    device: str = "auto"
    workers: int = 1
    host: str = "127.0.0.1"
    port: int = 8000
    limits: Limits = field(default_factory=Limits)
    tasks: Sequence[str] = ()
    """Tasks from outside the package, as module:Class, whose code may run."""
    runs: Sequence[Path] = ()
    """Folders of runs, which the window shows while they learn."""
    browser: bool = False
    """Whether to show the window once there is something to see."""


def serve(plan: ServerSettings) -> None:
    """Answer requests until SIGTERM or Ctrl-C, then what was accepted before.

    Raises: ConfigError for keys, or an address, that cannot be used; what a model's folder raises.
    """
    keys = read_keys(plan.keys)
    opened = _listen(plan.host, plan.port)
    host = f"[{plan.host}]" if ":" in plan.host else plan.host
    address = f"http://{host}:{opened.getsockname()[1]}"
    if not keys and plan.host not in LOOPBACK:
        say(
            f"warning: whoever reaches {address} may use this server, for it has no keys; give "
            f"some (--keys FILE, or the environment variable {KEY_VARIABLE})"
        )
    connections = raise_file_limit()
    settings: dict[str, Any] = {
        "workers": plan.workers,
        "http": partial(Connection, limit=connections),
        # asyncio accepts as many before it closes the first: they must fit into the limit of files
        "backlog": connections // 6,
        "log_config": None,
        "access_log": False,
        "proxy_headers": False,
        "server_header": False,
        "date_header": False,
        "ws": "none",
        "timeout_keep_alive": 75,  # balancers keep connections for a minute
        "timeout_graceful_shutdown": int(plan.limits.timeout) + 5,
        "timeout_worker_healthcheck": LOADING_SECONDS,
    }
    if plan.workers > 1:
        make = partial(loaded_app, plan, address)
        opened.listen()  # a worker says where it serves just before it accepts
        workers = Workers(uvicorn.Config(make, factory=True, **settings), [opened])
        with TemporaryDirectory(prefix="bertkit-") as counts:
            os.environ[WORKERS_VARIABLE] = counts
            workers.run()
            del os.environ[WORKERS_VARIABLE]
        if any(worker.exitcode == STARTUP_FAILURE for worker in workers.processes):
            raise ServeError("a worker could not open its models; it says above why")
        return
    admission, batcher = _parts(plan)
    process = Process(uvicorn.Config(admission, **settings), admission)
    failed: list[Exception] = []

    def load() -> None:
        try:
            _open(admission, batcher, plan, address)
        except Exception as error:
            failed.append(error)
            process.should_exit = True

    threading.Thread(target=load, name="loading", daemon=True).start()
    # uvicorn sends itself what it caught once more, after the last reply
    signal.signal(signal.SIGTERM, lambda *_: None)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # which nohup sets
        signal.signal(signal.SIGHUP, process.handle_exit)
    process.run([opened])
    batcher.close()
    if failed:
        raise failed[0]


class Process(uvicorn.Server):
    """A server that says that it stops."""

    def __init__(self, config: uvicorn.Config, admission: AdmissionMiddleware) -> None:
        super().__init__(config)
        self.admission = admission

    def handle_exit(self, sig: int, frame: Any) -> None:
        self.admission.draining = True
        super().handle_exit(sig, frame)


class Workers(Multiprocess):
    """Worker processes. SIGHUP replaces them one by one, or stops them if the terminal is gone."""

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket]) -> None:
        super().__init__(config, sockets)
        self.in_terminal = sys.stderr.isatty()

    def handle_hup(self) -> None:
        if self.in_terminal and not sys.stderr.isatty():
            self.should_exit.set()
        else:
            super().handle_hup()


def loaded_app(plan: ServerSettings, address: str) -> AdmissionMiddleware:
    """The application of a worker, once its models are open."""
    # a terminal that closes sends it to all processes; the parent stops the workers
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    admission, batcher = _parts(plan)
    try:
        _open(admission, batcher, plan, address)
    except BertkitError as error:
        say(f"bertkit: {error}")
        sys.exit(STARTUP_FAILURE)
    return admission


def _parts(plan: ServerSettings) -> tuple[AdmissionMiddleware, Batcher]:
    limits, metrics = plan.limits, Metrics()
    batcher = Batcher(
        queue_tokens=limits.queue_tokens, batch_tokens=limits.batch_tokens, metrics=metrics
    )
    keys = read_keys(plan.keys)
    hosts = LOOPBACK if not keys and plan.host in LOOPBACK else None
    return AdmissionMiddleware(limits=limits, keys=keys, metrics=metrics, hosts=hosts), batcher


def _open(
    admission: AdmissionMiddleware, batcher: Batcher, plan: ServerSettings, address: str
) -> None:
    for folder in find_runs(plan.runs):
        read_run(folder)
    sys.setswitchinterval(SWITCH_SECONDS)
    share_cores(plan.workers)  # before models are opened, which take no more than it
    if plan.workers > 1:
        torch.set_num_threads(own_cores())
    registry = ModelRegistry(plan.models, plan.store, plan.precision, plan.tasks, plan.device)
    install_app(admission, registry, batcher, plan.runs)
    say(f"{', '.join([*registry.models, *map(str, plan.runs)])}: served at {address}")
    if plan.browser:
        webbrowser.open(address)


def _listen(host: str, port: int) -> socket.socket:
    """A socket at an address. Raises: ConfigError where that cannot be had."""
    try:
        family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with ExitStack() as closing:
            opened = closing.enter_context(socket.socket(family, socket.SOCK_STREAM))
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.bind(place)
            closing.pop_all()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"{host}:{port}: cannot be listened at ({error}); choose another --port or --host"
        ) from None
    opened.set_inheritable(True)
    return opened
