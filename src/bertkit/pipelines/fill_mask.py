"""Pipeline that predicts the masked tokens of texts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated

import msgspec
import numpy as np
import torch
from msgspec import Meta
from numpy.typing import NDArray
from torch import Tensor

from bertkit.batch import Batch, Tokens
from bertkit.checkpoint.directory import Loaded
from bertkit.config import Settings
from bertkit.engine.engine import Engine
from bertkit.errors import ConfigError, DataError
from bertkit.models.model import Model
from bertkit.nn.precision import Inference
from bertkit.pipelines.base import ModelPipeline
from bertkit.tasks.inference import Work
from bertkit.text.encoding import Encoding
from bertkit.text.long_texts import Long

MASKS_PER_BATCH = 256
"""Maximum number of masks to predict at once. Each mask has one logit per token of the vocabulary.
"""


class Candidate(msgspec.Struct, frozen=True):
    """Candidate for a missing token, and its probability."""

    token: str
    score: float


class MaskAnswer(msgspec.Struct, frozen=True):
    """Most probable tokens for one [MASK]. `mask` is its number among the masks, starting at 0."""

    mask: int
    candidates: list[Candidate]


class TopOptions(Settings, frozen=True):
    """Options of pipelines that predict tokens."""

    top: Annotated[int, Meta(ge=1, le=100)] = 10
    """Number of candidates to return, from the most probable one."""


class FillMask(ModelPipeline):
    """Predict the most probable tokens for each [MASK] of a text.

    This class has no `__call__`. The pipeline `fill-mask` adds one, with the arguments of
    transformers.
    """

    prediction, options = list[MaskAnswer], TopOptions
    example = "the cat sat on the [MASK]."

    def __init__(self, loaded: Loaded, engine: Engine | Inference = "fp32") -> None:
        super().__init__(loaded, engine)
        self.head = self._get_head("mlm", "use a pretrained model")

    def prepare(self, texts: Sequence[str], *, top: int = 10, long: Long = "error") -> list[Work]:
        """Encode texts for `run`.

        Args:
            texts: The texts.
            top: Number of tokens to predict for each mask.
            long: Policy for texts longer than the maximum length: error or truncate.

        Raises:
            DataError: If a text has no mask, or if it is too long and the policy is `error`.
            ConfigError: If an argument is not supported.
        """
        if top < 1:
            raise ConfigError(f"top: must be at least 1, got {top}")
        if long == "window":
            raise ConfigError("long: window is not supported by fill-mask; use truncate")
        works = []
        for text, work in zip(texts, self._encode(texts, None, long), strict=True):
            masks = len(self.masks(text, work.features[0].encoding))
            works.append(replace(work, item=top, more=masks * math.ceil(top / 10)))
        return works

    def masks(self, text: str, encoding: Encoding) -> NDArray[np.int64]:
        """Return the positions of the masks of a text.

        Args:
            text: The text, for the error message.
            encoding: Encoding of the text.

        Raises:
            DataError: If the text has no mask.
        """
        if not len(indices := np.flatnonzero(encoding.ids == self.tokenizer.mask)):
            mask = self.tokenizer.pieces([self.tokenizer.mask])[0]
            raise DataError(f"{text[:60]!r}: the text has no mask; replace a word by {mask}")
        return indices

    def run(self, works: Sequence[Work]) -> list[list[MaskAnswer]]:
        """Predict the most probable tokens for each mask of each encoded text."""
        encodings = [work.features[0].encoding for work in works]
        masked = [np.flatnonzero(encoding.ids == self.tokenizer.mask) for encoding in encodings]
        most = max((work.item for work in works), default=1)
        return [
            [MaskAnswer(mask, best[: work.item]) for mask, best in enumerate(masks)]
            for work, masks in zip(works, self.candidates(encodings, masked, most), strict=True)
        ]

    def candidates(
        self, encodings: Sequence[Tokens], token_indices: Sequence[NDArray[np.int64]], top: int
    ) -> list[list[list[Candidate]]]:
        """Predict the most probable tokens at some positions, starting with the most probable one.

        Args:
            encodings: The sequences.
            token_indices: Positions in each sequence.
            top: Number of tokens to predict for each position.
        """
        size = self.tokenizer.vocab_size

        def best(model: Model, batch: Batch) -> Tensor:
            """Return the ids and probabilities of the best tokens. Shapes: returns (P, 2, top)."""
            parts = []
            for logits in mask_logits(model, batch):
                # If the vocabulary was padded, there are more embeddings than tokens.
                likely = torch.softmax(logits[:, :size], -1).topk(min(top, size))
                parts.append(torch.stack([likely.indices.float(), likely.values], 1))
            return torch.cat(parts)

        return [
            [
                list(
                    map(Candidate, self.tokenizer.pieces(ids.astype(int).tolist()), scores.tolist())
                )
                for ids, scores in rows
            ]
            for rows in self.engine.run(encodings, best, token_indices)
        ]


def mask_logits(model: Model, batch: Batch) -> Iterator[Tensor]:
    """Yield the logits at the masks of a batch, for a limited number of masks at a time.

    Args:
        model: Model with an MLM head.
        batch: Batch whose `token_indices` are the masks.

    Shapes:
        yields: (P, V).
    """
    assert batch.token_indices is not None
    states = model.encoder_states(batch)
    for indices in batch.token_indices.split(MASKS_PER_BATCH):
        yield model.heads["mlm"](states, replace(batch, token_indices=indices)).float()
