"""A model in a server, with its pipelines and a reference embedding for health checks."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from torch import nn

from bertkit.checkpoint.directory import Loaded
from bertkit.checkpoint.formats import LoadSettings, open_format
from bertkit.errors import CheckpointError
from bertkit.extensions.serving import schema
from bertkit.models.surgery import check_heads, read_head
from bertkit.nn.precision import Inference
from bertkit.pipelines import (
    BYTES_PER_NUMBER,
    Embed,
    EmbedTokens,
    FillMask,
    Pipeline,
    TaskPipeline,
    Work,
)
from bertkit.pipelines.supported import SupportedPipelines
from bertkit.tasks import Task
from bertkit.tasks.classify import Classify
from bertkit.tasks.task import Feature
from bertkit.text.long_texts import Long
from bertkit.view.explain import STEPS_BYTES, STRIP_VALUES, WALK_STEPS, explain, read, words_of
from bertkit.view.masked_predictions import MASKED_TOKENS, check_hidden, parse_word_index
from bertkit.view.page_data import Explanation
from bertkit.web import PAGES, ROUTES, Page, Route

WEIGHT_BYTES = 6
"""Number of bytes that an attention weight takes in an explanation: encoded as base64, once in JSON
and once in a web page."""


HIDDEN = ("embed-all", "raw-scores", "tokenize")
"""Pipelines that have a route, but that /info does not list."""


class ServedModel:
    """A model in a server. The model can have any supported format.

    Args:
        folder: Path or hub id of the model.
        precision: Precision of the computation.
        trusted: Custom tasks, by their full name. Their code is executed.
        name: Name of the model. Default: the last component of its path.
        device: Device of the computation. Models that require the CPU ignore it.

    Raises:
        CheckpointError: If the model cannot be loaded, or if a weight is NaN or inf.
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
            check_finite_weights(folder, network)
        self.pipelines = {**model.pipelines, **added_pipelines(model)}
        if model.probe is not None:
            pipeline, works = model.probe
            try:
                self.reference = require_finite(np.stack(list(pipeline.run(works))))[0]
            except ArithmeticError as error:
                raise CheckpointError(f"{folder}: {error}; use another checkpoint") from None

    def about(self) -> schema.ModelInfo:
        """Describe the model for the route /info."""
        hidden = {*HIDDEN, *(name for page in PAGES.values() for name in page.pipelines)}
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

    def tei_type(self) -> dict[str, dict[str, Any]] | None:
        """Return the type of the model in TEI's format, or None if TEI has no such type."""
        embed, labels = self.pipelines.get("embed"), self.supported.labels
        if isinstance(embed, Embed):
            return {"embedding": {"pooling": embed.pooling.mode}}
        if "sparse-embedding" in self.pipelines:
            return {"embedding": {"pooling": "splade"}}
        kind = "reranker" if "rerank" in self.pipelines and len(labels) < 2 else "classifier"
        if kind == "classifier" and "predict" not in self.pipelines:
            return None
        ids = {str(index): label for index, label in enumerate(labels)}
        return {kind: {"id2label": ids, "label2id": {ids[i]: int(i) for i in ids}}}

    def is_unchanged(self, vector: NDArray[np.float32]) -> bool:
        """Return whether the probe text still has the same embedding as when the model was loaded.

        Args:
            vector: Embedding of the probe text, computed now.

        Shapes:
            vector: (D,).
        """
        distance = float(np.abs(vector - self.reference).max())
        # Allow small differences, because rounding in bf16 depends on the shape of the batch.
        return distance <= 0.02 * float(np.abs(self.reference).max())


def added_pipelines(model: SupportedPipelines) -> dict[str, Pipeline]:
    """Build the pipelines that routes and pages add to a model's own pipelines.

    Args:
        model: The model's own pipelines.
    """
    additions: list[Route | type[Page]] = [*ROUTES.values(), *PAGES.values()]
    built = {
        name: build(model) for addition in additions for name, build in addition.pipelines.items()
    }
    return {name: pipeline for name, pipeline in built.items() if pipeline is not None}


class EmbedAll(Embed):
    """A pipeline that computes the last hidden states of all tokens, and encodes them as JSON."""

    def prepare(
        self, texts: Sequence[str], *, long: Long = "error", prompt: str | None = None
    ) -> list[Work]:
        """Encode texts; see `Embed`."""
        size = BYTES_PER_NUMBER * self.loaded.model.config.hidden
        works = super().prepare(texts, long=long, prompt=prompt)
        return [replace(work, item=-1, answer_bytes=size * work.tokens) for work in works]

    def run(self, works: Sequence[Work]) -> list[msgspec.Raw]:  # type: ignore[override]
        """Return the hidden states of each text."""
        states = [tokens.embeddings for tokens in EmbedTokens(self.loaded, self.engine).run(works)]
        require_finite(np.concatenate(states))
        return [msgspec.Raw(msgspec.json.encode(rows.tolist())) for rows in states]


