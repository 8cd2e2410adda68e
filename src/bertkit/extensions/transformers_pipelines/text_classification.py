"""The pipelines `text-classification` and `sentiment-analysis`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from bertkit.errors import DataError
from bertkit.extensions.transformers_pipelines.base import (
    TransformersPipeline,
    Truncation,
    check_texts,
)
from bertkit.tasks.calibration import softmax
from bertkit.tasks.labeled_text import PROBLEMS
from bertkit.tasks.task import Feature


class TextClassificationArguments(Truncation, frozen=True):
    """Arguments of `TextClassificationPipeline`."""

    top_k: int | UnsetType | None = UNSET
    """Number of labels to return, or None for all labels. Default: only the most probable label."""
    return_all_scores: bool | None = None
    """Older way to write `top_k=None`, except that the labels are returned in the order of the
    model."""
    function_to_apply: Literal["sigmoid", "softmax", "none"] | None = None
    """Function that converts the outputs of the model to scores. Default: the function that the
    model specifies.
    """

    def __post_init__(self) -> None:
        if isinstance(self.top_k, int) and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {self.top_k}")


class TextClassificationPipeline(TransformersPipeline):
    """Predict the labels of texts, or of pairs of texts `{"text": ..., "text_pair": ...}`."""

    accepted, runs = TextClassificationArguments, "classify"

    def __call__(self, inputs: Any, **arguments: Any) -> Any:
        """Return the labels of one or several texts, as dicts.

        Args:
            inputs: A text, a pair, or several texts or pairs.
            arguments: Arguments of `TextClassificationArguments`.
        """
        result = super().__call__(inputs, **arguments)
        # As in transformers, the result for one text is a list, unless the call sets `top_k`.
        return [result] if isinstance(inputs, str) and "top_k" not in arguments else result

    def check_items(self, items: Sequence[Any], arguments: Any) -> None:
        for column in _columns(items):
            check_texts(column)

    def results(self, items: Sequence[Any], arguments: Any) -> list[Any]:
        loaded = self.model.loaded
        encodings = arguments.encode(loaded, *_columns(items))
        features = [Feature(encoding, index) for index, encoding in enumerate(encodings)]
        outputs = np.stack(self.model.outputs(features)).reshape(len(items), -1)
        return [
            _labels(loaded.labels, row.tolist(), arguments)
            for row in self._scores(outputs, arguments.function_to_apply)
        ]

    def _scores(self, outputs: NDArray[np.float32], function: str | None) -> NDArray[np.float64]:
        """Convert outputs of the model to scores. Shapes: (S, L) -> (S, L)."""
        problem = self.model.loaded.settings.get("problem_type")
        if function is None:
            is_single = outputs.shape[1] == 1
            function = "sigmoid" if is_single or problem == PROBLEMS["multi_label"] else "softmax"
            function = "none" if problem == PROBLEMS["regression"] else function
        logits = outputs.astype(np.float64)
        if function == "sigmoid":
            return 1 / (1 + np.exp(-logits))
        return softmax(logits) if function == "softmax" else logits


def _labels(names: Sequence[str], scores: Sequence[float], arguments: Any) -> Any:
    """Return the most probable label, or a list of labels if the arguments request a list."""
    rows: list[Mapping[str, Any]] = [
        {"label": name, "score": score} for name, score in zip(names, scores, strict=True)
    ]
    best = sorted(rows, key=lambda row: row["score"], reverse=True)
    if arguments.top_k is not UNSET:
        return best[: arguments.top_k]
    return rows if arguments.return_all_scores else best[0]


def _columns(items: Sequence[Any]) -> list[list[Any]]:
    """Return a list of all texts and, if the items are pairs, a list of all second texts.

    Raises:
        DataError: If an item is neither a text nor a pair, or only some items are pairs.
    """
    rows: list[Mapping[str, Any]] = [
        item if isinstance(item, Mapping) else {"text": item} for item in items
    ]
    names = {name for row in rows for name in row} | {"text"}
    for index, row in enumerate(rows):
        if row.keys() != names or not names <= {"text", "text_pair"}:
            raise DataError(
                f"inputs[{index}]: expected a text, or a dict with the keys text and text_pair, "
                f"got the keys {', '.join(map(repr, row))}; pass only texts or only pairs"
            )
    return [[row[name] for row in rows] for name in sorted(names)]
