"""What a step reads of a cache, in one operation or in two."""

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
    """Of one query. Shapes: q (H, K), k and v (T, G, K), bias (H, T) -> (H, K)."""
    k, v = (x.repeat_interleave(HEADS // x.shape[1], 1) for x in (k, v))
    scores = torch.einsum("hk,thk->ht", q, k) * scale
    return torch.einsum(
        "ht,thk->hk", torch.softmax(scores if bias is None else scores + bias, -1), v
    )


@pytest.mark.parametrize("few", [0, 1000])  # in two products; in one operation
@pytest.mark.parametrize("groups", [6, 2])
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("biased", [False, True])
def test_a_query_reads_its_row_as_far_as_itself(
    monkeypatch: pytest.MonkeyPatch, few: int, groups: int, width: int, biased: bool
) -> None:
    monkeypatch.setattr(cache, "FUSED_MAX_ROWS", few)
    torch.manual_seed(0)
    keys, values, layout = packed_keys(groups)
    of = Cache.of([keys], [values], layout)
    rows = len(LENGTHS)
    for _ in range(2):  # the second step reads what the first wrote
        step = of.append(width)
        q = torch.randn(rows * width, HEADS, WIDTH)
        new = torch.randn(rows * width, 2, groups, WIDTH)
        longest = step.layout.longest
        bias = torch.randn(rows, HEADS, width, longest) if biased else None
        if bias is not None:
            step.bias(bias)
        out = step.layer(0)(q, new, 0.3).view(rows, width, HEADS, WIDTH)
        both = of.layers[0].both
        for row in range(rows):
            for ahead in range(width):
                seen = int(of.lengths[row]) + ahead + 1
                k, v = both[:, row, :, :seen].transpose(1, 2)
                torch.testing.assert_close(
                    torch.stack([k[-1], v[-1]]), new[row * width + ahead]
                )  # it was written where it is read
                some = None if bias is None else bias[row, :, ahead, :seen]
                expected = naive(q[row * width + ahead], k, v, 0.3, some)
                torch.testing.assert_close(out[row, ahead], expected, atol=1e-5, rtol=1e-5)
                if seen > 1:  # the control: one key fewer is another mixture
                    fewer = naive(
                        q[row * width + ahead],
                        k[1:],
                        v[1:],
                        0.3,
                        None if some is None else some[:, 1:],
                    )
                    assert not torch.allclose(out[row, ahead], fewer, atol=1e-5)
        of.advance(torch.full((rows,), width))


@pytest.mark.parametrize("few", [0, 1000])
@pytest.mark.parametrize("beams", [1, 3])
def test_a_query_reads_its_source_alone(
    monkeypatch: pytest.MonkeyPatch, few: int, beams: int
) -> None:
    monkeypatch.setattr(cache, "FUSED_MAX_ROWS", few)
    torch.manual_seed(0)
    keys, values, layout = packed_keys(HEADS)
    rows = len(LENGTHS)
    of = Cache.of([keys[layout.first]], [values[layout.first]], Packed.of([1] * rows))
    order = torch.tensor([2, 0, 3, 1])
    of.sources = Sources.of([torch.stack([keys, values], 1)], layout, order)
    of.keep(torch.arange(rows).repeat_interleave(beams))
    source = of.append(1).source(0)
    assert source is not None
    q = torch.randn(rows * beams, HEADS, WIDTH)
    out = source(q, None, 0.3)
    for row in range(rows * beams):
        place = int(order[row // beams])
        own = slice(int(layout.first[place]), int(layout.first[place]) + LENGTHS[place])
        expected = naive(q[row], keys[own], values[own], 0.3, None)
        torch.testing.assert_close(out[row], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("few", [0, 1000])
@pytest.mark.parametrize("groups", [6, 2])
@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data(), beams=st.integers(1, 4))
def test_a_beam_reads_what_it_went_on_from_alone(
    monkeypatch: pytest.MonkeyPatch, few: int, groups: int, data: st.DataObject, beams: int
) -> None:
    """Beside a cache in which every beam has a copy of its own keys."""
    monkeypatch.setattr(cache, "FUSED_MAX_ROWS", few)
    monkeypatch.setattr(cache, "BEAM_STEPS", 2)  # what nobody sees is left behind often
    torch.manual_seed(0)
    keys, values, layout = packed_keys(groups)
    copies = Cache.of([keys], [values], layout)
    of = Cache.of([keys], [values], layout).branch(beams)
    copies.keep(torch.arange(len(LENGTHS)).repeat_interleave(beams))
    requests = len(LENGTHS)
    for _ in range(7):
        rows = requests * beams
        q = torch.randn(rows, HEADS, WIDTH)
        new = torch.randn(rows, 2, groups, WIDTH)
        step, plain = of.append(1), copies.append(1)
        assert torch.equal(step.layout.positions, plain.layout.positions)
        expected = plain.layer(0)(q, new, 0.3)
        torch.testing.assert_close(step.layer(0)(q, new, 0.3), expected, atol=1e-5, rtol=1e-5)
        if beams > 1:  # the control: a neighbor's keys make another mixture
            assert not torch.allclose(expected.roll(1, 0), expected, atol=1e-3)
        for one in (of, copies):
            one.advance(torch.ones(rows, dtype=torch.long))
        going = data.draw(st.lists(st.integers(0, requests - 1), unique=True, min_size=1))
        beam = st.lists(st.integers(0, beams - 1), min_size=beams, max_size=beams)
        kept = torch.tensor([one * beams + b for one in sorted(going) for b in data.draw(beam)])
        for one in (of, copies):
            one.keep(kept)
        requests = len(going)


def test_beams_grow_by_one_token_at_a_time() -> None:
    keys, values, layout = packed_keys(HEADS)
    with pytest.raises(ValueError, match="one token at a time, not by 2"):
        Cache.of([keys], [values], layout).branch(2).append(2)
