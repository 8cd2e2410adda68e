"""A convolution reads each sequence as if it were alone, in either layout."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bertkit.batch import Packed, Padded
from bertkit.nn.convolution import Convolution

SIZES = [1, 3, 17, 20, 20, 40]


def made() -> tuple[Convolution, Packed, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    layout = Packed.of(SIZES)
    x, y = torch.randn(2, layout.total + 3, 8)  # three rows of padding behind
    return Convolution(8, 3, "gelu", 0.0, nn.LayerNorm(8)), layout, x, y


def test_each_sequence_is_read_alone() -> None:
    convolution, layout, x, y = made()
    with torch.no_grad():
        found = convolution(x, y, layout)
        assert found.shape == x.shape
        for start, size in zip(layout.first.tolist(), SIZES, strict=True):
            part = slice(start, start + size)
            read = convolution.conv(x[part].T[None])[0].T
            wanted = convolution.norm(y[part] + nn.functional.gelu(read))
            torch.testing.assert_close(found[part], wanted)
        across = convolution.conv(x[: layout.total].T[None])[0].T  # the control: over the ends
        wrong = convolution.norm(y[: layout.total] + nn.functional.gelu(across))
        assert (found[: layout.total] - wrong).abs().max() > 0.01


def test_padding_is_read_as_zeros() -> None:
    convolution, layout, x, y = made()
    mask = torch.arange(max(SIZES)) < torch.tensor(SIZES)[:, None]
    rows = [torch.randn(*mask.shape, 8) for _ in range(2)]
    for row, packed in zip(rows, (x, y), strict=True):
        row[mask] = packed[: layout.total]
    padded: Any = Padded(mask)
    with torch.no_grad():
        found = convolution(*(row.flatten(0, 1) for row in rows), padded).view(*mask.shape, 8)
        torch.testing.assert_close(found[mask], convolution(x, y, layout)[: layout.total])
