"""The pipeline `feature-extraction`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from bertkit.config import decode
from bertkit.extensions.transformers_pipelines.base import (
    Arguments,
    TransformersPipeline,
    Truncation,
)
from bertkit.tasks.inference import Work
from bertkit.tasks.task import Feature


class FeatureExtractionArguments(Arguments, frozen=True):
    """Arguments of `FeatureExtractionPipeline`."""

    truncation: bool | None = None
    """Whether to truncate long texts."""
    tokenize_kwargs: Mapping[str, Any] = {}
    """Arguments for the tokenizer: truncation, max_length, and padding."""
    return_tensors: bool = False
    """Whether to return PyTorch tensors instead of lists."""


class FeatureExtractionPipeline(TransformersPipeline):
    """Return the last hidden states of texts.

    Shapes:
        A result is (1, T, D).
    """

    accepted, runs = FeatureExtractionArguments, "token-embeddings"

    def results(self, items: Sequence[Any], arguments: Any) -> list[Any]:
        given = {} if arguments.truncation is None else {"truncation": arguments.truncation}
        truncation = decode(Truncation, {**arguments.tokenize_kwargs, **given})
        encodings = truncation.encode(self.model.loaded, items)
        works = [Work([Feature(encoding, 0)], item=-1) for encoding in encodings]
        states = [answer.embeddings[None] for answer in self.model.run(works)]
        if arguments.return_tensors:
            return [torch.from_numpy(rows) for rows in states]
        return [rows.tolist() for rows in states]
