"""Sentences with a gap, and the figure of each model's context."""

from __future__ import annotations

import pytest
from tests.view.conftest import html_of

from bertkit.errors import DataError
from bertkit.extensions.classic.gap import Gap
from bertkit.extensions.classic.gap_view import EXAMPLE, Sides, gap_figure
from bertkit.pipelines import Candidate


def test_gap_splits_sentence_at_blank() -> None:
    gap = Gap.of(EXAMPLE)
    assert gap.left == "I am a"
    assert gap.masked("[MASK]") == "I am a [MASK] . I like playing cricket."
    assert Gap.of("_____ is here").left == ""


@pytest.mark.parametrize("text", ["no gap", "a _ b", "two ___ of ___ them"])
def test_gap_requires_exactly_one_blank(text: str) -> None:
    with pytest.raises(DataError, match="must contain exactly one gap, ___"):
        Gap.of(text)


def test_figure_marks_context_of_each_model() -> None:
    answer = [Candidate("<cat>", 0.5)]
    sides: tuple[Sides, ...] = ("the left context", "the right context", "both sides")
    columns = [(f"model {number}", side, answer) for number, side in enumerate(sides)]
    html = html_of(gap_figure(Gap.of("a ___ <b>."), columns))
    assert html.count("<mark>a</mark>") == 2
    assert html.count("<mark>&lt;b&gt;.</mark>") == 2
    positions = [html.index(f"model {number}: from {side}") for number, side in enumerate(sides)]
    assert positions == sorted(positions)
    between = html[positions[0] : positions[1]]  # The text of the second column precedes its table.
    assert "<mark>&lt;b&gt;.</mark>" in between
    assert "<mark>a</mark>" not in between
    assert html.count("&lt;cat&gt;") == 3
    single = html_of(gap_figure(Gap.of("___ b"), columns[:1]))
    assert "<mark>" not in single
    assert "both sides" not in single
