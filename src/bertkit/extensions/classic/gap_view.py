"""One sentence with a gap: what models say of it from the left, from the right, from both sides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from bertkit.extensions.classic.gap import Gap
from bertkit.pipelines import Candidate
from bertkit.view.figures import Beside, Figure, Marked, Share, Table

EXAMPLE = "I am a ___ . I like playing cricket."


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
