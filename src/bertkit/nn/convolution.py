"""Convolution over the tokens of each sequence."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertkit.batch import Packed, Padded
from bertkit.nn.dropout import Dropout
from bertkit.nn.feedforward import ACTIVATIONS
from bertkit.nn.padding import pad_bucket, unpad_bucket


class Convolution(nn.Module):
    """Convolution over each sequence, which computes norm(y + activation(convolution(x))).

    Each sequence is padded with zeros on both sides.

    Source: He et al. 2021 (DeBERTa), and the models with 0.9 and 1.5 billion weights in
    microsoft/DeBERTa. In these models, x is the output of the embedding, and y is the output of the
    first layer.

    Args:
        width: Hidden size D.
        tokens: Kernel size.
        activation: Name of the activation.
        dropout: Dropout probability.
        norm: Normalization layer.

    Shapes:
        x, y: (R, D).
        returns: (R, D).
    """

    def __init__(
        self, width: int, tokens: int, activation: str, dropout: float, norm: nn.Module
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, width, tokens, padding=tokens // 2)
        self.activation = ACTIVATIONS[activation]
        self.norm, self.dropout = norm, Dropout(dropout)

    def forward(self, x: Tensor, y: Tensor, layout: Packed | Padded) -> Tensor:
        out: Tensor = self.norm(y + self.activation(self.dropout(self._convolve(x, layout))))
        return out

    def _convolve(self, x: Tensor, layout: Packed | Padded) -> Tensor:
        buckets = (layout.bucket,) if isinstance(layout, Padded) else layout.buckets
        sizes = [bucket.tokens for bucket in buckets]
        outputs = []
        for bucket, rows in zip(buckets, x[: layout.total].split(sizes), strict=True):
            padded = pad_bucket(rows, bucket)
            # In a `Padded` layout, the rows of padding tokens are not zero yet.
            if bucket.scatter_indices is None and bucket.padding is not None:
                padded = padded.masked_fill(bucket.padding[:, 0, 0, :, None], 0.0)
            convolved = self.conv(padded.transpose(1, 2)).transpose(1, 2)
            outputs.append(unpad_bucket(convolved.flatten(0, 1), bucket))
        return F.pad(torch.cat(outputs), (0, 0, 0, x.shape[0] - layout.total))
