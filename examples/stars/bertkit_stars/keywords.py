"""Keywords of a text: its phrases whose embeddings are nearest to the embedding of the text.

Source: Grootendorst 2020 (KeyBERT), without stop words and without diversification.
"""

from __future__ import annotations

import re

import msgspec
import numpy as np

from bertkit.checkpoint.directory import Loaded
from bertkit.engine.engine import Engine
from bertkit.errors import DataError
from bertkit.nn.precision import Inference
from bertkit.pipelines.base import ModelPipeline
from bertkit.pipelines.embed import Embed


class Keyword(msgspec.Struct, frozen=True):
    """A phrase, and the cosine similarity between its embedding and the embedding of the text."""

    phrase: str
    score: float


class Keywords(ModelPipeline):
    """Pipeline from a text to its keywords, which are phrases of one to three words."""

    def __init__(self, loaded: Loaded, engine: Engine | Inference = "fp32") -> None:
        super().__init__(loaded, engine)
        self.embed = Embed(loaded, self.engine, normalize=True)

    def __call__(self, text: str, *, top_k: int = 5) -> list[Keyword]:
        """Return the keywords of a text, the most similar first.

        Args:
            text: Input text.
            top_k: Largest number of keywords.

        Raises:
            DataError: If the text contains no words, or is longer than the model accepts.
        """
        phrases = split_phrases(text)
        if not phrases:
            raise DataError(f"{text[:40]!r}: contains no words; use a text with words")
        vectors = self.embed([text, *phrases])
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
