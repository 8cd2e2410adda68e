"""A model of a server: its pipelines, its pages, and a vector that must not change."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from bertkit.checkpoint.directory import Loaded
from bertkit.checkpoint.formats import LoadSettings, open_format
from bertkit.errors import CheckpointError, TokenizerError
from bertkit.extensions.classic.gap_view import NextTokenPipeline
from bertkit.extensions.generation.alignment import attends
from bertkit.extensions.generation.beam import finish
from bertkit.extensions.generation.chat_format import ChatFormat
from bertkit.extensions.generation.decode_view import DecodePipeline
from bertkit.extensions.generation.pipeline import Generate
from bertkit.extensions.serving import schema
from bertkit.extensions.serving.views.contexts import ContextsPipeline
from bertkit.extensions.serving.views.distance import DistancePipeline
from bertkit.extensions.serving.views.growing_sentence import GrowingPipeline
from bertkit.models.surgery import check_heads, read_head
from bertkit.nn.precision import Inference
from bertkit.pipelines import Embed, FillMask, Pipeline, Work
from bertkit.pipelines.supported import SupportedPipelines
from bertkit.tasks import Task, name_in
from bertkit.tasks.task import Feature
from bertkit.text.long_texts import Long
from bertkit.view.explain import STEPS_BYTES, STRIP_VALUES, WALK_STEPS, explain, read, words_of
from bertkit.view.masked_predictions import MASKED_TOKENS, check_hidden, read_place
from bertkit.view.page_data import Explanation

PAGES = {"tokenize", "decode", "next-token", "fill-gap", "growing", "distance"}
"""Pipelines that only pages use, or that every model has."""

WEIGHT_BYTES = 6
"""Bytes of a weight of attention in an explanation: as base64, in JSON and in a page."""


class ServedModel:
    """A model of any format with its pipelines by ability.

    Args:
        folder: Path or hub id of the model.
        precision: Precision of the computation.
        trusted: Tasks from outside the package whose code may run, by their full names.
        name: Name of the model. Default: the last part of its path.
        device: Device of the computation, if the model does not require the CPU.

    Raises:
        CheckpointError: If the model does not load, or has weights that are not finite.
    """

    def __init__(
        self,
        folder: str,
        precision: Inference = "fp32",
        trusted: Mapping[str, type[Task[Any, Any]]] = {},
        name: str | None = None,
        device: str = "cpu",
    ) -> None:
        self.folder, self.name = folder, name or Path(folder).name or folder
        settings = LoadSettings(precision, device, trusted=trusted)
        self.supported = model = open_format(folder).load_pipelines(settings)
        for network in model.networks:
            refuse_damaged(folder, network)
        self.pipelines = {**model.pipelines, **page_pipelines(self.name, model)}
        if model.probe is not None:
            pipeline, works = model.probe
            try:
                self.known = require_finite(np.stack(list(pipeline.run(works))))[0]
            except ArithmeticError as error:
                raise CheckpointError(f"{folder}: {error}; take another checkpoint") from None

    def about(self) -> schema.ModelInfo:
        """Return the description of the model in `/info`."""
        return schema.ModelInfo(
            name=self.name,
            family=self.supported.family,
            answers=[name for name in self.pipelines if name not in PAGES],
            labels=list(self.supported.labels),
            length=self.supported.length,
            dimension=self.supported.dimension,
            precision=self.supported.precision,
            prompts=list(self.supported.prompts),
        )

    def well(self, vector: NDArray[np.float32]) -> bool:
        """Whether a vector of the probe is the vector from when the model was loaded."""
        distance = float(np.abs(vector - self.known).max())
        # bf16 rounds by the batch's shape
        return distance <= 0.02 * float(np.abs(self.known).max())


def page_pipelines(name: str, model: SupportedPipelines) -> dict[str, Pipeline]:
    """Return the pipelines of the pages that show a model."""
    pages: dict[str, Pipeline] = {}
    if model.embed is not None:
        pages |= transformer_pages(model.embed, model.pipelines)
    if model.frozen is not None:
        pages["contexts"] = ContextsPipeline(name, model.frozen)
    if model.frozen is not None and model.embed is not None:
        fill = model.pipelines.get("fill-mask")
        fill = fill if isinstance(fill, FillMask) else None
        pages["explain"] = ExplainPipeline(model.embed.loaded, fill)
    return pages


def transformer_pages(embed: Embed, pipelines: Mapping[str, Pipeline]) -> dict[str, Pipeline]:
    """Return the pipelines of the pages that show a Transformer or an LSTM."""
    loaded, decoder = embed.loaded, embed.loaded.model.decoder
    pages: dict[str, Pipeline] = {"tokenize": embed, "distance": DistancePipeline(loaded)}
    if "embed" in pipelines:
        pages["growing"] = GrowingPipeline(embed, None)
    writer = pipelines.get("write", pipelines.get("translate"))
    if not isinstance(writer, Generate):
        return pages
    if decoder is None:
        pages["next-token"] = NextTokenPipeline(writer)
    elif attends(decoder):
        pages["decode"] = DecodePipeline(writer)
    if decoder is not None and loaded.model.config.recurrent is not None:
        pages["growing"] = GrowingPipeline(embed, writer)
    task = name_in(loaded.settings, loaded.model.heads)
    if not writer.reads and (task in ("chat", "dpo") or converses(loaded)):
        pages["chat"] = writer
    return pages


def converses(loaded: Loaded) -> bool:
    """Whether the vocabulary has a way to write conversations."""
    try:
        return ChatFormat(loaded.tokenizer).kind != "plain"
    except TokenizerError:  # a template of another kind
        return False


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


def refuse_damaged(folder: str, model: nn.Module) -> None:
    """Raises: CheckpointError for weights that are not finite."""
    for name, weight in model.named_parameters():
        if not weight.isfinite().all():
            raise CheckpointError(
                f"{folder}: {name} has numbers that are none (nan or inf); take another checkpoint"
            )


def require_finite(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """The same. Raises: ArithmeticError for one that is not finite, or zero."""
    if not np.isfinite(vectors).all() or not vectors.any(1).all():
        raise ArithmeticError("the model gives a vector that is not finite, or zero")
    return vectors
