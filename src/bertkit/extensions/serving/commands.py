"""Commands `serve` and `view`."""

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
        models: Model directories or hub ids, ELMo directories, or files of word vectors. The server
            exposes the routes that each model supports. NAME=MODEL sets the name of a model.
        runs: Directory of a training run; the web page shows its curves.
        tasks: Custom task, as module:Class. Its code is executed.
        store: Store of passages, for the route /search.
        host: Address to bind to. Default: 127.0.0.1 (local connections only).
        port: Port. 0 selects a free port.
        keys: TOML file of API keys, in addition to the key in the environment variable BERTKIT_KEY.
            Default: without any key, requests need none.
        precision: Precision of the computation.
        device: Device, such as cpu or cuda:0. auto selects a GPU if PyTorch finds one, unless the
            precision is int8.
        workers: Number of server processes. Each loads all models.
        limits: Limits of requests and of memory.
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
    """Inspect models and runs in the browser.

    Args:
        models: Model directories or hub ids, ELMo directories, or files of word vectors. For a run
            directory, the page also shows the training curves. For a directory of runs, it shows
            only the curves.
        runs: Directory of a training run, or of several; the page shows their curves.
        tasks: Custom task, as module:Class. Its code is executed.
        port: Port. 0 selects a free port.
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
    try:
        from bertkit.extensions.serving.processes import ServerSettings
        from bertkit.extensions.serving.processes import serve as run
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"serving requires {error.name}, not installed; run pip install 'bertkit[serving]'"
        ) from None
    if not settings["models"] and not settings["runs"]:
        raise ConfigError("no model to serve; pass a model directory, or a run with --run")
    run(ServerSettings(**settings))
