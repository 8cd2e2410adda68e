"""A model of a server: its pipelines, its pages, and a vector that must not change."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from bertkit.checkpoint.directory import Loaded
from bertkit.checkpoint.formats import LoadSettings, open_format
from bertkit.errors import CheckpointError
from bertkit.extensions.serving import schema
from bertkit.models.surgery import check_heads, read_head
from bertkit.nn.precision import Inference
from bertkit.pipelines import FillMask, Pipeline, Work
from bertkit.pipelines.supported import SupportedPipelines
from bertkit.tasks import Task
from bertkit.tasks.task import Feature
from bertkit.text.long_texts import Long
from bertkit.view.explain import STEPS_BYTES, STRIP_VALUES, WALK_STEPS, explain, read, words_of
from bertkit.view.masked_predictions import MASKED_TOKENS, check_hidden, read_place
from bertkit.view.page_data import Explanation
from bertkit.web import PAGES, ROUTES, Page, Route

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
        model: SupportedPipelines = open_format(folder).load_pipelines(settings)
        self.supported = model = replace(model, name=self.name)
        for network in model.networks:
            refuse_damaged(folder, network)
        self.pipelines = {**model.pipelines, **added_pipelines(model)}
        if model.probe is not None:
            pipeline, works = model.probe
            try:
                self.known = require_finite(np.stack(list(pipeline.run(works))))[0]
            except ArithmeticError as error:
                raise CheckpointError(f"{folder}: {error}; take another checkpoint") from None

    def about(self) -> schema.ModelInfo:
        """Return the description of the model in `/info`."""
        hidden = {"tokenize", *(name for page in PAGES.values() for name in page.pipelines)}
        return schema.ModelInfo(
            name=self.name,
            family=self.supported.family,
            answers=[name for name in self.pipelines if name not in hidden],
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


def added_pipelines(model: SupportedPipelines) -> dict[str, Pipeline]:
    """Return the pipelines that routes and pages add to a model."""
    additions: list[Route | type[Page]] = [*ROUTES.values(), *PAGES.values()]
    built = {name: build(model) for one in additions for name, build in one.pipelines.items()}
    return {name: pipeline for name, pipeline in built.items() if pipeline is not None}


def explain_pipeline(model: SupportedPipelines) -> ExplainPipeline | None:
    """Return the pipeline of explanations of a Transformer."""
    if model.frozen is None or model.embed is None:
        return None
    fill = model.pipelines.get("fill-mask")
    return ExplainPipeline(model.embed.loaded, fill if isinstance(fill, FillMask) else None)


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
        """Return an explanation per item."""
        return [self._explain(work) for work in works]

    def steps(self, works: Sequence[Work]) -> Generator[int, None, list[Explanation]]:
        """Run like `run`. Yields: 1 before each explanation."""
        explanations = []
        for work in works:
            yield 1
            explanations.append(self._explain(work))
        return explanations

    def _explain(self, work: Work) -> Explanation:
        text, pair, off, hide = work.item
        return explain(self.loaded, text, pair, off=off, hide=hide, long="truncate", fill=self.fill)


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
