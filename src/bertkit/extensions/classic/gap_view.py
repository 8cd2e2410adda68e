"""One sentence with a gap: what models say of it from the left, from the right, from both sides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from bertkit.extensions.classic.gap import Gap
from bertkit.extensions.generation.pipeline import Generate
from bertkit.pipelines import Candidate, Work
from bertkit.text.long_texts import Long
from bertkit.view.figures import Beside, Figure, Marked, Share, Table
from bertkit.view.token_text import likeliest

EXAMPLE = "I am a ___ . I like playing cricket."


class NextTokenPipeline:
    """A pipeline: beginnings of texts -> the likeliest tokens behind each, of a causal model."""

    policies: tuple[Long, ...] = ("error",)

    def __init__(self, writer: Generate) -> None:
        self.writer, self.loaded = writer, writer.loaded

    def prepare(self, items: Sequence[str], *, long: Long, top: int = 10) -> list[Work]:
        """Raises: DataError for a text that fills the model."""
        requests = self.writer.requests(items)
        return [Work([], (request, top), request.tokens) for request in requests]

    def run(self, works: Sequence[Work]) -> list[list[Candidate]]:
        """The candidates of each, likeliest first."""
        _, logits = self.writer.stepper.start([work.item[0] for work in works])
        return [
            likeliest(self.loaded.tokenizer, row, work.item[1])
            for row, work in zip(torch.softmax(logits, -1), works, strict=True)
        ]


Sides = Literal["the left alone", "the right alone", "both sides"]
"""What a model sees of a sentence around a gap."""


def gap_figure(gap: Gap, answers: Sequence[tuple[str, Sides, Sequence[Candidate]]]) -> Figure:
    """The candidates of models by name, beside what of the sentence each of them sees."""
    text = f"{gap.before}___{gap.after}"
    left = [(0, len(gap.left), "")] if gap.left else []
    after = gap.after.strip()
    right = [(text.rindex(after), text.rindex(after) + len(after), "")] if after else []
    seen = {"the left alone": left, "the right alone": right, "both sides": [*left, *right]}
    parts = []
    for name, sides, candidates in answers:
        heads = f"{name}: from {sides}", "probability"
        rows = [(one.token, Share(one.score)) for one in candidates]
        parts.append(Beside("column", [Marked(text, seen[sides]), Table(heads[0], rows, heads)]))
    caption = "Marked is what a model sees, and below it the likeliest tokens for the gap."
    return Figure("A gap", caption, [Beside("beside", parts)])
