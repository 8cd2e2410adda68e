"""Texts by how well they answer a query."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bertkit.checkpoint.directory import Loaded
from bertkit.data.rows_in_memory import several
from bertkit.engine.engine import Engine
from bertkit.errors import CheckpointError
from bertkit.nn.precision import Inference
from bertkit.pipelines.base import ModelPipeline, Work, batched
from bertkit.synonyms import check_keywords
from bertkit.tasks.inference import TEXTS_AT_ONCE
from bertkit.tasks.labeled_text import PROBLEMS, reads_pairs
from bertkit.text.long_texts import Long


class Rerank(ModelPipeline):
    """Score texts against a query with a cross-encoder, which reads the two together.

    Works with models from `respond`, `choose`, or `classify` on pairs: one score, as published
    cross-encoders give, or two labels of which the second means relevant.
    """

    def __init__(self, loaded: Loaded, engine: Engine | Inference = "fp32") -> None:
        super().__init__(loaded, engine)
        name = "choose" if "choose" in loaded.model.heads else "classify"
        self.head = self._get_head(name, "train one with `bertkit finetune respond`")
        if name == "classify":
            _check_reranker(loaded, self.head.labels)

    @check_keywords
    def __call__(self, query: str, texts: str | Sequence[str]) -> NDArray[np.float32]:
        """A score for each text, in their order, larger for a better one; what is too long for the
        model is cut. With two labels these are log-odds. Shapes: (S,).
        """
        pairs = ((query, text) for text in several(texts))
        scores = [self.run(self.prepare(part)) for part in batched(pairs, TEXTS_AT_ONCE)]
        return np.concatenate([np.empty(0, np.float32), *scores])

    def prepare(self, pairs: Sequence[tuple[str, str]], *, long: Long = "truncate") -> list[Work]:
        """Of a query and a text each. Raises: DataError as `long` says."""
        return self._encode([query for query, _ in pairs], [text for _, text in pairs], long)

    def run(self, works: Sequence[Work]) -> NDArray[np.float32]:
        """A score for each, one at least. Shapes: (S,)."""
        outputs = self._compute(works, lambda s, x: self.head(s, x).float())
        return outputs[:, 0] if self.head.labels == 1 else outputs[:, 1] - outputs[:, 0]


def _check_reranker(loaded: Loaded, labels: int) -> None:
    """Raises: CheckpointError for a classifier that says nothing of a query and a text."""
    pairs, learn = reads_pairs(loaded.settings), "train one with `bertkit finetune respond`"
    if pairs is False:
        raise CheckpointError(
            f"{loaded.folder}: learned to label single texts, and a re-ranker reads a query with a "
            f"text; {learn}"
        )
    if labels > 2 or loaded.settings.get("problem_type") == PROBLEMS["multi_label"]:
        raise CheckpointError(
            f"{loaded.folder}: tells {labels} labels apart; a re-ranker gives one number, or "
            f"learned two labels of pairs; {learn}"
        )
    if labels == 2 and pairs is None:
        raise CheckpointError(
            f"{loaded.folder}: has two labels, and config.json does not say that they were learned "
            f"from pairs; a re-ranker gives one number; {learn}"
        )
