"""Pipeline that scores texts for a query with a cross-encoder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bertkit.checkpoint.directory import Loaded
from bertkit.data.rows_in_memory import as_list
from bertkit.engine.engine import Engine
from bertkit.errors import CheckpointError
from bertkit.nn.precision import Inference
from bertkit.pipelines.base import ModelPipeline
from bertkit.synonyms import check_keywords
from bertkit.tasks.inference import TEXTS_PER_BATCH, Work, batched
from bertkit.tasks.labeled_text import PROBLEMS, reads_pairs
from bertkit.text.long_texts import Long


class Rerank(ModelPipeline):
    """Score texts for a query with a cross-encoder, which reads the query and a text together.

    The model must be fine-tuned for `respond`, for `choose`, or for `classify` with pairs of texts.
    A classifier must have one output, as published cross-encoders have, or two labels. The second
    label must mean that the text is relevant.
    """

    def __init__(self, loaded: Loaded, engine: Engine | Inference = "fp32") -> None:
        super().__init__(loaded, engine)
        name = "choose" if "choose" in loaded.model.heads else "classify"
        self.head = self._get_head(name, "train one with `bertkit finetune respond`")
        if name == "classify":
            _check_reranker(loaded, self.head.out.out_features)

    @check_keywords
    def __call__(self, query: str, texts: str | Sequence[str]) -> NDArray[np.float32]:
        """Compute a score for each text. More relevant texts have higher scores.

        Long texts are truncated.

        Args:
            query: The query.
            texts: One text, or several.

        Returns:
            The scores, in the order of the texts. If the model has two labels, a score is the
            log-odds of the second label.

        Shapes:
            Returns (S,).
        """
        pairs = ((query, text) for text in as_list(texts))
        scores = [self.run(self.prepare(part)) for part in batched(pairs, TEXTS_PER_BATCH)]
        return np.concatenate([np.empty(0, np.float32), *scores])

    def prepare(self, pairs: Sequence[tuple[str, str]], *, long: Long = "truncate") -> list[Work]:
        """Encode pairs of a query and a text for `run`.

        Args:
            pairs: The pairs.
            long: Policy for pairs longer than the maximum length: error or truncate.

        Raises:
            DataError: If a pair is too long and the policy is `error`.
        """
        return self._encode([query for query, _ in pairs], [text for _, text in pairs], long)

    def run(self, works: Sequence[Work]) -> NDArray[np.float32]:
        """Compute a score for each encoded pair. There must be at least one pair.

        Shapes:
            returns: (S,).
        """
        outputs = self._compute(works, self.head)
        return outputs[:, 0] if outputs.shape[1] == 1 else outputs[:, 1] - outputs[:, 0]


def _check_reranker(loaded: Loaded, labels: int) -> None:
    """Raise CheckpointError if a classifier cannot score pairs of a query and a text."""
    pairs, remedy = reads_pairs(loaded.settings), "train one with `bertkit finetune respond`"
    reason = ""
    if pairs is False:
        reason = "the model classifies single texts, but a re-ranker needs pairs"
    elif labels > 2 or loaded.settings.get("problem_type") == PROBLEMS["multi_label"]:
        reason = f"the model has {labels} labels, but a re-ranker needs one output or two labels"
    elif labels == 2 and pairs is None:
        reason = "the model has two labels, but config.json does not specify pairs of texts"
    if reason:
        raise CheckpointError(f"{loaded.folder}: {reason}; {remedy}")
