"""The models of a server, with the pipelines that each supports."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from bertkit.checkpoint.formats import FORMATS, LoadSettings
from bertkit.errors import ConfigError
from bertkit.extensions.serving.served import ServedModel
from bertkit.nn.precision import Inference
from bertkit.pipelines import Pipeline, inference_device
from bertkit.storage import distinct_names
from bertkit.tasks import Task, find
from bertkit.tasks.task import full_name

TaskClass = type[Task[Any, Any]]


def name_and_folder(model: str) -> tuple[str | None, str]:
    """Split NAME=MODEL into name and model. If the text is an existing path, it is not split.

    Args:
        model: NAME=MODEL, or a model directory or hub id.

    Raises:
        ConfigError: If the name or the model is empty.
    """
    name, equals, folder = model.partition("=")
    if not equals or Path(model).exists():
        return None, model
    if not name or not folder:
        raise ConfigError(f"{model}: the name or the model is empty; write NAME=MODEL")
    return name, folder


class ModelRegistry:
    """All models of a server, and the store that it searches.

    Args:
        models: Model directories or hub ids, or NAME=MODEL.
        store: Path or address of the store, if any.
        precision: Precision of the computation.
        tasks: Custom tasks, as classes or module:Class. Their code is executed.
        device: Device of the computation.

    Raises:
        BertkitError: If a model cannot be loaded.
        ConfigError: If two models have the same name.
    """

    def __init__(
        self,
        models: Iterable[str],
        store: str | None,
        precision: Inference = "fp32",
        tasks: Iterable[str | TaskClass] = (),
        device: str = "cpu",
    ) -> None:
        kinds = [find(task) if isinstance(task, str) else task for task in tasks]
        self.precision, self.trusted = precision, {full_name(kind): kind for kind in kinds}
        self.models: dict[str, ServedModel] = {}
        self.device = inference_device(device, precision)
        named = list(map(name_and_folder, models))
        unnamed = iter(distinct_names([Path(folder) for name, folder in named if name is None]))
        default_threads, threads = torch.get_num_threads(), list[int]()
        for name, folder in named:
            name = next(unnamed) if name is None else name
            if name in self.models:
                remedy = "list each model once, or set another name with NAME=MODEL"
                raise ConfigError(f"{folder}: model {name!r} is listed twice; {remedy}")
            self.models[name] = self._load(folder, name)
            threads.append(torch.get_num_threads())
            torch.set_num_threads(default_threads)
        self.search = None
        if store is not None:
            settings = LoadSettings(precision, self.device)
            self.search = FORMATS["store"](store).load_pipelines(settings).pipelines["search"]
            threads.append(torch.get_num_threads())
        # All models share torch's threads. Each model may be tuned to a different number, so use
        # the largest.
        torch.set_num_threads(max(threads, default=default_threads))
        self.opening = asyncio.Lock()
        self.reloads: dict[str, asyncio.Future[None]] = {}
        """For each model, a reload that is waiting to start. Later requests share it."""
        self.routed: frozenset[str] = frozenset()
        """Names of the pipelines for which the current application has routes."""
        # Checking the existing objects, such as models and modules, takes the garbage collector 150
        # ms, during which the server answers no request. Objects of a request must not be frozen,
        # because objects that form a reference cycle would never be freed.
        gc.collect()
        gc.freeze()

    def abilities(self) -> dict[str, Pipeline]:
        """Return the supported pipelines by name, each from the first model that supports it."""
        pipelines = {} if self.search is None else {"search": self.search}
        for model in self.models.values():
            pipelines = {**model.pipelines, **pipelines}
        return pipelines

    def supporting(self, ability: str) -> Mapping[str, Pipeline]:
        """Return the pipeline of each model that supports it, by the name of the model.

        Args:
            ability: Name of the pipeline.
        """
        pipelines = {
            name: model.pipelines[ability]
            for name, model in self.models.items()
            if ability in model.pipelines
        }
        if ability == "search" and self.search is not None:
            pipelines["store"] = self.search
        return pipelines

    def _load(self, folder: str, name: str) -> ServedModel:
        return ServedModel(folder, self.precision, self.trusted, name, self.device)

    def reload(self, name: str) -> None:
        """Load a model again from its directory. Earlier requests still use the old model.

        Args:
            name: Name of the model.
        """
        threads = torch.get_num_threads()
        try:
            self.models[name] = self._load(self.models[name].folder, name)
        finally:
            # The new model may be tuned to a different number of threads.
            torch.set_num_threads(threads)
