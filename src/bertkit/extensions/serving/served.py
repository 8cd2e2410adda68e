"""What a server holds: a model of any kind, with a name and its pipelines by ability."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

from bertkit.checkpoint.elmo import SOFTMAX
from bertkit.checkpoint.hub import resolve
from bertkit.errors import CheckpointError
from bertkit.extensions.classic.fill_gap import FillGap
from bertkit.extensions.classic.frozen_words import FrozenElmo, FrozenVectors, FrozenWords
from bertkit.extensions.classic.word_pairs import Range
from bertkit.extensions.serving import schema
from bertkit.extensions.serving.views.contexts import ContextsPipeline
from bertkit.pipelines import Pipeline, Work
from bertkit.pipelines.elmo_task import ElmoAnswer, is_elmo_task
from bertkit.pipelines.words import Words
from bertkit.text.long_texts import Long
from bertkit.text.word_vectors import Vectors

PROBE = "A known sentence gives a known vector."

KNOWN = (2, 7)
"""Where a word of it stands."""

LENGTH = 512
"""Words at most of a text that a served ELMo reads; the model itself would read any number."""

PAGES = {"tokenize", "decode", "next-token", "fill-gap", "growing", "distance"}
"""What the pages alone ask for, or any model answers."""


class ServedBase(ABC):
    """A model of a server: its pipelines by ability, and a vector by which it is known."""

    probed: Pipeline
    """What gives that vector."""

    def __init__(self, folder: str, name: str | None = None) -> None:
        self.folder, self.name = folder, name or Path(folder).name or folder
        self.pipelines: dict[str, Pipeline] = {}
        self.probe: Sequence[Work] = ()

    @abstractmethod
    def about(self) -> schema.ModelInfo:
        """What `/info` says of it."""

    def know(self, pipeline: Pipeline, probe: Sequence[Work]) -> None:
        """Keep the vector of a probe. Raises: CheckpointError for one that is not finite."""
        self.probed, self.probe = pipeline, probe
        try:
            self.known = require_finite(np.stack(list(pipeline.run(probe))))[0]
        except ArithmeticError as error:
            raise CheckpointError(f"{self.folder}: {error}; take another checkpoint") from None

    def well(self, vector: NDArray[np.float32]) -> bool:
        """Whether this is the vector that the probe had when the model was opened."""
        distance = float(np.abs(vector - self.known).max())
        # bf16 rounds by the batch's shape
        return distance <= 0.02 * float(np.abs(self.known).max())

    @property
    def answers(self) -> list[str]:
        """What it can be asked over HTTP."""
        return [name for name in self.pipelines if name not in PAGES]


class ServedElmo(ServedBase):
    """The folder of an ELMo, or of a task that was learned on one; it computes in fp32.

    Raises: CheckpointError for a folder that does not open.
    """

    def __init__(self, folder: str, name: str | None = None) -> None:
        super().__init__(folder, name)
        place = resolve(folder)
        self.words = words = Words(place, length=LENGTH)
        refuse_damaged(folder, words.model)
        frozen = FrozenElmo(words)
        self.pipelines["contexts"] = ContextsPipeline(self.name, frozen)
        if (place / SOFTMAX).exists():
            self.pipelines["fill-gap"] = FillGap(place, words)
        self.labels: list[str] = []
        if is_elmo_task(place):
            answer = ElmoAnswer(place, words=words)
            refuse_damaged(folder, answer.engine.model)
            self.pipelines[answer.task.route.strip("/")] = answer
            self.labels = list(answer.task.labels)
        states = StatePipeline(frozen)
        self.know(states, states.prepare([(PROBE, KNOWN)], long="error"))

    def about(self) -> schema.ModelInfo:
        return schema.ModelInfo(
            name=self.name,
            family="elmo",
            answers=self.answers,
            labels=self.labels,
            length=LENGTH,
            dimension=self.words.model.config.hidden,
            precision="fp32",
            prompts=[],
        )


class ServedVectors(ServedBase):
    """A file of word vectors, which are looked up: there is nothing to probe.

    Raises: DataError naming file and line of what is no vector.
    """

    def __init__(self, file: str, name: str | None = None) -> None:
        super().__init__(file, name)
        self.vectors = Vectors.load(file)
        self.probed = ContextsPipeline(self.name, FrozenVectors(self.vectors))
        self.pipelines["contexts"] = self.probed

    def about(self) -> schema.ModelInfo:
        return schema.ModelInfo(
            name=self.name,
            family="vectors",
            answers=self.answers,
            labels=[],
            length=1,
            dimension=self.vectors.table.shape[1],
            precision="fp32",
            prompts=[],
        )


class StatePipeline:
    """A pipeline: texts, each with the place of a word -> the last layer's state of the word."""

    policies: tuple[Long, ...] = ("error",)

    def __init__(self, frozen: FrozenWords) -> None:
        self.frozen = frozen

    def prepare(self, items: Sequence[tuple[str, Range]], *, long: Long) -> list[Work]:
        """Raises: DataError as reading does."""
        texts, ranges = zip(*items, strict=True)
        return [Work([feature]) for feature in self.frozen.read(texts, ranges, long=long)]

    def run(self, works: Sequence[Work]) -> NDArray[np.float32]:
        """Shapes: (S, D)."""
        states: NDArray[np.float32] = self.frozen.states([work.features[0] for work in works])[-1]
        return states


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
