"""Figures of predictions contain the complete text, escaped as HTML."""

from __future__ import annotations

import re
from html import escape, unescape
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.view.conftest import html_of

from bertkit.extensions.serving.answers import candidates, labels, record
from bertkit.pipelines import Candidate, MaskAnswer
from bertkit.view.figures import Figure, Marked


def marked(text: str, ranges: list[tuple[int, int, str]]) -> str:
    html = html_of(Figure("", "", [Marked(text, ranges)]))
    (passage,) = re.findall('<p class="passage" dir="auto">(.*?)</p>', html, re.S)
    return str(passage)


@given(st.text(), st.lists(st.integers(0, 50), max_size=6))
def test_marks_keep_the_text_unchanged(text: str, boundaries: list[int]) -> None:
    ends = sorted({min(boundary, len(text)) for boundary in boundaries})
    ranges = [(a, b, "") for a, b in zip(ends[::2], ends[1::2], strict=False)]
    html = marked(text, ranges)
    assert unescape(re.sub("<[^>]*>", "", html)) == unescape(escape(text))
    inside = re.findall("<mark>(.*?)</mark>", html, re.S)
    assert list(map(unescape, inside)) == [unescape(escape(text[a:b])) for a, b, _ in ranges]


def test_marks_contain_names() -> None:
    assert marked("Ada & Bob", [(6, 9, "PER"), (0, 3, "<PER>")]) == (
        '<mark>Ada <span class="small">&lt;PER&gt;</span></mark>'
        ' &amp; <mark>Bob <span class="small">PER</span></mark>'
    )


def test_figure_names_are_escaped() -> None:
    html = html_of(Figure('a "b" <i>', "", []))
    assert 'data-figure="a &#34;b&#34; &lt;i&gt;"' in html


def test_labels_show_probabilities_or_one_score() -> None:
    def table(**scores: float) -> str:
        return html_of(labels([SimpleNamespace(scores=scores)], "", ""))

    html = table(a=0.2, b=0.8)
    assert re.findall('<th scope="row">(.*?)</th>', html) == ["b", "a"]
    assert html.count("<svg") == 2
    assert "<svg" not in table(score=3.7)


def test_candidates_of_models_are_side_by_side() -> None:
    answers = {
        name: [MaskAnswer(index, [Candidate(f"{name}{index}", 0.5)]) for index in (0, 1)]
        for name in ("before", "after")
    }
    html = html_of(*candidates(answers))
    assert re.findall('<th scope="row">(.*?)</th>', html) == [
        *("before0", "after0", "before1", "after1")
    ]
    assert html.count("<div data-figure") == 2


def test_record_has_row_per_field_or_element() -> None:
    html = html_of(record([MaskAnswer(1, [Candidate("<a>", 0.5)])], "", ""))
    assert re.findall('<th scope="row">(.*?)</th>', html) == ["mask", "candidates"]
    html = html_of(record([[Candidate("<a>", 0.5), Candidate("b", 0.25)]], "", ""))
    assert re.findall('<th scope="row">(.*?)</th>', html) == ["&lt;a&gt;", "b"]
    assert "0.250" in html
    # The header row contains the names of the fields.
    assert html.count("<tr>") == 3


@pytest.mark.parametrize(
    ("prediction", "shown"),
    [(0.5, "0.500"), (3, "3"), ({"n": 3}, "3"), ({"right": True}, "true"), ([], r"\[\]")],
)
def test_record_shows_predictions_of_simple_types(prediction: object, shown: str) -> None:
    assert re.search(rf">\s*{shown}\s*<", html_of(record([prediction], "", "")))
