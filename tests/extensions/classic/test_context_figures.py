"""Figures of a word in several texts."""

from __future__ import annotations

import re

from tests.view.conftest import html_of

from bertkit.extensions.classic.context_figures import contexts_figures
from bertkit.extensions.classic.contexts import Contexts


def test_figures_compare_each_pair_of_texts() -> None:
    cosines = [[[1.0, 0.5, -0.2], [0.5, 1.0, 0.1], [-0.2, 0.1, 1.0]]]
    maps = [[(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)]]
    html = html_of(
        *contexts_figures(Contexts(["a b"] * 3, [(0, 1)] * 3, cosines, maps, "its text"))
    )
    assert re.findall('<th scope="row">(.*?)</th>', html) == ["1 and 2", "1 and 3", "2 and 3"]
    assert re.findall(r'shade s(\d+)">(.*?)<', html) == [
        ("5", "0.50"),
        ("0", "-0.20"),
        ("1", "0.10"),
    ]
