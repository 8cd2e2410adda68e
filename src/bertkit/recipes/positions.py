"""Let a model read longer texts than it was pretrained for: more learned positions."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Literal

import torch
from msgspec import structs
from torch import Tensor, nn
from torch.nn import functional as F

from bertkit.checkpoint.folder import load, resave
from bertkit.errors import ConfigError
from bertkit.storage import refuse_used


def extend_positions(
    model: str | Path, /, *, length: int, out: Path, how: Literal["tile", "interpolate"] = "tile"
) -> dict[str, Any]:
    """Let a model read longer texts.

    `tile` repeats those there are (Beltagy et al. 2020, section 5), so that texts as short as
    before read the same; `interpolate` stretches them. Either way the new ones are a start: go on
    with `adapt` on long texts.
    Raises: ConfigError for a model without learned positions or with as many already.

    Args:
        model: A model folder or hub id.
        length: Tokens of the longest sequence.
        out: The folder of the longer model, to be made. Go on with adapt, on long texts.
        how: Repeat the positions there are, or stretch them.
    """
    refuse_used(out)
    loaded = load(model)
    old = loaded.model.encoder.embedding.positions
    if old is None:
        raise ConfigError(
            f"{model}: a {loaded.family.name} model turns by its positions and has none to extend"
        )
    had = old.weight.shape[0]
    if length <= had:
        raise ConfigError(f"length: {length}; the model has {had} positions already")
    longer = copy.deepcopy(loaded.model)
    longer.encoder.config = structs.replace(loaded.model.config, max_positions=length)
    longer.encoder.embedding.positions = nn.Embedding.from_pretrained(
        tiled(old.weight.detach(), length)
        if how == "tile"
        else interpolated(old.weight.detach(), length),
        freeze=False,
    )
    resave(loaded, longer, out, length=length)
    return {"positions": {"before": had, "after": length}}


def tiled(rows: Tensor, length: int) -> Tensor:
    """The rows again and again. Shapes: (T, E) -> (length, E)."""
    return rows[torch.arange(length) % rows.shape[0]]


def interpolated(rows: Tensor, length: int) -> Tensor:
    """The rows stretched, first and last where they were. Shapes: (T, E) -> (length, E)."""
    found = F.interpolate(rows.T[None], size=length, mode="linear", align_corners=True)
    return found[0].T.contiguous()
