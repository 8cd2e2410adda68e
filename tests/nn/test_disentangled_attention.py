"""Disentangled attention: distance buckets, the three score terms, and independent sequences."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bertkit.batch import Packed
from bertkit.nn.attention import Attention
from bertkit.nn.attention_context import AttentionContext
from bertkit.nn.disentangled_attention import SCORE_TERMS, DistanceTable, bucket_distances

BUCKETS, FARTHEST, WIDTH, HEADS = 8, 20, 16, 2
LAYOUT = Packed.of([1, 3, 17, 20, 21, 40, 200])


def make_inputs() -> tuple[DistanceTable, Attention, torch.Tensor]:
    torch.manual_seed(0)
    table = DistanceTable(BUCKETS, FARTHEST, WIDTH, 0.0, nn.LayerNorm(WIDTH))
    return table, Attention(WIDTH, HEADS, 0.0), torch.randn(LAYOUT.total, WIDTH)


def context(table: DistanceTable, layout: Packed) -> AttentionContext:
    return AttentionContext(layout, scale=(SCORE_TERMS * WIDTH / HEADS) ** -0.5, distances=table())


@pytest.mark.parametrize(("buckets", "farthest"), [(8, 20), (256, 512)])
def test_buckets_match_transformers(buckets: int, farthest: int) -> None:
    modeling = pytest.importorskip(
        "transformers.models.deberta_v2.modeling_deberta_v2", reason="pip install 'bertkit[dev]'"
    )
    distances = torch.arange(-700, 701)
    expected = modeling.make_log_bucket_position(distances, buckets, farthest).long()
    assert torch.equal(bucket_distances(distances, buckets, farthest), expected)


def test_scores_match_three_terms_in_any_batch() -> None:
    table, attention, x = make_inputs()
    with torch.no_grad():
        together = attention(x, context(table, LAYOUT))
        vectors = table.norm(table.table.weight)
        for start, size in zip(LAYOUT.first.tolist(), LAYOUT.lengths, strict=True):
            states = x[start : start + size]
            torch.testing.assert_close(
                attention(states, context(table, Packed.of([size]))), together[start : start + size]
            )
            q, k, v = attention.qkv(states).view(size, 3, HEADS, -1).unbind(1)
            far_q, far_k, _ = attention.qkv(vectors).view(2 * BUCKETS, 3, HEADS, -1).unbind(1)
            back = torch.arange(size)[:, None] - torch.arange(size)
            row = (bucket_distances(back, BUCKETS, FARTHEST) + BUCKETS).clamp(0, 2 * BUCKETS - 1)
            scores = torch.einsum("ihk,jhk->hij", q, k)
            scores += torch.einsum("ihk,ijhk->hij", q, far_k[row])
            scores += torch.einsum("jhk,ijhk->hij", k, far_q[row])
            weights = torch.softmax(scores / (SCORE_TERMS * WIDTH / HEADS) ** 0.5, -1)
            mixed = torch.einsum("hij,jhk->ihk", weights, v).flatten(1)
            torch.testing.assert_close(together[start : start + size], attention.out(mixed))
        plain = AttentionContext(LAYOUT, scale=context(table, LAYOUT).scale)
        assert (attention(x, plain) - together).abs().max() > 0.05  # the control


def test_layers_share_table_and_accumulate_gradient() -> None:
    table, attention, x = make_inputs()

    def gradient(times: int) -> torch.Tensor:
        shared = context(table, LAYOUT)
        loss = sum(attention(x, shared).square().sum() for _ in range(times))
        return torch.autograd.grad(loss, table.table.weight)[0]

    once = gradient(1)
    assert once.abs().max() > 1e-3
    torch.testing.assert_close(gradient(2), 2 * once)


def test_cached_distance_projections_match() -> None:
    table, attention, x = make_inputs()
    with torch.no_grad():
        expected = attention(x, context(table, LAYOUT))
        attention.distance_projections = attention.project_distances(table().vectors)
        table.table.weight.zero_()  # no longer used
        assert torch.equal(attention(x, context(table, LAYOUT)), expected)


def test_dropout_differs_per_layer() -> None:
    table, _, _ = make_inputs()
    table.dropout.rate = 0.5
    shared = table.train()()
    assert not torch.equal(shared.apply_dropout(), shared.apply_dropout())
    assert torch.equal(table.eval()().apply_dropout(), shared.vectors)


def test_dropout_applies_to_distances_in_training() -> None:
    table, attention, x = make_inputs()
    table.dropout.rate = 0.5
    with torch.no_grad():
        shared = context(table.train(), LAYOUT)
        assert not torch.equal(attention(x, shared), attention(x, shared))
        shared = context(table.eval(), LAYOUT)
        assert torch.equal(attention(x, shared), attention(x, shared))
