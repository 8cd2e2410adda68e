"""The models of a server, each with the pipelines that its folder allows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from bertkit.checkpoint.formats import FORMATS, LoadSettings
from bertkit.errors import ConfigError
from bertkit.extensions.serving.served import ServedModel
from bertkit.memory import freeze_objects
from bertkit.nn.precision import Inference
from bertkit.pipelines import Pipeline, inference_device
from bertkit.storage import distinct_names
from bertkit.tasks import Task, find
from bertkit.tasks.task import full_name

TaskClass = type[Task[Any, Any]]


def name_and_folder(model: str) -> tuple[str | None, str]:
    """NAME=FOLDER in its two parts; a path that is there has no name, whatever signs it holds.

    Raises: ConfigError where one of the two is empty.
    """
    name, equals, folder = model.partition("=")
    if not equals or Path(model).exists():
        return None, model
    if not name or not folder:
        raise ConfigError(f"{model}: half of a name and a folder; write NAME=FOLDER")
    return name, folder


class ModelRegistry:
    """All models of a server, and its store.

    `models` are folders, each as it is or as NAME=FOLDER.
    Raises: ConfigError for two of one name; what opening them raises.
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
        given = list(map(name_and_folder, models))
        usual = iter(distinct_names([Path(folder) for name, folder in given if name is None]))
        usually, tuned = torch.get_num_threads(), list[int]()
        for name, folder in given:
            name = next(usual) if name is None else name
            if name in self.models:
                todo = "name each model once, or give it another name: NAME=FOLDER"
                raise ConfigError(f"{folder}: {name!r} is named twice; {todo}")
            self.models[name] = self._open(folder, name)
            tuned.append(torch.get_num_threads())
            torch.set_num_threads(usually)
        self.search = None
        if store is not None:
            settings = LoadSettings(precision, self.device)
            self.search = FORMATS["store"](store).load_pipelines(settings).pipelines["search"]
            tuned.append(torch.get_num_threads())
        # all share torch's, and each may be tuned to others
        torch.set_num_threads(max(tuned, default=usually))
        self.opening = asyncio.Lock()
        self.reloads: dict[str, asyncio.Future[None]] = {}
        """The waiting reload of each model, which later requests join."""
        self.routed: frozenset[str] = frozenset()
        """Names of the pipelines that the current application has routes for."""
        freeze_objects()

    def abilities(self) -> dict[str, Pipeline]:
        """Return the pipelines by name, each of the first model that supports it."""
        pipelines = {} if self.search is None else {"search": self.search}
        for model in self.models.values():
            pipelines = {**model.pipelines, **pipelines}
        return pipelines

    def supporting(self, ability: str) -> Mapping[str, Pipeline]:
        """Return the models with a pipeline, in the order given: the pipelines by model name."""
        pipelines = {
            name: one.pipelines[ability]
            for name, one in self.models.items()
            if ability in one.pipelines
        }
        if ability == "search" and self.search is not None:
            pipelines["store"] = self.search
        return pipelines

    def _open(self, folder: str, name: str) -> ServedModel:
        return ServedModel(folder, self.precision, self.trusted, name, self.device)

    def reload(self, name: str) -> None:
        """Open a model directory again; earlier requests keep the old model."""
        threads = torch.get_num_threads()
        try:
            self.models[name] = self._open(self.models[name].folder, name)
        finally:
            torch.set_num_threads(threads)  # as before, whatever this one was tuned to
