"""Attention as a layer: what it collects, groups of heads, and states of another stack."""

import pytest
import torch
from tests.nn.test_kernels import CASES, LAYOUTS, made

from bertkit.batch import Packed
from bertkit.nn.attention import Attention, CrossAttention, Trace, attend, attention_weights
from bertkit.nn.attention_context import AttentionContext


@pytest.mark.parametrize("case", CASES)
def test_exact_weights_reproduce_the_output(case: str) -> None:
    q, kv, context = made(LAYOUTS["mixed"], case, behind=2, kv_heads=2)
    weights = attention_weights(q, kv, context)
    values = kv[: context.keys.total, 1].repeat_interleave(2, 1).transpose(0, 1)
    parts = values.split(list(context.keys.lengths), 1)
    for w in weights:
        torch.testing.assert_close(w.sum(-1), torch.ones(w.shape[:2]))
    mixed = torch.cat([(w @ p).transpose(0, 1) for w, p in zip(weights, parts, strict=True)])
    ours = attend(q, kv, context)[: context.queries.total]
    torch.testing.assert_close(mixed, ours, atol=1e-5, rtol=1e-4)


def test_a_trace_without_weights_collects_none() -> None:
    layer, x = Attention(16, 2, 0.0), torch.randn(5, 16)
    context = AttentionContext(Packed.of([2, 3]))
    full, bare = Trace(), Trace(weights=False)
    torch.testing.assert_close(layer(x, context, bare), layer(x, context, full), atol=0, rtol=0)
    assert [w.shape for w in full.attention[0]] == [(2, 2, 2), (2, 3, 3)]
    assert full.heads[0].shape == (5, 2, 8)
    assert bare.attention == bare.heads == []


def test_heads_may_share_keys_and_values_and_be_as_wide_as_they_like() -> None:
    """Grouped heads are those of a whole layer whose keys and values repeat."""
    x, context = torch.randn(5, 16), AttentionContext(Packed.of([2, 3]))
    few = Attention(16, 4, 0.0, kv_heads=2, width=6)
    assert few.qkv.weight.shape == (6 * (4 + 2 * 2), 16)
    assert few.out.weight.shape == (16, 24)
    many = Attention(16, 4, 0.0, width=6)
    with torch.no_grad():
        for ours, theirs in ((few.qkv.weight, many.qkv.weight), (few.qkv.bias, many.qkv.bias)):
            q, k, v = ours.unflatten(0, (8, 6)).split([4, 2, 2])
            theirs.copy_(torch.cat([q, *(p.repeat_interleave(2, 0) for p in (k, v))]).flatten(0, 1))
        many.out.load_state_dict(few.out.state_dict())
    torch.testing.assert_close(few(x, context), many(x, context))
    swapped = torch.cat([many.qkv.weight[:24], many.qkv.weight[24:].roll(6, 0)])
    many.qkv.weight = torch.nn.Parameter(swapped)
    assert (few(x, context) - many(x, context)).abs().max() > 1e-3  # a control: another order


def test_cross_attention_to_ones_own_states_is_self_attention() -> None:
    layer, cross = Attention(16, 2, 0.0), CrossAttention(16, 2, 0.0)
    with torch.no_grad():
        cross.q.weight, cross.q.bias = (
            torch.nn.Parameter(x[:16]) for x in (layer.qkv.weight, layer.qkv.bias)
        )
        cross.kv.weight, cross.kv.bias = (
            torch.nn.Parameter(x[16:]) for x in (layer.qkv.weight, layer.qkv.bias)
        )
        cross.out.load_state_dict(layer.out.state_dict())
    layout, x, trace = Packed.of([2, 3]), torch.randn(5, 16), Trace(projections=True)
    ours = cross(x, x, AttentionContext(layout, cross=layout), trace)
    torch.testing.assert_close(ours, layer(x, AttentionContext(layout)))
    assert [w.shape for w in trace.attention[0]] == [(2, 2, 2), (2, 3, 3)]
    assert trace.keys[0].shape == (5, 2, 8)


def test_states_of_another_width_may_be_read() -> None:
    layer = CrossAttention(16, 2, 0.0, memory=5, width=3)
    queries, keys = Packed.of([1, 2]), Packed.of([4, 2], any_order=True)
    context = AttentionContext(queries, cross=keys)
    x, memory = torch.randn(3, 16), torch.randn(6, 5)
    whole = layer(x, memory, context)
    assert whole.shape == (3, 16)
    # the second sequence alone
    one = AttentionContext(Packed.of([2]), cross=Packed.of([2]))
    torch.testing.assert_close(layer(x[1:], memory[4:], one), whole[1:])


@pytest.mark.parametrize("order", [{"causal": True}, {"window": 3}, {"window": 0}])
def test_cross_attention_has_no_order(order: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="cannot be combined with cross-attention"):
        AttentionContext(Packed.of([2]), cross=Packed.of([3]), **order)  # type: ignore[arg-type]


def test_each_sequence_needs_one_to_attend_to() -> None:
    with pytest.raises(ValueError, match="expected 2 sequences to attend to, got 1"):
        AttentionContext(Packed.of([1, 2]), cross=Packed.of([3]))
