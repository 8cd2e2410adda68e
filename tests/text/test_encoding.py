"""Spans, truncation, and windows of encodings, compared with hand-written lists."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.text.encoding import Encoding, strides


def pair(first: int, second: int) -> Encoding:
    """Return [CLS] first [SEP] second [SEP]. Each token has three characters; ids count from 0."""
    sequence = [None, *[0] * first, None, *[1] * second, None]
    within = [0, *range(first), 0, *range(second), 0]
    offsets = [
        (0, 0) if which is None else (3 * index, 3 * index + 3)
        for which, index in zip(sequence, within, strict=True)
    ]
    return Encoding(
        np.arange(len(sequence)),
        np.array([int(which == 1) for which in sequence]),
        np.array(offsets, dtype=np.int64),
        [None if w is None else p for w, p in zip(sequence, within, strict=True)],
        sequence,
        False,
    )


def test_span_selects_the_tokens_of_a_text() -> None:
    encoding = pair(3, 2)
    assert encoding.ids[encoding.span(0)].tolist() == [1, 2, 3]
    assert encoding.ids[encoding.span(1)].tolist() == [5, 6]
    assert encoding.ids[pair(3, 0).span(1)].tolist() == []


def test_prefix_tokens_belong_to_no_text() -> None:
    encoding = pair(3, 2)
    after = encoding.behind([7, 8])
    assert after.ids.tolist() == [7, 8, *encoding.ids.tolist()]
    assert after.words[:3] == after.sequence[:3] == [None] * 3
    assert after.only(np.arange(2, len(after))).offsets.tolist() == encoding.offsets.tolist()
    assert after.covering(3, 6).tolist() == [2 + index for index in encoding.covering(3, 6)]
    assert after.types.tolist() == [0, 0, *encoding.types.tolist()]


@pytest.mark.parametrize(
    ("start", "end", "covered"), [(0, 1, [5]), (2, 4, [5, 6]), (3, 6, [6]), (6, 9, [])]
)
def test_covering_returns_tokens_of_characters(start: int, end: int, covered: list[int]) -> None:
    assert pair(3, 2).covering(start, end, 1).tolist() == covered


def test_cut_keeps_special_tokens_and_reports_truncation() -> None:
    encoding = pair(3, 2)
    cut = encoding.cut({0: (1, 3), 1: (0, 1)})
    assert (cut.ids.tolist(), cut.truncated) == ([0, 2, 3, 4, 5, 7], True)
    same = encoding.cut({0: (0, 3)})
    assert (same.ids.tolist(), same.truncated) == (encoding.ids.tolist(), False)
    assert encoding.cut({0: (0, 3)}, truncated=True).truncated


def test_windows_contain_the_complete_other_text() -> None:
    encoding = pair(1, 4)
    windows = encoding.windows(1, 6, 1)
    assert [window.ids.tolist() for window in windows] == [
        [0, 1, 2, 3, 4, 7],
        [0, 1, 2, 4, 5, 7],
        [0, 1, 2, 5, 6, 7],
    ]
    assert not any(window.truncated for window in windows)
    short = encoding.cut({1: (0, 3)})
    assert all(window.truncated for window in short.windows(1, 6, 1))
    assert encoding.windows(1, 8, 1) == [encoding]


@given(length=st.integers(0, 60), room=st.integers(1, 20), data=st.data())
def test_strides_cover_the_text(length: int, room: int, data: st.DataObject) -> None:
    overlap = data.draw(st.integers(0, room - 1))
    spans = strides(length, room, overlap)
    assert {i for start, end in spans for i in range(start, end)} == set(range(length))
    assert all(end - start <= room for start, end in spans)
    assert [a[1] - b[0] for a, b in pairwise(spans)] == [overlap] * (len(spans) - 1)
    assert spans[-1][1] == length
