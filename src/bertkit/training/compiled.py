"""Compilation of Transformer layers, so that a GPU runs few large kernels."""

from __future__ import annotations

import torch

from bertkit.models.block import Block
from bertkit.models.model import Model


def compile_blocks(model: Model, *, backend: str = "inductor") -> None:
    """Compile each layer except the attention kernel, once for batches of all sizes.

    The attention kernel depends on the sequence lengths, so it would be recompiled for each batch.
    The names of the weights do not change.

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
