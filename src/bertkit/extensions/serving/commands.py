"""The commands `serve` and `view`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from bertkit.checkpoint.formats import format_of
from bertkit.config import Count
from bertkit.errors import ConfigError
from bertkit.extensions.serving.limits import Limits
from bertkit.nn.precision import Inference
from bertkit.view.runs import contains_runs

Port = Annotated[int, Meta(ge=0, le=65535)]


def serve(
    models: list[str] | None = None,
    /,
    *,
    runs: Sequence[Path] = (),
    tasks: Sequence[str] = (),
    store: str | None = None,
    host: str = "127.0.0.1",
    port: Port = 8000,
    keys: Path | None = None,
    precision: Inference = "fp32",
    device: str = "auto",
    workers: Count = 1,
    limits: Limits | None = None,
) -> None:
    """Serve models over HTTP.

    Args:
        models: Model directories, hub ids, ELMo directories or files of word vectors. To give a
            model another name, pass NAME=MODEL. The server has the routes that its models support.
        runs: Directory of a training run whose curves the web page shows. Repeat the option for
            several runs.
        tasks: Custom task, as module:Class. Its code is executed.
        store: Path or address of a store of documents, which the route /search searches.
        host: Address to listen on. Default: 127.0.0.1, which accepts only connections from this
            machine.
        port: Port to listen on. 0 selects a free port.
        keys: TOML file of API keys, which are accepted in addition to the key in the environment
            variable BERTKIT_KEY. If neither is set, requests need no key.
        precision: Precision of the computation.
        device: Device, such as cpu or cuda:0. auto selects a GPU if PyTorch finds one, unless the
            precision is int8.
        workers: Number of server processes. Each process loads all models.
        limits: Limits on requests and memory.
    """
    _run(
        models=models or [],
        runs=runs,
        tasks=tasks,
        store=store,
        host=host,
        port=port,
        keys=keys,
        precision=precision,
        device=device,
        workers=workers,
        limits=limits or Limits(),
    )


def view(
    models: list[str] | None = None,
    /,
    *,
    runs: Sequence[Path] = (),
    tasks: Sequence[str] = (),
    port: Port = 0,
    precision: Inference = "fp32",
    device: str = "auto",
) -> None:
    """Inspect models and training runs in the browser.

    Args:
        models: Model directories, hub ids, ELMo directories or files of word vectors. If a path is
            the directory of a training run, the page also shows the training curves. If it is a
            directory of several runs, the page shows only their curves.
        runs: Directory of one or several training runs whose curves the page shows.
        tasks: Custom task, as module:Class. Its code is executed.
        port: Port to listen on. 0 selects a free port.
        precision: Precision of the computation.
        device: Device, such as cpu or cuda:0. auto selects a GPU if PyTorch finds one, unless the
            precision is int8.
    """
    runs = [*(Path(path) for path in models or [] if contains_runs(Path(path))), *runs]
    models = [path for path in models or [] if Path(path) not in runs or _is_model(Path(path))]
    _run(
        models=models,
        runs=runs,
        tasks=tasks,
        port=port,
        precision=precision,
        device=device,
        browser=True,
    )


def _is_model(folder: Path) -> bool:
    return format_of(folder) not in (None, "run")


def _run(**settings: Any) -> None:
    # The command line reports a missing package.
    from bertkit.extensions.serving.processes import ServerSettings
    from bertkit.extensions.serving.processes import serve as run

    if not settings["models"] and not settings["runs"]:
        raise ConfigError("there is nothing to serve; pass a model, or a training run with --run")
    run(ServerSettings(**settings))
