"""Answers as HTML: nothing of a text is lost, and nothing of it is read as HTML."""

from __future__ import annotations

import re
from html import escape, unescape

from hypothesis import given
from hypothesis import strategies as st

from bertkit.pipelines import Candidate, MaskAnswer
from bertkit.view.answers import candidates, contexts, figure, labels, marked
from bertkit.view.contexts import Contexts


@given(st.text(), st.lists(st.integers(0, 50), max_size=6))
def test_marks_leave_the_text_as_it_is(text: str, cuts: list[int]) -> None:
    ends = sorted({min(cut, len(text)) for cut in cuts})
    ranges = [(a, b, "") for a, b in zip(ends[::2], ends[1::2], strict=False)]
    html = marked(text, ranges)
    assert unescape(re.sub("<[^>]*>", "", html)) == unescape(escape(text))
    assert re.findall("<mark>(.*?)</mark>", html, re.S) == [escape(text[a:b]) for a, b, _ in ranges]


def test_marks_have_names() -> None:
    html = marked("Ada & Bob", [(6, 9, "PER"), (0, 3, "<PER>")])
    assert html == (
        '<p class="passage" dir="auto"><mark>Ada <span class="small">&lt;PER&gt;</span></mark>'
        ' &amp; <mark>Bob <span class="small">PER</span></mark></p>'
    )


def test_names_of_figures_are_only_words() -> None:
    assert 'data-figure="a &quot;b&quot; &lt;i&gt;"' in figure('a "b" <i>', "", "")


def test_labels_are_probabilities_or_a_number() -> None:
    assert re.findall('<th scope="row">(.*?)</th>', labels({"a": 0.2, "b": 0.8}, number=False)) == [
        "b",
        "a",
    ]
    assert "svg" not in labels({"score": 3.7}, number=True)


def test_models_stand_side_by_side() -> None:
    answers = {
        name: [MaskAnswer(place, [Candidate(f"{name}{place}", 0.5)]) for place in (0, 1)]
        for name in ("before", "after")
    }
    html = candidates(answers)
    assert re.findall('<th scope="row">(.*?)</th>', html) == [
        *("before0", "after0", "before1", "after1")
    ]
    assert html.count("data-figure") == 2


def test_each_pair_of_texts_is_compared() -> None:
    cosines = [[[1.0, 0.5, -0.2], [0.5, 1.0, 0.1], [-0.2, 0.1, 1.0]]]
    found = Contexts(["a b"] * 3, [(0, 1)] * 3, cosines, [[(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)]])
    html = contexts(found)
    assert re.findall('<th scope="row">(.*?)</th>', html) == ["1 and 2", "1 and 3", "2 and 3"]
    assert re.findall(r'shade s(\d+)">(.*?)<', html) == [
        ("5", "0.50"),
        ("0", "-0.20"),
        ("1", "0.10"),
    ]
