"""The models of a server, each with the pipelines that its folder allows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bertkit.checkpoint.directory import Loaded, load
from bertkit.checkpoint.elmo import is_elmo
from bertkit.checkpoint.hub import resolve
from bertkit.console import say
from bertkit.engine.engine import Engine
from bertkit.errors import CheckpointError, ConfigError, TokenizerError
from bertkit.extensions.classic.frozen_words import FrozenEncoder, is_vectors
from bertkit.extensions.classic.gap_view import NextTokenPipeline
from bertkit.extensions.generation.alignment import attends
from bertkit.extensions.generation.beam import finish
from bertkit.extensions.generation.chat_format import ChatFormat
from bertkit.extensions.generation.decode_view import DecodePipeline
from bertkit.extensions.generation.pipeline import Generate
from bertkit.extensions.generation.summarize import WriteSummaries
from bertkit.extensions.search.searcher import Searcher
from bertkit.extensions.search.store import Hit, conditions
from bertkit.extensions.serving import schema
from bertkit.extensions.serving.served import (
    PROBE,
    ServedBase,
    ServedElmo,
    ServedVectors,
    refuse_damaged,
)
from bertkit.extensions.serving.views.contexts import ContextsPipeline
from bertkit.extensions.serving.views.distance import DistancePipeline
from bertkit.extensions.serving.views.growing_sentence import GrowingPipeline
from bertkit.memory import freeze_objects
from bertkit.models.surgery import check_heads, read_head
from bertkit.nn.precision import Inference
from bertkit.pipelines import (
    Embed,
    FillMask,
    NextSentence,
    Pipeline,
    Rerank,
    TaskPipeline,
    Work,
    answering,
    inference_device,
    open_engine,
)
from bertkit.storage import distinct_names
from bertkit.tasks import TASKS, Task, find, name_in
from bertkit.tasks.task import Feature
from bertkit.text.long_texts import Long
from bertkit.view.explain import STEPS_BYTES, STRIP_VALUES, WALK_STEPS, explain, read, words_of
from bertkit.view.masked_predictions import MASKED_TOKENS, check_hidden, read_place
from bertkit.view.page_data import Explanation

TaskClass = type[Task[Any, Any]]

WEIGHT_BYTES = 6
"""Bytes of a weight of attention in an explanation: as base64, in JSON and in a page."""


class ServedModel(ServedBase):
    """A folder with a tokenizer, and its pipelines on one engine.

    `trusted` are tasks from outside the package whose code may run, by their full names. The model
    computes on `device`; one that writes, and pages that look into one, on the CPU.
    Raises: CheckpointError for a folder that does not open.
    """

    def __init__(
        self,
        folder: str,
        precision: Inference,
        trusted: Mapping[str, TaskClass] = {},
        name: str | None = None,
        device: str = "cpu",
    ) -> None:
        super().__init__(folder, name)
        self.loaded = loaded = load(folder)
        refuse_damaged(folder, loaded.model)
        task = name_in(loaded.settings, loaded.model.heads)
        if task is not None and ":" in task and task not in trusted:
            raise CheckpointError(
                f"{folder}: made for the task {task}, whose code is not bertkit's and does not run "
                f"in a server; if you trust it, name it: --task {task}"
            )
        kind = trusted.get(task or "") or (find(task) if task and task in TASKS else None)
        writes = "lm" in loaded.model.heads
        if writes and device != "cpu":
            say(f"{self.name}: computes on the CPU, as models that write do here")
            device = "cpu"
        if kind is not None and kind.route:
            answer = answering(loaded, kind, precision=precision, device=device)
            self.pipelines[kind.route.strip("/")], runs = answer, answer.engine
        else:
            runs = open_engine(loaded, precision, device=device)
        self.embed = Embed(loaded, runs, normalize=False)  # each request says
        if loaded.pooling is not None or (task is None and not writes):
            self.pipelines["embed"] = self.embed
            self.pipelines["growing"] = GrowingPipeline(self.embed, None)
        if writes:
            writer = Generate(loaded, runs)
            self.pipelines["translate" if writer.reads else "write"] = writer
            decoder = loaded.model.decoder
            if decoder is not None and attends(decoder):
                self.pipelines["decode"] = DecodePipeline(writer)
            if decoder is not None and loaded.model.config.recurrent is not None:
                self.pipelines["growing"] = GrowingPipeline(self.embed, writer)
            if decoder is None:
                self.pipelines["next-token"] = NextTokenPipeline(writer)
            if writer.reads and loaded.family.name not in ("marian", "lstm"):  # which translate
                self.pipelines["summarize"] = WriteSummaries(loaded, runs)
            if not writer.reads and (task in ("chat", "dpo") or converses(loaded)):
                self.pipelines["chat"] = writer
        self._offer("fill-mask", FillMask, runs)
        self._offer("next-sentence", NextSentence, runs)
        if task in ("respond", "choose", "classify"):
            self._offer("rerank", Rerank, runs)
        self.pipelines["tokenize"] = self.embed  # its tokenizer answers
        self.pipelines["distance"] = DistancePipeline(loaded)
        fill = self.pipelines.get("fill-mask")
        assert fill is None or isinstance(fill, FillMask)
        layered = loaded.model.config.recurrent is None  # into LSTMs nobody can look
        if layered and (not writes or loaded.model.decoder is None):
            self.pipelines["contexts"] = ContextsPipeline(self.name, FrozenEncoder(loaded, runs))
            self.pipelines["explain"] = ExplainPipeline(loaded, fill)
        self.know(self.embed, self.embed.prepare([PROBE], long="truncate"))

    def about(self) -> schema.ModelInfo:
        engine = self.embed.engine
        return schema.ModelInfo(
            name=self.name,
            family=self.loaded.family.name,
            answers=self.answers,
            labels=list(self.loaded.labels),
            length=self.loaded.length,
            dimension=self.embed.dimension,
            precision="int8" if engine.integers else str(engine.dtype).removeprefix("torch."),
            prompts=list(self.embed.prompt.prompts.named),
        )

    def _offer(self, name: str, kind: Callable[[Loaded, Engine], Pipeline], engine: Engine) -> None:
        try:
            self.pipelines[name] = kind(self.loaded, engine)
        except CheckpointError:  # it says what the folder lacks
            return


def converses(loaded: Loaded) -> bool:
    """Whether the vocabulary has a way to write conversations."""
    try:
        return ChatFormat(loaded.tokenizer).kind != "plain"
    except TokenizerError:  # a template of another kind
        return False


def open_model(
    folder: str,
    precision: Inference,
    trusted: Mapping[str, TaskClass] = {},
    name: str | None = None,
    device: str = "cpu",
) -> ServedBase:
    """A model folder, the folder of an ELMo or a file of word vectors, called by the last part of
    its path if no other name is given. The first computes on `device`, the others on the CPU.

    Raises: CheckpointError, or DataError of word vectors, for one that does not open.
    """
    if is_vectors(folder):
        return ServedVectors(folder, name)
    place = resolve(folder)
    if is_elmo(place):
        return ServedElmo(folder, name)
    return ServedModel(folder, precision, trusted, name, device)


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


class ExplainPipeline:
    """A pipeline of explanations: texts or pairs -> what the model computes.

    An explanation says whether its text was cut.
    """

    policies: tuple[Long, ...] = ("error", "truncate")

    def __init__(self, loaded: Loaded, fill: FillMask | None) -> None:
        self.loaded, self.fill = loaded, fill

    def prepare(
        self,
        items: Sequence[tuple[str, str | None, Sequence[str], Sequence[str]]],
        *,
        long: Long,
    ) -> list[Work]:
        """Of texts with heads that are off and words that are hidden.

        Raises: DataError for a text that cannot be shown, ConfigError for what is no head or word.
        """
        works = []
        for text, pair, off, hide in items:
            encoding = read(self.loaded, text, pair, long="truncate")
            heads = [read_head(name) for name in off]
            if heads:
                check_heads(self.loaded.model, heads)
            hidden = [read_place(name) for name in hide]
            texts = [text] if pair is None else [text, pair]
            check_hidden(self.fill, words_of(encoding, texts), hidden)
            tokens = len(encoding)
            copies = min(tokens, MASKED_TOKENS // tokens) if self.fill else 0
            copies += bool(heads) + bool(hidden)
            shape = self.loaded.model.config
            size = WEIGHT_BYTES * shape.layers * (shape.heads + 3) * tokens**2
            # states and steps of layers have twice a weight's bytes; none above a bound
            numbers = shape.layers * tokens * (4 * shape.hidden + WALK_STEPS * STRIP_VALUES)
            size += 2 * WEIGHT_BYTES * min(numbers, STEPS_BYTES // 2)
            works.append(
                Work([Feature(encoding, 0)], (text, pair, heads, hidden), tokens * copies, size)
            )
        return works

    def run(self, works: Sequence[Work]) -> list[Explanation]:
        """What the model does with each."""
        return finish(self.steps(works))

    def steps(self, works: Sequence[Work]) -> Generator[int, None, list[Explanation]]:
        """Run like `run`. Yields: 1 after each."""
        answers: list[Explanation] = []
        for text, pair, off, hide in (work.item for work in works):
            yield 1
            answers.append(
                explain(
                    self.loaded, text, pair, off=off, hide=hide, long="truncate", fill=self.fill
                )
            )
        return answers


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
        self.models: dict[str, ServedBase] = {}
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

    def _open(self, folder: str, name: str) -> ServedBase:
        return open_model(folder, self.precision, self.trusted, name, self.device)

    def reload(self, name: str) -> None:
        """Open a model directory again; earlier requests keep the old model."""
        threads = torch.get_num_threads()
        try:
            self.models[name] = self._open(self.models[name].folder, name)
        finally:
            torch.set_num_threads(threads)  # as before, whatever this one was tuned to
