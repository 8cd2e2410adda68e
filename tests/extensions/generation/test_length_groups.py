"""Groups by length: each text is in one, and none is too small where there are several."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bertkit.extensions.generation.length_groups import LEAST, MOST, groups_by_length


@given(st.lists(st.integers(1, 300), min_size=1, max_size=400))
def test_each_text_is_in_one_group_of_its_length(lengths: list[int]) -> None:
    groups = groups_by_length(["a " * length for length in lengths])
    assert sorted(place for group in groups for place in group.places) == list(range(len(lengths)))
    assert 1 <= len(groups) <= MOST
    for group in groups:
        assert all(group.low <= lengths[place] <= group.high for place in group.places)
        assert len(groups) == 1 or len(group.places) >= LEAST
    assert [group.low for group in groups[1:]] == [group.high + 1 for group in groups[:-1]]
    assert (groups[0].low, groups[-1].high) == (min(lengths), max(lengths))


def test_groups_are_equally_wide_where_they_can_be() -> None:
    groups = groups_by_length(["a " * length for length in range(6, 26)] * 4)
    assert [group.name for group in groups] == ["6–10", "11–15", "16–20", "21–25"]
    (only,) = groups_by_length(["a b c"] * 50)
    assert (only.name, len(only.places)) == ("3", 50)
