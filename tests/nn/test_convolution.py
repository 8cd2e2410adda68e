"""The convolution layer keeps sequences separate in packed and padded layouts."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bertkit.batch import Packed, Padded
from bertkit.nn.convolution import Convolution

SIZES = [1, 3, 17, 20, 20, 40]


def make_inputs() -> tuple[Convolution, Packed, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    layout = Packed.of(SIZES)
    x, y = torch.randn(2, layout.total + 3, 8)  # three rows of padding follow
    return Convolution(8, 3, "gelu", 0.0, nn.LayerNorm(8)), layout, x, y


def test_packed_sequences_are_convolved_separately() -> None:
    convolution, layout, x, y = make_inputs()
    with torch.no_grad():
        actual = convolution(x, y, layout)
        assert actual.shape == x.shape
        for start, size in zip(layout.first.tolist(), SIZES, strict=True):
            part = slice(start, start + size)
            read = convolution.conv(x[part].T[None])[0].T
            expected = convolution.norm(y[part] + nn.functional.gelu(read))
            torch.testing.assert_close(actual[part], expected)
        across = convolution.conv(x[: layout.total].T[None])[0].T  # the control: over the ends
        wrong = convolution.norm(y[: layout.total] + nn.functional.gelu(across))
        assert (actual[: layout.total] - wrong).abs().max() > 0.01


def test_padding_counts_as_zeros() -> None:
    convolution, layout, x, y = make_inputs()
    mask = torch.arange(max(SIZES)) < torch.tensor(SIZES)[:, None]
    rows = [torch.randn(*mask.shape, 8) for _ in range(2)]
    for row, packed in zip(rows, (x, y), strict=True):
        row[mask] = packed[: layout.total]
    padded: Any = Padded(mask)
    with torch.no_grad():
        actual = convolution(*(row.flatten(0, 1) for row in rows), padded).view(*mask.shape, 8)
        torch.testing.assert_close(actual[mask], convolution(x, y, layout)[: layout.total])
