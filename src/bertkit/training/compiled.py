"""Compilation of Transformer layers. A GPU then runs a few large kernels instead of many small."""

from __future__ import annotations

import torch

from bertkit.models.block import Block
from bertkit.models.model import Model


def compile_blocks(model: Model, *, backend: str = "inductor") -> None:
    """Compile the layers of a model, except the attention kernel.

    The layers are compiled once, for batches of any size. The attention kernel depends on the
    sequence lengths, so it would have to be compiled again for each batch. The names of the weights
    do not change.

    Args:
        model: Model whose layers are replaced in place.
        backend: Backend of `torch.compile`.
    """
    for block in model.modules():
        if isinstance(block, Block):
            for part, name in (
                (block.attention, "project"),
                *((block, name) for name in ("after", "add_attention", "add_feedforward")),
            ):
                compiled = torch.compile(getattr(part, name), dynamic=True, backend=backend)
                setattr(part, name, compiled)
