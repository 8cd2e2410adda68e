"""Pipeline for text embeddings."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.checkpoint.directory import Loaded
from bertkit.data.rows_in_memory import as_list
from bertkit.engine.engine import Engine
from bertkit.errors import ConfigError
from bertkit.nn.pooling import POOLINGS, Pooling
from bertkit.nn.precision import Inference
from bertkit.pipelines.base import BYTES_PER_NUMBER, ModelPipeline, encodings_of, works_of
from bertkit.synonyms import check_keywords
from bertkit.tasks.inference import TEXTS_PER_BATCH, Work, batched
from bertkit.text.encoding import Encoding
from bertkit.text.long_texts import Long, average_windows, cut, encode
from bertkit.text.prompts import Prompter


class Embed(ModelPipeline):
    """Compute embeddings of texts.

    Args:
        loaded: The model.
        engine: Engine of the model, or the precision of a new engine.
        pooling: mean, cls, or max. Default: the pooling of the model, or mean.
        normalize: Whether to normalize embeddings to length 1. Default: the setting of the model.

    Raises:
        CheckpointError: If the model has no dense embeddings.
        ConfigError: If the pooling is unknown.
    """

    policies = ("error", "truncate", "window")

    def __init__(
        self,
        loaded: Loaded,
        engine: Engine | Inference = "fp32",
        pooling: str | None = None,
        *,
        normalize: bool | None = None,
    ) -> None:
        super().__init__(loaded, engine)
        if loaded.format is not None:
            raise loaded.format.mismatch("a model of dense embeddings")
        settings = loaded.pooling or Pooling()
        if normalize is not None:
            settings = replace(settings, normalize=normalize)
        if pooling is not None and pooling not in POOLINGS:
            raise ConfigError(f"pooling: unknown value {pooling!r}; use {', '.join(POOLINGS)}")
        if pooling is not None:
            settings = replace(settings, mode=pooling)  # type: ignore[arg-type]
        if settings.dense is not None:
            settings = replace(settings, dense=copy.deepcopy(settings.dense).to(self.engine.device))
        self.pooling, self.length = settings, loaded.length
        self.prompt = Prompter(settings.prompts)
        self.dimension = settings.width(loaded.model.config.hidden)

    def fingerprint(self) -> str:
        """Return a hash of everything that embeddings depend on, except prompt and precision."""
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
        """Compute one embedding per text.

        Args:
            texts: One text, several texts, or rows. Rows can be a DataFrame, a column of a
                DataFrame, a Dataset, dicts, or a file as a `Path`.
            long: Policy for texts longer than the maximum length: error, truncate, or window.
            prompt: Prompt to prepend to each text, as a text or as the name of one of the model's
                prompts. Default: the model's default prompt, if it has one.
            text_column: Column that contains the texts, if `texts` are rows.

        Raises:
            DataError: If a text is too long and the policy is `error`.
            ConfigError: If the model does not have a prompt of this name.

        Shapes:
            Returns (S, D).
        """
        empty = np.empty((0, self.dimension), dtype=np.float32)
        parts = self.stream(as_list(texts, text_column), long=long, prompt=prompt)
        return np.concatenate([empty, *(part for part, _ in parts)])

    def stream(
        self, texts: Iterable[str], *, long: Long = "error", prompt: str | None = None
    ) -> Iterator[tuple[NDArray[np.float32], list[bool]]]:
        """Compute embeddings in chunks of several thousand texts.

        Args:
            texts: The texts.
            long: Policy for texts longer than the maximum length: error, truncate, or window.
            prompt: Prompt to prepend to each text.

        Yields:
            The embeddings of a chunk of texts, and whether each text was truncated.
        """
        for part in batched(texts, TEXTS_PER_BATCH):
            encodings, owner = self._encode_prompted(part, long, prompt)
            yield self.vectors(encodings, owner), cut(encodings, owner)

    def prepare(
        self, texts: Sequence[str], *, long: Long = "error", prompt: str | None = None
    ) -> list[Work]:
        """Encode texts for `run`.

        Args:
            texts: The texts.
            long: Policy for texts longer than the maximum length: error, truncate, or window.
            prompt: Prompt to prepend to each text.

        Raises:
            DataError: If a text is too long and the policy is `error`.
            ConfigError: If the model does not have a prompt of this name.
        """
        works = works_of(*self._encode_prompted(texts, long, prompt), len(texts))
        return [replace(work, answer_bytes=BYTES_PER_NUMBER * self.dimension) for work in works]

    def run(self, works: Sequence[Work]) -> NDArray[np.float32]:
        """Compute one embedding per encoded text. There must be at least one text.

        Shapes:
            returns: (S, D).
        """
        return self.vectors(*encodings_of(works))

    def _encode_prompted(
        self, texts: Sequence[str], long: Long, prompt: str | None
    ) -> tuple[list[Encoding], list[int]]:
        prompts = [self.prompt(prompt)] * len(texts)
        return encode(self.tokenizer, texts, length=self.loaded.length, long=long, prompts=prompts)

    def vectors(
        self, encodings: Sequence[Encoding], owner: Sequence[int] | None = None
    ) -> NDArray[np.float32]:
        """Compute one embedding per encoding or, if `owner` is given, one per text.

        Args:
            encodings: Encodings of at least one text, or of overlapping windows of texts.
            owner: Index of the text that each encoding belongs to. The embedding of a text is the
                average over its windows.

        Shapes:
            Returns (S, D).
        """
        layers, rows = self.engine.faster_layers, None
        if layers is not None and layers.pooling == self.pooling.mode:
            rows = layers.vectors(encodings)
        if rows is None:
            rows = self.engine.rows(encodings, self.pooling)
        vectors = rows if owner is None else average_windows(rows, encodings, owner)
        if self.pooling.normalize:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors
