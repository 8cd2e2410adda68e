"""Answers as figures: nothing of a text is lost, and nothing of it is read as HTML."""

from __future__ import annotations

import re
from html import escape, unescape

from hypothesis import given
from hypothesis import strategies as st
from tests.view.conftest import html_of

from bertkit.extensions.serving.views.answers import candidates, contexts, labels
from bertkit.extensions.serving.views.contexts import Contexts
from bertkit.pipelines import Candidate, MaskAnswer
from bertkit.view.figures import Figure, Marked


def marked(text: str, ranges: list[tuple[int, int, str]]) -> str:
    html = html_of(Figure("", "", [Marked(text, ranges)]))
    (passage,) = re.findall('<p class="passage" dir="auto">(.*?)</p>', html, re.S)
    return str(passage)


@given(st.text(), st.lists(st.integers(0, 50), max_size=6))
def test_marks_leave_the_text_as_it_is(text: str, cuts: list[int]) -> None:
    ends = sorted({min(cut, len(text)) for cut in cuts})
    ranges = [(a, b, "") for a, b in zip(ends[::2], ends[1::2], strict=False)]
    html = marked(text, ranges)
    assert unescape(re.sub("<[^>]*>", "", html)) == unescape(escape(text))
    inside = re.findall("<mark>(.*?)</mark>", html, re.S)
    assert list(map(unescape, inside)) == [unescape(escape(text[a:b])) for a, b, _ in ranges]


def test_marks_have_names() -> None:
    assert marked("Ada & Bob", [(6, 9, "PER"), (0, 3, "<PER>")]) == (
        '<mark>Ada <span class="small">&lt;PER&gt;</span></mark>'
        ' &amp; <mark>Bob <span class="small">PER</span></mark>'
    )


def test_names_of_figures_are_only_words() -> None:
    html = html_of(Figure('a "b" <i>', "", []))
    assert 'data-figure="a &#34;b&#34; &lt;i&gt;"' in html


def test_labels_are_probabilities_or_a_number() -> None:
    html = html_of(labels({"a": 0.2, "b": 0.8}, number=False))
    assert re.findall('<th scope="row">(.*?)</th>', html) == ["b", "a"]
    assert html.count("<svg") == 2
    assert "<svg" not in html_of(labels({"score": 3.7}, number=True))


def test_models_stand_side_by_side() -> None:
    answers = {
        name: [MaskAnswer(place, [Candidate(f"{name}{place}", 0.5)]) for place in (0, 1)]
        for name in ("before", "after")
    }
    html = html_of(*candidates(answers))
    assert re.findall('<th scope="row">(.*?)</th>', html) == [
        *("before0", "after0", "before1", "after1")
    ]
    assert html.count("<div data-figure") == 2


def test_each_pair_of_texts_is_compared() -> None:
    cosines = [[[1.0, 0.5, -0.2], [0.5, 1.0, 0.1], [-0.2, 0.1, 1.0]]]
    maps = [[(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)]]
    html = html_of(*contexts(Contexts(["a b"] * 3, [(0, 1)] * 3, cosines, maps, "its text")))
    assert re.findall('<th scope="row">(.*?)</th>', html) == ["1 and 2", "1 and 3", "2 and 3"]
    assert re.findall(r'shade s(\d+)">(.*?)<', html) == [
        ("5", "0.50"),
        ("0", "-0.20"),
        ("1", "0.10"),
    ]
