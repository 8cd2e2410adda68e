"""A convolution over the tokens of each sequence."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertkit.batch import Packed, Padded
from bertkit.nn.dropout import Dropout
from bertkit.nn.feedforward import ACTIVATIONS
from bertkit.nn.padding import picked, rectangle


class Convolution(nn.Module):
    """norm(y + activation(convolution(x))): each token reads its neighbors, which are zero behind
    the ends of its sequence. Shapes: x and y (R, D) -> (R, D).

    Source: He et al. 2021 (DeBERTa), the models of 0.9 and 1.5 billion weights of
    microsoft/DeBERTa, where x is the embedding and y the states of the first layer.
    """

    def __init__(
        self, width: int, tokens: int, activation: str, dropout: float, norm: nn.Module
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, width, tokens, padding=tokens // 2)
        self.activation = ACTIVATIONS[activation]
        self.norm, self.dropout = norm, Dropout(dropout)

    def forward(self, x: Tensor, y: Tensor, layout: Packed | Padded) -> Tensor:
        out: Tensor = self.norm(y + self.activation(self.dropout(self._over(x, layout))))
        return out

    def _over(self, x: Tensor, layout: Packed | Padded) -> Tensor:
        buckets = (layout.bucket,) if isinstance(layout, Padded) else layout.buckets
        sizes = [bucket.tokens for bucket in buckets]
        done = []
        for bucket, part in zip(buckets, x[: layout.total].split(sizes), strict=True):
            row = rectangle(part, bucket)
            # The padding of a `Padded` layout is not zero.
            if bucket.scatter_indices is None and bucket.padding is not None:
                row = row.masked_fill(bucket.padding[:, 0, 0, :, None], 0.0)
            read = self.conv(row.transpose(1, 2)).transpose(1, 2)
            done.append(picked(read.flatten(0, 1), bucket))
        return F.pad(torch.cat(done), (0, 0, 0, x.shape[0] - layout.total))
