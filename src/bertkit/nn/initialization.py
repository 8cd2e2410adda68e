"""Weight initialization."""

from __future__ import annotations

import torch
from torch import nn

from bertkit.nn.attention import Attention, CrossAttention
from bertkit.nn.crf import CRF
from bertkit.nn.feedforward import FeedForward


@torch.no_grad()
def initialize(module: nn.Module, std: float | None = 0.02) -> None:
    """Initialize the weights of a module as in BERT.

    Matrices are sampled from a normal distribution that is truncated at two standard deviations.
    Biases are set to 0, and the weights of norms to 1. The embedding of the padding token is
    sampled like any other. All scores of a CRF are set to 0, so that it is equivalent to a softmax
    for each word. LSTMs and GRUs are initialized by torch, uniformly from -1/√D to 1/√D. Source:
    google-research/bert, `create_initializer` (truncated normal, 0.02).

    Args:
        module: The module to initialize.
        std: Standard deviation. If None, the standard deviation for a matrix is 1/√(number of its
            inputs). The outputs then have about the same norm as the inputs (LeCun et al. 1998,
            "Efficient BackProp", section 4.6).
    """
    for part in module.modules():
        if isinstance(part, nn.LSTM | nn.GRU):
            part.reset_parameters()
            continue
        for name, weight in part.named_parameters(recurse=False):
            if weight.ndim > 1 and not isinstance(part, CRF):
                size = weight.shape[-1] ** -0.5 if std is None else std
                nn.init.trunc_normal_(weight, std=size, a=-2 * size, b=2 * size)
            # A vector with the name `weight` belongs to a norm.
            else:
                weight.fill_(1.0 if name == "weight" else 0.0)


@torch.no_grad()
def zero_init_residuals(module: nn.Module) -> None:
    """Set the output matrices of attention layers and feed-forward networks to 0.

    At the start of training, each layer then adds nothing to the residual stream. Source: Zhang et
    al. 2019 (Fixup), section 3.

    Args:
        module: The module to initialize.
    """
    for part in module.modules():
        if isinstance(part, Attention | CrossAttention):
            part.out.weight.zero_()
        elif isinstance(part, FeedForward):
            part.down.weight.zero_()