def embed_all_pipeline(model: SupportedPipelines) -> EmbedAll | None:
    """Build the pipeline for hidden states, or return None if the model has no embeddings.

    Args:
        model: The model's own pipelines.
    """
    embed = model.pipelines.get("embed")
    if model.frozen is None or not isinstance(embed, Embed):
        return None
    return EmbedAll(embed.loaded, embed.engine)


def raw_scores_pipeline(model: SupportedPipelines) -> TaskPipeline[Any] | None:
    """Build the pipeline for the logits of a classifier, or return None for other models.

    Args:
        model: The model's own pipelines.
    """
    pipeline = model.pipelines.get("predict")
    task = getattr(pipeline, "task", None)
    if not isinstance(pipeline, TaskPipeline) or not isinstance(task, Classify):
        return None
    # With the options of a regression, the task returns the unchanged outputs of its head.
    options = msgspec.structs.replace(task.options, regression=True, multi_label=False)
    raw = TaskPipeline(type(task)(task.labels, options), pipeline.loaded, pipeline.engine)
    # Remove the example, because servers add a route and a form for each pipeline that has one.
    raw.example = None
    return raw


def explain_pipeline(model: SupportedPipelines) -> ExplainPipeline | None:
    """Build the pipeline for explanations, or return None if the model is not a Transformer.

    Args:
        model: The model's own pipelines.
    """
    if model.frozen is None or model.embed is None:
        return None
    fill = model.pipelines.get("fill-mask")
    return ExplainPipeline(model.embed.loaded, fill if isinstance(fill, FillMask) else None)


class ExplainPipeline:
    """A pipeline that returns what a model computes internally for texts or pairs.

    Each explanation states whether its text was truncated.

    Args:
        loaded: The model.
        fill: Pipeline that predicts masked tokens, if the model supports it.
    """

    policies: tuple[Long, ...] = ("error", "truncate")

    def __init__(self, loaded: Loaded, fill: FillMask | None) -> None:
        self.loaded, self.fill = loaded, fill

    def prepare(
        self, items: Sequence[tuple[str, str | None, Sequence[str], Sequence[str]]], *, long: Long
    ) -> list[Work]:
        """Return one unit of work per item, to pass to `run`.

        Args:
            items: For each item, a text, a second text or None, the heads to switch off as
                LAYER.HEAD, and the indices of the words to mask.
            long: What to do with texts that are too long.

        Raises:
            ConfigError: If a head or word does not exist.
            DataError: If a text is too long or cannot be explained.
        """
        works = []
        for text, pair, off, hide in items:
            encoding = read(self.loaded, text, pair, long="truncate")
            heads = [read_head(name) for name in off]
            if heads:
                check_heads(self.loaded.model, heads)
            hidden = [parse_word_index(name) for name in hide]
            texts = [text] if pair is None else [text, pair]
            check_hidden(self.fill, words_of(encoding, texts), hidden)
            tokens = len(encoding)
            copies = min(tokens, MASKED_TOKENS // tokens) if self.fill else 0
            copies += bool(heads) + bool(hidden)
            shape = self.loaded.model.config
            size = WEIGHT_BYTES * shape.layers * (shape.heads + 3) * tokens**2
            # A value of a state or layer step takes twice the bytes of an attention weight. The
            # total size of these values is limited.
            values = shape.layers * tokens * (4 * shape.hidden + WALK_STEPS * STRIP_VALUES)
            size += 2 * WEIGHT_BYTES * min(values, STEPS_BYTES // 2)
            works.append(
                Work([Feature(encoding, 0)], (text, pair, heads, hidden), tokens * copies, size)
            )
        return works

    def run(self, works: Sequence[Work]) -> list[Explanation]:
        """Return an explanation for each item."""
        return [self._explain(work) for work in works]

    def steps(self, works: Sequence[Work]) -> Generator[int, None, list[Explanation]]:
        """Do the same as `run`, but yield 1 before each explanation is computed."""
        explanations = []
        for work in works:
            yield 1
            explanations.append(self._explain(work))
        return explanations

    def _explain(self, work: Work) -> Explanation:
        text, pair, off, hide = work.item
        return explain(self.loaded, text, pair, off=off, hide=hide, long="truncate", fill=self.fill)


def check_finite_weights(folder: str, model: nn.Module) -> None:
    """Check that all weights of a model are finite.

    Args:
        folder: Path or hub id of the model, for messages.
        model: The model.

    Raises:
        CheckpointError: If a weight is NaN or inf.
    """
    for name, weight in model.named_parameters():
        if not weight.isfinite().all():
            raise CheckpointError(f"{folder}: {name} contains NaN or inf; use another checkpoint")


def require_finite(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Check that embeddings are finite and not zero, and return them unchanged.

    Args:
        vectors: The embeddings.

    Raises:
        ArithmeticError: If an embedding is zero, or contains NaN or inf.

    Shapes:
        vectors: (S, D).
    """
    if not np.isfinite(vectors).all() or not vectors.any(1).all():
        raise ArithmeticError("the model computed an embedding that is zero, NaN or inf")
    return vectors
