"""Server processes, which load models, serve requests, and finish open requests when they stop."""

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
from bertkit.extensions.serving.api_keys import KEY_VARIABLE, read_keys
from bertkit.extensions.serving.app import install_app
from bertkit.extensions.serving.batcher import Batcher
from bertkit.extensions.serving.connection import Connection, raise_file_limit
from bertkit.extensions.serving.limits import Limits
from bertkit.extensions.serving.metrics import WORKERS_VARIABLE, Metrics
from bertkit.extensions.serving.models import ModelRegistry
from bertkit.nn.precision import Inference
from bertkit.threads import own_cores, share_cores
from bertkit.view.runs import find_runs, read_run

LOADING_SECONDS = 120
"""Time in seconds within which a worker must load its models."""

SWITCH_SECONDS = 0.0002
"""Time in seconds after which a thread releases the GIL if other threads wait for it. PyTorch
releases the GIL in each operation. With Python's default of 5 ms, a model might wait that long
after every operation."""

LOOPBACK = ("127.0.0.1", "[::1]", "::1", "localhost")


@dataclass(frozen=True)
class ServerSettings:
    """The settings of a server."""

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
    """Custom tasks, each as module:Class. Their code is executed."""
    runs: Sequence[Path] = ()
    """Directories of training runs whose curves the web page shows."""
    browser: bool = False
    """Whether to open the web page in a browser once the models are loaded."""


def serve(plan: ServerSettings) -> None:
    """Run a server until it receives SIGTERM or Ctrl-C, and then finish the open requests.

    Args:
        plan: The settings.

    Raises:
        ConfigError: If the key file is invalid, or the server cannot bind to the address.
        BertkitError: If a model cannot be loaded.
    """
    keys = read_keys(plan.keys)
    listener = _listen(plan.host, plan.port)
    host = f"[{plan.host}]" if ":" in plan.host else plan.host
    address = f"http://{host}:{listener.getsockname()[1]}"
    if not keys and plan.host not in LOOPBACK:
        say(
            f"warning: the server has no API keys, so everyone who reaches {address} can use it; "
            f"set --keys or the environment variable {KEY_VARIABLE}"
        )
    connections = raise_file_limit()
    settings: dict[str, Any] = {
        "workers": plan.workers,
        "http": partial(Connection, limit=connections),
        # asyncio can accept this many connections at once, before any of them is closed. Their
        # number must not exceed the limit on open files.
        "backlog": connections // 6,
        "log_config": None,
        "access_log": False,
        "proxy_headers": False,
        "server_header": False,
        "date_header": False,
        "ws": "none",
        # Load balancers keep idle connections open for a minute, so keep them open longer.
        "timeout_keep_alive": 75,
        "timeout_graceful_shutdown": int(plan.limits.timeout) + 5,
        "timeout_worker_healthcheck": LOADING_SECONDS,
    }
    if plan.workers > 1:
        make = partial(loaded_app, plan, address)
        # Listen before the workers start, because each prints the address just before it accepts
        # connections.
        listener.listen()
        workers = Workers(uvicorn.Config(make, factory=True, **settings), [listener])
        with TemporaryDirectory(prefix="bertkit-") as counts:
            os.environ[WORKERS_VARIABLE] = counts
            workers.run()
            del os.environ[WORKERS_VARIABLE]
        if any(worker.exitcode == STARTUP_FAILURE for worker in workers.processes):
            raise ServeError("a worker process could not load its models; see the message above")
        return
    admission, batcher = _create_admission(plan)
    process = Process(uvicorn.Config(admission, **settings), admission)
    errors: list[Exception] = []

    def load() -> None:
        try:
            _load_models(admission, batcher, plan, address)
        except Exception as error:
            errors.append(error)
            process.should_exit = True

    threading.Thread(target=load, name="loading", daemon=True).start()
    # After the last response, uvicorn raises the signal that it caught again, so ignore it.
    signal.signal(signal.SIGTERM, lambda *_: None)
    # Under nohup, SIGHUP is ignored and must stay so.
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, process.handle_exit)
    process.run([listener])
    batcher.close()
    if errors:
        raise errors[0]


class Process(uvicorn.Server):
    """A server process that rejects new requests while it stops."""

    def __init__(self, config: uvicorn.Config, admission: AdmissionMiddleware) -> None:
        super().__init__(config)
        self.admission = admission

    def handle_exit(self, sig: int, frame: Any) -> None:
        self.admission.draining = True
        super().handle_exit(sig, frame)


class Workers(Multiprocess):
    """The worker processes of a server.

    SIGHUP replaces them one by one. If the signal was sent because the terminal closed, it stops
    them instead.
    """

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket]) -> None:
        super().__init__(config, sockets)
        self.in_terminal = sys.stderr.isatty()

    def handle_hup(self) -> None:
        if self.in_terminal and not sys.stderr.isatty():
            self.should_exit.set()
        else:
            super().handle_hup()


def loaded_app(plan: ServerSettings, address: str) -> AdmissionMiddleware:
    """Load the models in a worker process, and return the worker's application.

    Args:
        plan: The settings.
        address: Address of the server, for messages.
    """
    # A closing terminal sends SIGHUP to all processes. Ignore it here, because the parent stops the
    # workers.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    admission, batcher = _create_admission(plan)
    try:
        _load_models(admission, batcher, plan, address)
    except BertkitError as error:
        say(f"bertkit: {error}")
        sys.exit(STARTUP_FAILURE)
    return admission


def _create_admission(plan: ServerSettings) -> tuple[AdmissionMiddleware, Batcher]:
    limits, metrics = plan.limits, Metrics()
    batcher = Batcher(
        queue_tokens=limits.queue_tokens, batch_tokens=limits.batch_tokens, metrics=metrics
    )
    keys = read_keys(plan.keys)
    hosts = LOOPBACK if not keys and plan.host in LOOPBACK else None
    return AdmissionMiddleware(limits=limits, keys=keys, metrics=metrics, hosts=hosts), batcher


def _load_models(
    admission: AdmissionMiddleware, batcher: Batcher, plan: ServerSettings, address: str
) -> None:
    for folder in find_runs(plan.runs):
        read_run(folder)
    sys.setswitchinterval(SWITCH_SECONDS)
    # Divide the cores among the workers before models are loaded, because models then use at most
    # their share.
    share_cores(plan.workers)
    if plan.workers > 1:
        torch.set_num_threads(own_cores())
    registry = ModelRegistry(plan.models, plan.store, plan.precision, plan.tasks, plan.device)
    install_app(admission, registry, batcher, plan.runs)
    say(f"{', '.join([*registry.models, *map(str, plan.runs)])}: served at {address}")
    if plan.browser:
        webbrowser.open(address)


def _listen(host: str, port: int) -> socket.socket:
    """Create a socket that is bound to an address.

    Raises:
        ConfigError: If the address is not available.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with ExitStack() as closing:
            listener = closing.enter_context(socket.socket(family, socket.SOCK_STREAM))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            closing.pop_all()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"{host}:{port}: cannot listen on this address ({error}); use another --port or --host"
        ) from None
    listener.set_inheritable(True)
    return listener
