"""Pipeline that predicts the next token of a text with a causal language model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from bertkit.batch import by_length
from bertkit.checkpoint.directory import Loaded
from bertkit.data.rows_in_memory import as_list
from bertkit.engine.engine import Engine
from bertkit.errors import CheckpointError
from bertkit.extensions.generation.pipeline import Generate
from bertkit.nn.precision import Inference
from bertkit.pipelines import Candidate
from bertkit.pipelines.base import CACHE_TOKENS, ModelPipeline
from bertkit.pipelines.fill_mask import TopOptions
from bertkit.synonyms import check_keywords
from bertkit.tasks.inference import ITEMS_PER_CHUNK, Work, batched
from bertkit.text.long_texts import Long
from bertkit.view.token_text import likeliest


class NextToken(ModelPipeline):
    """Pipeline that returns the most probable next tokens of each text."""

    policies: tuple[Long, ...] = ("error",)
    prediction, options = list[Candidate], TopOptions
    example = "The cat sat on the"

    def __init__(self, loaded: Loaded, engine: Engine | Inference = "fp32") -> None:
        super().__init__(loaded, engine)
        self.writer = Generate(loaded, self.engine)
        if self.writer.reads:
            raise CheckpointError(
                f"{loaded.folder}: the model has an encoder; use a decoder-only model"
            )

    @check_keywords
    def __call__(self, texts: str | Sequence[str], *, top: int = 10) -> list[list[Candidate]]:
        """Return the `top` candidates for the next token of each text, most probable first.

        Raises:
            DataError: If a text leaves no space for another token within the maximum length.
        """
        return [
            answer
            for part in batched(as_list(texts), ITEMS_PER_CHUNK)
            for answer in self.run(self.prepare(part, top=top))
        ]

    def prepare(self, texts: Sequence[str], *, long: Long = "error", top: int = 10) -> list[Work]:
        """Tokenize texts, and return the work for each text. For the errors, see `__call__`."""
        requests = self.writer.requests(texts)
        more = math.ceil(top / 10)
        return [Work([], (request, top), request.tokens + more) for request in requests]

    def run(self, works: Sequence[Work]) -> list[list[Candidate]]:
        """Return the candidates for the next token of each text, most probable first."""
        answers: dict[int, list[Candidate]] = {}
        for indices in by_length([work.tokens for work in works], CACHE_TOKENS):
            for part in batched(indices, ITEMS_PER_CHUNK):
                _, logits = self.writer.stepper.start([works[index].item[0] for index in part])
                for index, row in zip(part, torch.softmax(logits, -1), strict=True):
                    answers[index] = likeliest(self.tokenizer, row, works[index].item[1])
        return [answers[index] for index in range(len(works))]
