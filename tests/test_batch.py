"""Packed layouts and their buckets."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertkit.batch import BUCKET_STEP, BUCKET_TOKENS, Packed

lengths = st.lists(st.integers(1, 70), min_size=1, max_size=30).map(sorted)


@given(lengths)
def test_layout_describes_every_token(sizes: list[int]) -> None:
    layout = Packed.of(sizes)
    assert layout.total == sum(sizes)
    for sequence, size in enumerate(sizes):
        start = int(layout.cu_seqlens[sequence])
        assert layout.positions[start : start + size].tolist() == list(range(size))
        assert layout.sequence_ids[start : start + size].tolist() == [sequence] * size


@given(lengths)
def test_buckets_cover_all_sequences_in_order(sizes: list[int]) -> None:
    layout = Packed.of(sizes)
    assert sum(bucket.sequences for bucket in layout.buckets) == len(sizes)
    assert sum(bucket.tokens for bucket in layout.buckets) == layout.total
    index = 0
    for bucket in layout.buckets:
        # Equal lengths share a bucket; similar lengths share it only while it is small.
        assert index == 0 or sizes[index - 1] != sizes[index]
        bucket_sizes = sizes[index : index + bucket.sequences]
        rounded = -(-max(bucket_sizes) // BUCKET_STEP) * BUCKET_STEP
        assert bucket.length == (max(bucket_sizes) if bucket.scatter_indices is None else rounded)
        assert len({-(-size // BUCKET_STEP) for size in bucket_sizes}) == 1
        assert (
            len(set(bucket_sizes)) == 1
            or bucket.tokens - bucket_sizes.count(max(bucket_sizes)) * max(bucket_sizes)
            < BUCKET_TOKENS
        )
        if bucket.scatter_indices is None:
            assert set(bucket_sizes) == {bucket.length}
        else:
            assert bucket.padding is not None
            assert (~bucket.padding).sum().item() == bucket.tokens == len(bucket.scatter_indices)
        index += bucket.sequences


@given(lengths, st.integers(0, 80))
def test_split_keeps_order(sizes: list[int], at: int) -> None:
    layout = Packed.of(sizes)
    short, long = layout.split(layout.count_up_to(at))
    assert short.lengths + long.lengths == tuple(sizes)
    assert all(size <= at for size in short.lengths)
    assert all(size > at for size in long.lengths)


@pytest.mark.parametrize("sizes", [[3, 2], [0, 1]])
def test_packed_rejects_empty_or_unsorted_sequences(sizes: list[int]) -> None:
    with pytest.raises(ValueError, match="must be positive and ascending"):
        Packed.of(sizes)


def test_split_buckets_accepts_any_order_and_boundaries() -> None:
    keys = Packed.of([3, 20, 1], any_order=True)
    assert keys.sequence_ids.tolist() == [0] * 3 + [1] * 20 + [2]
    first, second = keys.split_buckets([0, 2, 3])
    assert (first.tokens, first.sequences, first.length) == (23, 2, 32)
    assert (second.start, second.tokens, second.length, second.scatter_indices) == (23, 1, 1, None)
    with pytest.raises(ValueError, match="must be positive"):
        Packed.of([2, 0], any_order=True)


def test_to_keeps_the_layout() -> None:
    layout = Packed.of([2, 3]).to("cpu")
    assert layout.lengths == (2, 3)
    assert torch.equal(layout.cu_seqlens, torch.tensor([0, 2, 5]))


def test_segment_sum_of_one_sequence_matches_without_gradient() -> None:
    layout, x = Packed.of([5]), torch.randn(5, 3)
    with torch.no_grad():
        torch.testing.assert_close(layout.segment_sum(x), x.sum(0, keepdim=True))
        assert layout.segment_sum(x.bfloat16()).dtype == torch.float32
    torch.testing.assert_close(layout.segment_sum(x), x.sum(0, keepdim=True))
