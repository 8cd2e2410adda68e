"""Where weights begin."""

from __future__ import annotations

import torch
from torch import nn

from bertkit.nn.attention import Attention, CrossAttention
from bertkit.nn.crf import CRF
from bertkit.nn.feedforward import FeedForward


@torch.no_grad()
def initialize(module: nn.Module, std: float | None = 0.02) -> None:
    """BERT's start: matrices from a normal cut at two standard deviations, biases 0, norms 1.

    The scores of a CRF are 0: it begins as a softmax for each word. LSTMs and GRUs begin as
    torch's own, uniform up to 1/√D. Without `std` each matrix gets 1/√(its inputs), so that it
    nearly keeps the size of what it reads (LeCun et al. 1998, "Efficient BackProp", section 4.6).
    Source: google-research/bert, `create_initializer` (truncated normal, 0.02). The padding row
    is drawn like any other, as there.
    """
    for part in module.modules():
        if isinstance(part, nn.LSTM | nn.GRU):
            part.reset_parameters()
            continue
        for name, weight in part.named_parameters(recurse=False):
            if weight.ndim > 1 and not isinstance(part, CRF):
                size = weight.shape[-1] ** -0.5 if std is None else std
                nn.init.trunc_normal_(weight, std=size, a=-2 * size, b=2 * size)
            else:  # the vectors called weight are those of norms
                weight.fill_(1.0 if name == "weight" else 0.0)


@torch.no_grad()
def begin_at_zero(module: nn.Module) -> None:
    """Let every layer add nothing at first: the last matrices of attention and feed-forward
    networks are 0.

    Source: Zhang et al. 2019 (Fixup), section 3.
    """
    for part in module.modules():
        if isinstance(part, Attention | CrossAttention):
            part.out.weight.zero_()
        elif isinstance(part, FeedForward):
            part.down.weight.zero_()
