"""Rotary positions: rotation by position, and dot products that depend on distance only."""

from __future__ import annotations

import pytest
import torch

from bertkit.batch import Packed
from bertkit.nn.rotary_positions import FEW_TOKENS, Rotary, rotate

BASE, WIDTH = 100.0, 8


def rotated(qkv: torch.Tensor, layout: Packed) -> torch.Tensor:
    rotary = Rotary.of(layout, BASE, rows=len(qkv), like=qkv, width=WIDTH)
    heads = qkv.shape[2]
    return rotate(qkv.flatten(1, 2), rotary, 2 * heads).unflatten(1, (3, heads))


def test_rotation_matches_formula() -> None:
    """Each pair of values is a complex number, rotated by position / base^(2i / K)."""
    layout = Packed.of([3, 5])
    qkv = torch.randn(layout.total + 2, 3, 2, WIDTH, dtype=torch.double)
    actual = rotated(qkv, layout)
    for row in range(layout.total):
        position = float(layout.positions[row])
        for i in range(WIDTH // 2):
            angle = torch.tensor(position / BASE ** (2 * i / WIDTH))
            whole = torch.complex(qkv[row, :2, :, i], qkv[row, :2, :, i + WIDTH // 2])
            whole = whole * torch.exp(1j * angle)
            found = torch.complex(actual[row, :2, :, i], actual[row, :2, :, i + WIDTH // 2])
            torch.testing.assert_close(found, whole, atol=1e-6, rtol=1e-6)
    assert torch.equal(actual[:, 2], qkv[:, 2])  # values are unchanged
    assert torch.equal(actual[layout.total :], qkv[layout.total :])  # padding is unchanged


def test_factor_divides_positions() -> None:
    """With factor 2, position 6 has the rotation of position 3 without a factor."""
    layout, qkv = Packed.of([7]), torch.ones(7, 1, WIDTH, dtype=torch.double)
    halved = Rotary.of(layout, BASE, rows=7, like=qkv, width=WIDTH, factor=2.0)
    whole = Rotary.of(layout, BASE, rows=7, like=qkv, width=WIDTH)
    torch.testing.assert_close(rotate(qkv, halved, 1)[::2], rotate(qkv, whole, 1)[:4])
    assert not torch.allclose(rotate(qkv, halved, 1)[1:], rotate(qkv, whole, 1)[1:])


@pytest.mark.parametrize("rows", [5, FEW_TOKENS, FEW_TOKENS + 1])
def test_few_rows_match_many_rows(rows: int) -> None:
    layout = Packed.of([rows])
    qkv = torch.randn(rows, 7, WIDTH, dtype=torch.double)  # three heads of queries, two of keys
    rotary = Rotary.of(layout, BASE, rows=rows, like=qkv, width=WIDTH)
    expected = rotate(qkv.clone().requires_grad_(), rotary, 5).detach()
    with torch.no_grad():
        torch.testing.assert_close(rotate(qkv, rotary, 5), expected)
        torch.testing.assert_close(rotate(qkv, rotary, 3)[:, :3], expected[:, :3])
        # The other heads are unchanged.
        assert torch.equal(rotate(qkv, rotary, 3)[:, 3:], qkv[:, 3:])
    if rows > 1:
        assert not torch.allclose(expected[:, :5], qkv[:, :5])


def test_products_depend_only_on_distance() -> None:
    layout = Packed.of([20])
    q, k = torch.randn(2, 1, WIDTH, dtype=torch.double)
    qkv = torch.stack([q, k, k]).expand(20, 3, 1, WIDTH)
    actual = rotated(qkv, layout)
    products = actual[:, 0, 0] @ actual[:, 1, 0].T
    for distance in range(-19, 20):
        found = products.diagonal(distance)
        torch.testing.assert_close(found, found[:1].expand_as(found), atol=1e-6, rtol=1e-6)
    assert products.std() > 0.1


def test_gradient_matches_numerical_gradient() -> None:
    layout = Packed.of([2, 3])
    qkv = torch.randn(layout.total, 6, WIDTH, dtype=torch.double, requires_grad=True)
    rotary = Rotary.of(layout, BASE, rows=layout.total, like=qkv, width=WIDTH)
    assert torch.autograd.gradcheck(lambda x: rotate(x, rotary, 4), (qkv,))
