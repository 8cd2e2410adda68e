"""Packed layouts: what goes in comes out, and runs cover every token once."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertkit.batch import RUN_STEP, RUN_TOKENS, Packed

lengths = st.lists(st.integers(1, 70), min_size=1, max_size=30).map(sorted)


@given(lengths)
def test_layout_describes_every_token(sizes: list[int]) -> None:
    layout = Packed.of(sizes)
    assert layout.total == sum(sizes)
    for sequence, size in enumerate(sizes):
        start = int(layout.starts[sequence])
        assert layout.positions[start : start + size].tolist() == list(range(size))
        assert layout.owner[start : start + size].tolist() == [sequence] * size


@given(lengths)
def test_runs_cover_all_sequences_in_order(sizes: list[int]) -> None:
    layout = Packed.of(sizes)
    assert sum(run.sequences for run in layout.runs) == len(sizes)
    assert sum(run.tokens for run in layout.runs) == layout.total
    place = 0
    for run in layout.runs:
        # equal lengths are never parted, and near ones share a run only while it is small
        assert place == 0 or sizes[place - 1] != sizes[place]
        own = sizes[place : place + run.sequences]
        assert run.length == (max(own) if run.rows is None else -(-max(own) // RUN_STEP) * RUN_STEP)
        assert len({-(-size // RUN_STEP) for size in own}) == 1
        assert len(set(own)) == 1 or run.tokens - own.count(max(own)) * max(own) < RUN_TOKENS
        if run.rows is None:
            assert set(own) == {run.length}
        else:
            assert run.hidden is not None
            assert (~run.hidden).sum().item() == run.tokens == len(run.rows)
        place += run.sequences


@given(lengths, st.integers(0, 80))
def test_split_keeps_order(sizes: list[int], at: int) -> None:
    short, long = Packed.of(sizes).split(at)
    assert short.lengths + long.lengths == tuple(sizes)
    assert all(size <= at for size in short.lengths)
    assert all(size > at for size in long.lengths)


@pytest.mark.parametrize("sizes", [[3, 2], [0, 1]])
def test_decreasing_or_empty_sequences_are_refused(sizes: list[int]) -> None:
    with pytest.raises(ValueError, match="shortest first"):
        Packed.of(sizes)


def test_moving_keeps_the_layout() -> None:
    layout = Packed.of([2, 3]).to("cpu")
    assert layout.lengths == (2, 3)
    assert torch.equal(layout.starts, torch.tensor([0, 2, 5]))
