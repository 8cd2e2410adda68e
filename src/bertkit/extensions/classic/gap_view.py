"""Figure that shows the words that models predict for a gap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from bertkit.extensions.classic.gap import Gap
from bertkit.pipelines import Candidate
from bertkit.view.figures import Beside, Figure, Marked, Share, Table

EXAMPLE = "I am a ___ . I like playing cricket."


Sides = Literal["the left context", "the right context", "both sides"]
"""Context from which a model predicts the word for the gap."""


def gap_figure(gap: Gap, answers: Sequence[tuple[str, Sides, Sequence[Candidate]]]) -> Figure:
    """Return a figure that shows the candidates of each model, and the context that the model uses.

    Args:
        gap: The text with the gap.
        answers: Name, context and candidates of each model.
    """
    text = f"{gap.before}___{gap.after}"
    left = [(0, len(gap.left), "")] if gap.left else []
    after = gap.after.strip()
    right = [(text.rindex(after), text.rindex(after) + len(after), "")] if after else []
    marks = {"the left context": left, "the right context": right, "both sides": [*left, *right]}
    parts = []
    for name, sides, candidates in answers:
        heads = f"{name}: from {sides}", "probability"
        rows = [(candidate.token, Share(candidate.score)) for candidate in candidates]
        parts.append(Beside("column", [Marked(text, marks[sides]), Table(heads[0], rows, heads)]))
    caption = "The marked text is the input of the model. The table lists the most probable tokens."
    return Figure("A gap", caption, [Beside("beside", parts)])
