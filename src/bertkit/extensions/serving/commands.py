"""The commands that serve models."""

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
from bertkit.view.runs import holds_runs

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
        models: Model folders or hub ids, folders of an ELMo, files of word vectors; what they hold
            decides what they can be asked. NAME=FOLDER gives one a name of your choice.
        runs: A folder in which something learns, or has; its curves are shown.
        tasks: A task of your own, as module:Class, whose code may run.
        store: A store of passages, for /search.
        host: The address to listen at; loopback alone by default.
        port: 0 takes any that is free.
        keys: A TOML file of keys; without it BERTKIT_KEY of the environment, or none.
        precision: Precision of the computation.
        device: auto is the GPU where there is one, and the precision is not int8.
        workers: Processes, each with all models.
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
        models: Model folders or hub ids, folders of an ELMo, files of word vectors. Of the folder
            of a run the curves are shown, too; of a folder of runs the curves alone.
        runs: A folder in which something learns, or has, or a folder of such; its curves are shown.
        tasks: A task of your own, as module:Class, whose code may run.
        port: 0 takes any that is free.
        precision: Precision of the computation.
        device: auto is the GPU where there is one, and the precision is not int8.
    """
    runs = [*(Path(one) for one in models or [] if holds_runs(Path(one))), *runs]
    opened = [one for one in models or [] if Path(one) not in runs or _is_model(Path(one))]
    _run(
        models=opened,
        runs=runs,
        tasks=tasks,
        port=port,
        precision=precision,
        device=device,
        browser=True,
    )


def _is_model(folder: Path) -> bool:
    return format_of(folder) not in (None, "run")


def _run(**plan: Any) -> None:
    try:
        from bertkit.extensions.serving.processes import ServerSettings
        from bertkit.extensions.serving.processes import serve as run
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"serving needs {error.name}, which is not installed: pip install 'bertkit[serving]'"
        ) from None
    if not plan["models"] and not plan["runs"]:
        raise ConfigError("nothing to serve; name the folder of a model, or of a run (--run)")
    run(ServerSettings(**plan))
