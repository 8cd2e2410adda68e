"""The models of a server, each with the pipelines that its folder allows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bertkit.errors import ConfigError
from bertkit.extensions.generation.summarize import WriteSummaries
from bertkit.extensions.search.searcher import Searcher
from bertkit.extensions.search.store import Hit, conditions
from bertkit.extensions.serving.served import ServedModel
from bertkit.memory import freeze_objects
from bertkit.nn.precision import Inference
from bertkit.pipelines import Embed, Pipeline, TaskPipeline, Work, inference_device
from bertkit.storage import distinct_names
from bertkit.tasks import Task, find
from bertkit.text.long_texts import Long

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


PASSAGES, HIT = 4, 4096
"""Of a document that is found: as many tokens' worth of work, and bytes of memory. A search of the
best thousand takes as long as a whole batch, which it then is."""


def _read(query: str, work: Work) -> str:
    """Of a query the part that the model reads, which is all that is searched for by its words."""
    encoding = work.features[0].encoding
    return query[: int(encoding.offsets[:, 1].max(initial=0))] if encoding.truncated else query


class SearchPipeline:
    """The pipeline of a store: queries with their conditions -> hits."""

    def __init__(self, store: str, precision: Inference, device: str) -> None:
        self.searcher = Searcher(store, precision=precision, device=device)
        embed = self.searcher.embed
        assert isinstance(embed, Embed)  # a store is made with a model
        self.embed, self.policies, self.loaded = embed, embed.policies, embed.loaded

    def prepare(
        self,
        queries: Sequence[str],
        *,
        long: Long,
        top: int = 10,
        where: Sequence[str] = (),
        hybrid: bool = False,
        min_score: float | None = None,
    ) -> list[Work]:
        """They are answered one by one, each at the cost of as many tokens as its passages.

        Raises: ConfigError for a condition on a field that the store has not.
        """
        conditions(where, self.searcher.store.spec.fields)
        options = {"top": top, "where": tuple(where), "hybrid": hybrid, "min_score": min_score}
        works = self.embed.prepare(queries, long=long)
        return [
            replace(
                work,
                item=(_read(query, work), options),
                more=PASSAGES * top,
                answer_bytes=HIT * top,
            )
            for query, work in zip(queries, works, strict=True)
        ]

    def run(self, works: Sequence[Work]) -> list[list[Hit]]:
        """The best documents of each."""
        return [
            self.searcher(query, long="truncate", **options)
            for query, options in (work.item for work in works)
        ]


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
        self.precision, self.trusted = precision, {kind.full_name(): kind for kind in kinds}
        self.models: dict[str, ServedModel] = {}
        self.device = inference_device(device, precision)
        given = list(map(name_and_folder, models))
        usual = iter(distinct_names([Path(folder) for name, folder in given if name is None]))
        usually, tuned = torch.get_num_threads(), list[int]()
        for name, folder in given:
            name = next(usual) if name is None else name
            if name in self.models:
                raise ConfigError(
                    f"{folder}: {name!r} is named twice; name each model once, or give it another "
                    "name: NAME=FOLDER"
                )
            self.models[name] = self._open(folder, name)
            tuned.append(torch.get_num_threads())
            torch.set_num_threads(usually)
        self.search = None
        if store is not None:
            self.search = SearchPipeline(store, precision, self.device)
            tuned.append(torch.get_num_threads())
        # all share torch's, and each may be tuned to others
        torch.set_num_threads(max(tuned, default=usually))
        self.opening = asyncio.Lock()
        self.reloads: dict[str, asyncio.Future[None]] = {}
        """The waiting reload of each model, which later requests join."""
        self.routed: set[str] = set()
        """The abilities that the application of now has routes for."""
        freeze_objects()

    def abilities(self) -> set[str]:
        """Everything that some model, or the store, can do."""
        abilities = {ability for one in self.models.values() for ability in one.pipelines}
        return abilities | ({"search"} if self.search else set())

    def tasks(self) -> dict[str, TaskClass]:
        """The tasks that declare a route, by route."""
        pipelines = [p for one in self.models.values() for p in one.pipelines.values()]
        kinds = [type(p.task) for p in pipelines if isinstance(p, TaskPipeline)]
        kinds += [p.task for p in pipelines if isinstance(p, WriteSummaries)]
        return {kind.route: kind for kind in kinds}

    def supporting(self, ability: str) -> Mapping[str, Pipeline]:
        """The pipelines with an ability, by model name, in the order given."""
        if ability == "search":
            return {} if self.search is None else {"store": self.search}
        return {
            name: one.pipelines[ability]
            for name, one in self.models.items()
            if ability in one.pipelines
        }

    def _open(self, folder: str, name: str) -> ServedModel:
        return ServedModel(folder, self.precision, self.trusted, name, self.device)

    def reload(self, name: str) -> None:
        """Open a model directory again; earlier requests keep the old model."""
        threads = torch.get_num_threads()
        try:
            self.models[name] = self._open(self.models[name].folder, name)
        finally:
            torch.set_num_threads(threads)  # as before, whatever this one was tuned to
