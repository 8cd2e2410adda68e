"""Layers of a model that are compiled, so that a GPU runs few large kernels in place of many."""

from __future__ import annotations

import torch

from bertkit.models.block import Block
from bertkit.models.model import Model


def compile_blocks(model: Model, *, backend: str = "inductor") -> None:
    """Compile what is around attention in each layer, once for batches of all sizes.

    Attention stays as it is: which kernel runs follows from the lengths of a batch, each of which
    would be compiled anew. What is compiled is thus of tensors and the
    angles of positions alone. Weights keep their names.
    """
    for block in model.modules():
        if isinstance(block, Block):
            for part, name in (
                (block.attention, "project"),
                *((block, name) for name in ("after", "joined", "fed")),
            ):
                made = torch.compile(getattr(part, name), dynamic=True, backend=backend)
                setattr(part, name, made)
