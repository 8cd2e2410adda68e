"""Pipeline of the most probable next tokens of a causal language model."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bertkit.checkpoint.directory import Loaded
from bertkit.engine.engine import Engine
from bertkit.errors import CheckpointError
from bertkit.extensions.generation.pipeline import Generate
from bertkit.nn.precision import Inference
from bertkit.pipelines import Candidate
from bertkit.pipelines.base import ModelPipeline, Work
from bertkit.pipelines.fill_mask import TopOptions
from bertkit.text.long_texts import Long
from bertkit.view.token_text import likeliest


class NextToken(ModelPipeline):
    """Predict the most probable next tokens of texts."""

    policies: tuple[Long, ...] = ("error",)
    prediction, options = list[Candidate], TopOptions
    example = "The cat sat on the"

    def __init__(self, loaded: Loaded, engine: Engine | Inference = "fp32") -> None:
        super().__init__(loaded, engine)
        self.writer = Generate(loaded, self.engine)
        if self.writer.reads:
            raise CheckpointError(f"{loaded.folder}: has an encoder; use a decoder-only model")

    def __call__(self, texts: Sequence[str], *, top: int = 10) -> list[list[Candidate]]:
        """Return the candidates of each text, the most probable first.

        Raises:
            DataError: If a text is as long as the model accepts.
        """
        return self.run(self.prepare(texts, top=top))

    def prepare(self, texts: Sequence[str], *, long: Long = "error", top: int = 10) -> list[Work]:
        """Return the work of each text; see a call for the errors."""
        requests = self.writer.requests(texts)
        return [Work([], (request, top), request.tokens) for request in requests]

    def run(self, works: Sequence[Work]) -> list[list[Candidate]]:
        """Return the candidates of each text, the most probable first."""
        _, logits = self.writer.stepper.start([work.item[0] for work in works])
        return [
            likeliest(self.loaded.tokenizer, row, work.item[1])
            for row, work in zip(torch.softmax(logits, -1), works, strict=True)
        ]
