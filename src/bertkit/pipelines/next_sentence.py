"""Pipeline for next sentence prediction (NSP)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch

from bertkit.checkpoint.directory import Loaded
from bertkit.data.rows_in_memory import as_list
from bertkit.engine.engine import Engine
from bertkit.errors import DataError
from bertkit.nn.precision import Inference
from bertkit.pipelines.base import ModelPipeline
from bertkit.synonyms import check_keywords
from bertkit.tasks.inference import TEXTS_PER_BATCH, Work, batched
from bertkit.text.long_texts import Long


class NextSentenceAnswer(msgspec.Struct, frozen=True):
    """Prediction for a pair of sentences: the probability that the second follows the first."""

    next: float
    truncated: bool = False


class NextSentence(ModelPipeline):
    """Predict the probability that the second of two sentences follows the first."""

    item, prediction = tuple[str, str], NextSentenceAnswer
    example = ("It rained.", "The street was wet.")

    def __init__(self, loaded: Loaded, engine: Engine | Inference = "fp32") -> None:
        super().__init__(loaded, engine)
        self.head = self._get_head("nsp", "use a model pretrained with sampling.pairs = nsp")

    @check_keywords
    def __call__(
        self, a: str | Sequence[str], b: str | Sequence[str], *, long: Long = "error"
    ) -> list[NextSentenceAnswer]:
        """Predict, for each pair of sentences, the probability that the second follows the first.

        Args:
            a: First sentence of the pair, or of each pair.
            b: Second sentence of the pair, or of each pair.
            long: Policy for pairs longer than the maximum length: error or truncate.

        Raises:
            DataError: If the numbers of sentences differ, or if a pair is too long and the policy
                is `error`.
        """
        a, b = list(as_list(a)), list(as_list(b))
        if len(a) != len(b):
            raise DataError(f"got {len(a):,} first, but {len(b):,} second sentences; pass pairs")
        return [
            answer
            for part in batched(zip(a, b, strict=True), TEXTS_PER_BATCH)
            for answer in self.run(self.prepare(part, long=long))
        ]

    def prepare(self, pairs: Sequence[tuple[str, str]], *, long: Long = "error") -> list[Work]:
        """Encode pairs of sentences for `run`.

        Args:
            pairs: The pairs.
            long: Policy for pairs longer than the maximum length: error or truncate.

        Raises:
            DataError: If a pair is too long and the policy is `error`.
        """
        return self._encode([a for a, _ in pairs], [b for _, b in pairs], long)

    def run(self, works: Sequence[Work]) -> list[NextSentenceAnswer]:
        """Predict, for each encoded pair, the probability that the second follows the first."""
        outputs = self._compute(works, self.head)
        probabilities = torch.softmax(torch.from_numpy(outputs), -1)[:, 0].tolist()
        rows = zip(probabilities, works, strict=True)
        return [NextSentenceAnswer(probability, work.truncated) for probability, work in rows]
