"""Relative positions: distance buckets and a bias that all layers share."""

from __future__ import annotations

import pytest
import torch

from bertkit.batch import Packed
from bertkit.nn.attention import attend
from bertkit.nn.attention_context import AttentionContext
from bertkit.nn.relative_positions import MAX_DISTANCE, RelativeBias, bucket_distances


@pytest.mark.parametrize("buckets", [8, 32])
def test_buckets_match_t5(buckets: int) -> None:
    t5 = pytest.importorskip(
        "transformers.models.t5.modeling_t5", reason="pip install 'bertkit[dev]'"
    )
    distance = torch.arange(-600, 601)
    expected = t5.T5Attention._relative_position_bucket(
        distance, bidirectional=True, num_buckets=buckets, max_distance=MAX_DISTANCE
    )
    assert torch.equal(bucket_distances(distance, buckets), expected)
    # One bucket is empty: no distance is 0 and ahead.
    assert bucket_distances(distance, buckets).unique().numel() == buckets - 1


def test_bias_does_not_depend_on_other_sequences() -> None:
    layout = Packed.of([3, 40, 41, 200])
    bias, q = RelativeBias(8, 2), torch.randn(layout.total, 2, 4)
    kv = torch.randn(layout.total, 2, 2, 4)
    together = attend(q, kv, AttentionContext(layout, bias=bias()))
    for index, (start, size) in enumerate(zip(layout.first.tolist(), layout.lengths, strict=True)):
        part = slice(start, start + size)
        context = AttentionContext(Packed.of([size]), bias=bias())
        torch.testing.assert_close(attend(q[part], kv[part], context), together[part])
        scores = (
            torch.einsum("qhk,mhk->hqm", q[part], kv[part, 0]) / 2 + bias.bias_matrix(size, size)[0]
        )
        mixed = torch.einsum("hqm,mhk->qhk", torch.softmax(scores, -1), kv[part, 1])
        torch.testing.assert_close(together[part], mixed, msg=f"sequence {index}")
    without = attend(q, kv, AttentionContext(layout))
    assert (without - together).abs().max() > 0.1


def test_layers_share_bias_and_accumulate_gradient() -> None:
    bias, layout = RelativeBias(8, 2), Packed.of([5, 5])
    q, kv = torch.randn(10, 2, 4), torch.randn(10, 2, 2, 4)
    context = AttentionContext(layout, bias=bias())
    queries, keys = context.buckets[0]
    assert context.bias is not None
    assert context.bias(q, kv, queries, keys) is context.bias(q, kv, queries, keys)
    weight = bias.table.weight
    once = torch.autograd.grad(attend(q, kv, context).square().sum(), weight, retain_graph=True)[0]
    loss = attend(q, kv, context).square().sum() + attend(q, kv, context).square().sum()
    torch.testing.assert_close(torch.autograd.grad(loss, weight)[0], 2 * once)
