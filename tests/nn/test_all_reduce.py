"""Shares of a step. `faults/test_finetune_ranks.py` tests the sums in several processes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from bertkit.nn.all_reduce import share_of


@given(st.lists(st.integers(1, 500), min_size=1, max_size=60), st.data())
def test_shares_contain_each_item_once(sizes: list[int], data: st.DataObject) -> None:
    world = data.draw(st.integers(1, len(sizes)))
    shares = [share_of(sizes, rank, world) for rank in range(world)]
    assert shares[0].start == 0
    assert shares[-1].stop == len(sizes)
    assert all(first.stop == second.start for first, second in pairwise(shares))
    assert all(share.start < share.stop for share in shares)


def test_shares_have_similar_sizes() -> None:
    sizes = [*range(10, 110)]
    totals = [sum(sizes[share_of(sizes, rank, 4)]) for rank in range(4)]
    assert max(totals) - min(totals) <= 2 * max(sizes)
