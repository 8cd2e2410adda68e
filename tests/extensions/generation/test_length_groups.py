"""Groups by length contain each text once, and enough texts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bertkit.extensions.generation.length_groups import MAX_GROUPS, MIN_TEXTS, groups_by_length


@given(st.lists(st.integers(1, 300), min_size=1, max_size=400))
def test_groups_contain_each_text_once_by_length(lengths: list[int]) -> None:
    groups = groups_by_length(["a " * length for length in lengths])
    assert sorted(n for group in groups for n in group.indices) == list(range(len(lengths)))
    assert 1 <= len(groups) <= MAX_GROUPS
    for group in groups:
        assert all(group.low <= lengths[n] <= group.high for n in group.indices)
        assert len(groups) == 1 or len(group.indices) >= MIN_TEXTS
    assert [group.low for group in groups[1:]] == [group.high + 1 for group in groups[:-1]]
    assert (groups[0].low, groups[-1].high) == (min(lengths), max(lengths))


def test_ranges_are_equally_large() -> None:
    groups = groups_by_length(["a " * length for length in range(6, 26)] * 4)
    assert [group.name for group in groups] == ["6-10", "11-15", "16-20", "21-25"]


def test_texts_of_one_length_are_one_group() -> None:
    (group,) = groups_by_length(["a b c"] * 50)
    assert (group.name, len(group.indices)) == ("3", 50)
