"""The command that serves models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from bertkit.commands.command import Own, command
from bertkit.config import Count
from bertkit.errors import ConfigError
from bertkit.nn.precision import Inference
from bertkit.serve.limits import KEY, Limits

Port = Annotated[int, Meta(ge=0, le=65535)]


def _serve(models: list[str] | None = None, /, **plan: Any) -> None:
    try:
        from bertkit.serve.run import Plan
        from bertkit.serve.run import serve as run
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"serving needs {error.name}, which is not installed: pip install 'bertkit[serve]'"
        ) from None
    plan["runs"], plan["tasks"] = plan.pop("run"), plan.pop("task")
    if not models and not plan["runs"]:
        raise ConfigError("nothing to serve; name the folder of a model, or of a run (--run)")
    run(Plan(models=models or [], **plan))


MODELS: Own = {"models": (list[str] | None, "Model folders or hub ids.", None)}

RUNS: Own = {
    "run": (list[Path], "A folder in which something learns, or has; its curves are shown.", []),
    "task": (list[str], "A task of your own, as module:Class, whose code may run.", []),
}


def _view(models: list[str] | None = None, /, **plan: Any) -> None:
    _serve(models, browser=True, **plan)


view = command(
    _view,
    "Look into models in the browser: write a text, and see what they do with it.",
    {
        **RUNS,
        "port": (Port, "0 takes any that is free.", 0),
        "precision": (Inference, "Of the numbers the models compute with.", "fp32"),
    },
    positional=MODELS,
)

serve = command(
    _serve,
    "Serve models over HTTP: what their folders hold decides what they can be asked.",
    {
        **RUNS,
        "store": (str | None, "A store of passages, for /search.", None),
        "host": (str, "The address to listen at; loopback alone by default.", "127.0.0.1"),
        "port": (Port, "0 takes any that is free.", 8000),
        "keys": (
            Path | None,
            f"A TOML file of keys; without it {KEY} of the environment, or none.",
            None,
        ),
        "precision": (Inference, "Of the numbers the models compute with.", "fp32"),
        "workers": (Count, "Processes, each with all models.", 1),
    },
    positional=MODELS,
    limits=Limits,
)
