"""Keywords of a text: its phrases whose embeddings are nearest to the embedding of the text.

Source: Grootendorst 2020 (KeyBERT), without stop words and without diversification.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from bertkit.checkpoint.directory import Loaded
from bertkit.config import Settings
from bertkit.engine.engine import Engine
from bertkit.errors import CheckpointError, DataError
from bertkit.nn.precision import Inference
from bertkit.pipelines.base import ModelPipeline
from bertkit.pipelines.embed import Embed
from bertkit.tasks.inference import Work
from bertkit.text.long_texts import Long


class Keyword(msgspec.Struct, frozen=True):
    """A phrase, and the cosine similarity between its embedding and the embedding of the text."""

    phrase: str
    score: float


class KeywordOptions(Settings, frozen=True):
    """Options of the pipeline."""

    top_k: Annotated[int, Meta(ge=1, le=100)] = 5
    """Maximum number of keywords."""


class Keywords(ModelPipeline):
    """Find the keywords of a text, which are phrases of one to three words."""

    # A server makes a route and a web form from these types. The type of an item is `str`.
    prediction, options = list[Keyword], KeywordOptions
    example = "The ship left Bergen in heavy rain."

    def __init__(self, loaded: Loaded, engine: Engine | Inference = "fp32") -> None:
        if "lm" in loaded.model.heads:
            raise CheckpointError(f"{loaded.folder}: a generative model; use an encoder")
        super().__init__(loaded, engine)
        self.embed = Embed(loaded, self.engine, normalize=True)

    def __call__(self, text: str, *, top_k: int = 5) -> list[Keyword]:
        """Return the keywords of a text, the most similar first.

        Args:
            text: Input text.
            top_k: Maximum number of keywords.

        Raises:
            DataError: If the text contains no words, or is longer than the model accepts.
        """
        return self.run(self.prepare([text], top_k=top_k))[0]

    def prepare(self, texts: Sequence[str], *, top_k: int = 5, long: Long = "error") -> list[Work]:
        """Return the work of each text; see a call for the errors."""
        works = []
        for text in texts:
            phrases = split_phrases(text)
            if not phrases:
                raise DataError(f"{text[:40]!r}: contains no words; use a text with words")
            parts = self.embed.prepare([text, *phrases], long=long)
            features = [feature for part in parts for feature in part.features]
            works.append(Work(features, (phrases, top_k)))
        return works

    def run(self, works: Sequence[Work]) -> list[list[Keyword]]:
        """Return the keywords of each text, the most similar first."""
        return [self._keywords(work, *work.item) for work in works]

    def _keywords(self, work: Work, phrases: Sequence[str], top_k: int) -> list[Keyword]:
        """Return the phrases whose embeddings are nearest to the embedding of the text."""
        vectors = self.embed.vectors([feature.encoding for feature in work.features])
        scores = vectors[1:] @ vectors[0]
        best = np.argsort(-scores, kind="stable")[:top_k]
        return [Keyword(phrases[index], float(scores[index])) for index in best]


def split_phrases(text: str) -> list[str]:
    """Return each phrase of one to three words once. Punctuation separates phrases."""
    runs = [run.split() for run in re.split(r"[^\w\s'’-]+", text)]
    return list(
        dict.fromkeys(
            " ".join(words[start : start + size])
            for words in runs
            for size in (1, 2, 3)
            for start in range(len(words) - size + 1)
        )
    )
