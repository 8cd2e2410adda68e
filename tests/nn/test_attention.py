"""Attention layers: traces, grouped heads, and cross-attention."""

import pytest
import torch
from tests.nn.test_kernels import CASES, LAYOUTS, make_inputs

from bertkit.batch import Packed
from bertkit.nn.attention import Attention, CrossAttention, Trace, attend, attention_weights
from bertkit.nn.attention_context import AttentionContext


@pytest.mark.parametrize("case", CASES)
def test_exact_weights_reproduce_output(case: str) -> None:
    q, kv, context = make_inputs(LAYOUTS["mixed"], case, padding_rows=2, kv_heads=2)
    weights = attention_weights(q, kv, context)
    values = kv[: context.keys.total, 1].repeat_interleave(2, 1).transpose(0, 1)
    parts = values.split(list(context.keys.lengths), 1)
    for w in weights:
        torch.testing.assert_close(w.sum(-1), torch.ones(w.shape[:2]))
    mixed = torch.cat([(w @ p).transpose(0, 1) for w, p in zip(weights, parts, strict=True)])
    actual = attend(q, kv, context)[: context.queries.total]
    torch.testing.assert_close(mixed, actual, atol=1e-5, rtol=1e-4)


def test_trace_without_weights_is_empty() -> None:
    layer, x = Attention(16, 2, 0.0), torch.randn(5, 16)
    context = AttentionContext(Packed.of([2, 3]))
    full, bare = Trace(), Trace(weights=False)
    torch.testing.assert_close(layer(x, context, bare), layer(x, context, full), atol=0, rtol=0)
    assert [w.shape for w in full.attention[0]] == [(2, 2, 2), (2, 3, 3)]
    assert full.heads[0].shape == (5, 2, 8)
    assert bare.attention == bare.heads == []


def test_grouped_heads_match_repeated_keys_and_values() -> None:
    """Grouped heads match a layer whose keys and values are repeated."""
    x, context = torch.randn(5, 16), AttentionContext(Packed.of([2, 3]))
    few = Attention(16, 4, 0.0, kv_heads=2, width=6)
    assert few.qkv.weight.shape == (6 * (4 + 2 * 2), 16)
    assert few.out.weight.shape == (16, 24)
    many = Attention(16, 4, 0.0, width=6)
    with torch.no_grad():
        for grouped, repeated in ((few.qkv.weight, many.qkv.weight), (few.qkv.bias, many.qkv.bias)):
            q, k, v = grouped.unflatten(0, (8, 6)).split([4, 2, 2])
            repeated.copy_(
                torch.cat([q, *(p.repeat_interleave(2, 0) for p in (k, v))]).flatten(0, 1)
            )
        many.out.load_state_dict(few.out.state_dict())
    torch.testing.assert_close(few(x, context), many(x, context))
    swapped = torch.cat([many.qkv.weight[:24], many.qkv.weight[24:].roll(6, 0)])
    many.qkv.weight = torch.nn.Parameter(swapped)
    assert (few(x, context) - many(x, context)).abs().max() > 1e-3  # a control: another order


def test_cross_attention_to_same_states_matches_self_attention() -> None:
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
    actual = cross(x, x, AttentionContext(layout, cross=layout), trace)
    torch.testing.assert_close(actual, layer(x, AttentionContext(layout)))
    assert [w.shape for w in trace.attention[0]] == [(2, 2, 2), (2, 3, 3)]
    assert trace.keys[0].shape == (5, 2, 8)


def test_cross_attention_supports_another_hidden_size() -> None:
    layer = CrossAttention(16, 2, 0.0, memory=5, width=3)
    queries, keys = Packed.of([1, 2]), Packed.of([4, 2], any_order=True)
    context = AttentionContext(queries, cross=keys)
    x, memory = torch.randn(3, 16), torch.randn(6, 5)
    whole = layer(x, memory, context)
    assert whole.shape == (3, 16)
    # the second sequence in its own batch
    second_context = AttentionContext(Packed.of([2]), cross=Packed.of([2]))
    torch.testing.assert_close(layer(x[1:], memory[4:], second_context), whole[1:])


@pytest.mark.parametrize("order", [{"causal": True}, {"window": 3}, {"window": 0}])
def test_cross_attention_rejects_causal_and_window(order: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="cannot be combined with cross-attention"):
        AttentionContext(Packed.of([2]), cross=Packed.of([3]), **order)  # type: ignore[arg-type]


def test_context_rejects_different_numbers_of_sequences() -> None:
    with pytest.raises(ValueError, match="expected 2 sequences to attend to, got 1"):
        AttentionContext(Packed.of([1, 2]), cross=Packed.of([3]))
