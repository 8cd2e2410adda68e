"""Texts to vectors."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.checkpoint.directory import Loaded
from bertkit.data.rows_in_memory import several
from bertkit.engine.engine import Engine
from bertkit.errors import ConfigError
from bertkit.nn.pooling import POOLINGS, Pooling
from bertkit.nn.precision import Inference
from bertkit.pipelines.base import (
    BYTES_PER_NUMBER,
    ModelPipeline,
    Work,
    batched,
    encodings_of,
    works_of,
)
from bertkit.synonyms import check_keywords
from bertkit.tasks.inference import TEXTS_AT_ONCE
from bertkit.text.encoding import Encoding
from bertkit.text.long_texts import Long, averaged, cut, encode
from bertkit.text.prompts import Prompter


class Embed(ModelPipeline):
    """Texts -> float32 vectors (S, D)."""

    policies = ("error", "truncate", "window")

    def __init__(
        self,
        loaded: Loaded,
        engine: Engine | Inference = "fp32",
        pooling: str | None = None,
        *,
        normalize: bool | None = None,
    ) -> None:
        """`pooling` and `normalize` stand in place of what the folder says."""
        super().__init__(loaded, engine)
        chosen = loaded.pooling or Pooling()
        if normalize is not None:
            chosen = replace(chosen, normalize=normalize)
        if pooling is not None and pooling not in POOLINGS:
            raise ConfigError(f"pooling: {pooling!r}; known: {', '.join(POOLINGS)}")
        if pooling is not None:
            chosen = replace(chosen, mode=pooling)  # type: ignore[arg-type]
        if chosen.dense is not None:
            chosen = replace(chosen, dense=copy.deepcopy(chosen.dense).to(self.engine.device))
        self.pooling, self.length = chosen, loaded.length
        self.prompt = Prompter(chosen.prompts)
        self.dimension = chosen.width(loaded.model.config.hidden)

    def fingerprint(self) -> str:
        """Return a hash of all that determines an embedding, except prompt and precision."""
        return f"{self.loaded.fingerprint()}-{self.pooling.mode}"

    @check_keywords
    def __call__(
        self,
        texts: Any,
        *,
        long: Long = "error",
        prompt: str | None = None,
        text_column: str | None = None,
    ) -> NDArray[np.float32]:
        """A vector for each text, normalized if the folder says so; one text gives one row.

        Texts may be rows, too: a DataFrame, one of its columns, a Dataset, dicts, or a file as a
        `Path`; `text_column` names theirs.
        `prompt` stands before each text: the name of one of the folder's, or a text; by default
        the folder's default one, if any.
        Raises: DataError for a text longer than the model, unless `long` says what to do,
        ConfigError for a prompt that the folder has not.
        """
        none = np.empty((0, self.dimension), dtype=np.float32)
        parts = self.stream(several(texts, text_column), long=long, prompt=prompt)
        return np.concatenate([none, *(part for part, _ in parts)])

    def stream(
        self, texts: Iterable[str], *, long: Long = "error", prompt: str | None = None
    ) -> Iterator[tuple[NDArray[np.float32], list[bool]]]:
        """The same for any number of texts, some thousands at a time as they come, with which of
        them were cut.
        """
        for part in batched(texts, TEXTS_AT_ONCE):
            encodings, owner = self._read(part, long, prompt)
            yield self.vectors(encodings, owner), cut(encodings, owner)

    def prepare(
        self, texts: Sequence[str], *, long: Long = "error", prompt: str | None = None
    ) -> list[Work]:
        """Raises: DataError as `long` says, ConfigError for a prompt that the folder has not."""
        works = works_of(*self._read(texts, long, prompt), len(texts))
        return [replace(work, answer_bytes=BYTES_PER_NUMBER * self.dimension) for work in works]

    def run(self, works: Sequence[Work]) -> NDArray[np.float32]:
        """A vector for each, one at least. Shapes: (S, D)."""
        return self.vectors(*encodings_of(works))

    def _read(
        self, texts: Sequence[str], long: Long, prompt: str | None
    ) -> tuple[list[Encoding], list[int]]:
        prompts = [self.prompt(prompt)] * len(texts)
        return encode(self.tokenizer, texts, length=self.loaded.length, long=long, prompts=prompts)

    def vectors(
        self, encodings: Sequence[Encoding], owner: Sequence[int] | None = None
    ) -> NDArray[np.float32]:
        """A vector for each text as the model reads it, one at least; `owner` says of which text
        each encoding is, where some are windows. Shapes: (S, D).
        """
        layers, rows = self.engine.faster_layers, None
        if layers is not None and layers.pooling == self.pooling.mode:
            rows = layers.vectors(encodings)
        if rows is None:
            rows = self.engine.rows(encodings, self.pooling)
        vectors = rows if owner is None else averaged(rows, encodings, owner)
        if self.pooling.normalize:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors
