"""Attention of one decoding step over the key/value cache."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from bertkit.batch import Packed
from bertkit.extensions.generation import cache
from bertkit.extensions.generation.cache import Cache, Sources

HEADS, WIDTH = 6, 8
LENGTHS = [1, 4, 4, 9]


def packed_keys(groups: int) -> tuple[Tensor, Tensor, Packed]:
    layout = Packed.of(LENGTHS)
    keys, values = torch.randn(2, layout.total, groups, WIDTH)
    return keys, values, layout


def naive(q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None) -> Tensor:
    """Compute attention for q (H, K), k and v (T, G, K), and bias (H, T); return (H, K)."""
    k, v = (x.repeat_interleave(HEADS // x.shape[1], 1) for x in (k, v))
    scores = torch.einsum("hk,thk->ht", q, k) * scale
    return torch.einsum(
        "ht,thk->hk", torch.softmax(scores if bias is None else scores + bias, -1), v
    )


@pytest.mark.parametrize("fused_rows", [0, 1000])  # two matmuls; one fused operation
@pytest.mark.parametrize("groups", [6, 2])
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("biased", [False, True])
def test_query_attends_to_its_row_up_to_itself(
    monkeypatch: pytest.MonkeyPatch, fused_rows: int, groups: int, width: int, biased: bool
) -> None:
    monkeypatch.setattr(cache, "FUSED_MAX_ROWS", fused_rows)
    torch.manual_seed(0)
    keys, values, layout = packed_keys(groups)
    kv_cache = Cache.of([keys], [values], layout)
    rows = len(LENGTHS)
    for _ in range(2):  # the second step uses the keys of the first step
        step = kv_cache.append(width)
        q = torch.randn(rows * width, HEADS, WIDTH)
        new = torch.randn(rows * width, 2, groups, WIDTH)
        longest = step.layout.longest
        bias = torch.randn(rows, HEADS, width, longest) if biased else None
        if bias is not None:
            step.bias(bias)
        out = step.layer(0)(q, new, 0.3).view(rows, width, HEADS, WIDTH)
        entries = kv_cache.layers[0].both
        for row in range(rows):
            for ahead in range(width):
                num_keys = int(kv_cache.lengths[row]) + ahead + 1
                k, v = entries[:, row, :, :num_keys].transpose(1, 2)
                query, newest = q[row * width + ahead], new[row * width + ahead]
                torch.testing.assert_close(torch.stack([k[-1], v[-1]]), newest)
                row_bias = None if bias is None else bias[row, :, ahead, :num_keys]
                expected = naive(query, k, v, 0.3, row_bias)
                torch.testing.assert_close(out[row, ahead], expected, atol=1e-5, rtol=1e-5)
                if num_keys > 1:  # control: one key fewer changes the output
                    fewer_bias = None if row_bias is None else row_bias[:, 1:]
                    fewer = naive(query, k[1:], v[1:], 0.3, fewer_bias)
                    assert not torch.allclose(out[row, ahead], fewer, atol=1e-5)
        kv_cache.advance(torch.full((rows,), width))


@pytest.mark.parametrize("fused_rows", [0, 1000])
@pytest.mark.parametrize("beams", [1, 3])
def test_query_attends_only_to_its_source(
    monkeypatch: pytest.MonkeyPatch, fused_rows: int, beams: int
) -> None:
    monkeypatch.setattr(cache, "FUSED_MAX_ROWS", fused_rows)
    torch.manual_seed(0)
    keys, values, layout = packed_keys(HEADS)
    rows = len(LENGTHS)
    kv_cache = Cache.of([keys[layout.first]], [values[layout.first]], Packed.of([1] * rows))
    order = torch.tensor([2, 0, 3, 1])
    kv_cache.sources = Sources.of([torch.stack([keys, values], 1)], layout, order)
    kv_cache.keep(torch.arange(rows).repeat_interleave(beams))
    source = kv_cache.append(1).source(0)
    assert source is not None
    q = torch.randn(rows * beams, HEADS, WIDTH)
    out = source(q, None, 0.3)
    for row in range(rows * beams):
        index = int(order[row // beams])
        positions = slice(int(layout.first[index]), int(layout.first[index]) + LENGTHS[index])
        expected = naive(q[row], keys[positions], values[positions], 0.3, None)
        torch.testing.assert_close(out[row], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("fused_rows", [0, 1000])
@pytest.mark.parametrize("groups", [6, 2])
@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data(), beams=st.integers(1, 4))
def test_beam_attends_only_to_its_ancestors(
    monkeypatch: pytest.MonkeyPatch, fused_rows: int, groups: int, data: st.DataObject, beams: int
) -> None:
    """The expected values come from a cache with a copy of the keys per beam."""
    monkeypatch.setattr(cache, "FUSED_MAX_ROWS", fused_rows)
    monkeypatch.setattr(cache, "BEAM_STEPS", 2)  # unused keys are removed often
    torch.manual_seed(0)
    keys, values, layout = packed_keys(groups)
    copies = Cache.of([keys], [values], layout)
    kv_cache = Cache.of([keys], [values], layout).branch(beams)
    copies.keep(torch.arange(len(LENGTHS)).repeat_interleave(beams))
    requests = len(LENGTHS)
    for _ in range(7):
        rows = requests * beams
        q = torch.randn(rows, HEADS, WIDTH)
        new = torch.randn(rows, 2, groups, WIDTH)
        step, plain = kv_cache.append(1), copies.append(1)
        assert torch.equal(step.layout.positions, plain.layout.positions)
        expected = plain.layer(0)(q, new, 0.3)
        torch.testing.assert_close(step.layer(0)(q, new, 0.3), expected, atol=1e-5, rtol=1e-5)
        if beams > 1:  # control: the keys of another beam change the output
            assert not torch.allclose(expected.roll(1, 0), expected, atol=1e-3)
        for tested in (kv_cache, copies):
            tested.advance(torch.ones(rows, dtype=torch.long))
        remaining = data.draw(st.lists(st.integers(0, requests - 1), unique=True, min_size=1))
        beam = st.lists(st.integers(0, beams - 1), min_size=beams, max_size=beams)
        selected = [r * beams + b for r in sorted(remaining) for b in data.draw(beam)]
        for tested in (kv_cache, copies):
            tested.keep(torch.tensor(selected))
        requests = len(remaining)


def test_branched_cache_rejects_two_tokens_per_step() -> None:
    keys, values, layout = packed_keys(HEADS)
    with pytest.raises(ValueError, match="beams grow by one token, got 2"):
        Cache.of([keys], [values], layout).branch(2).append(2)
