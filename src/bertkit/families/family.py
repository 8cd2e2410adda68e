"""What a family of models is: data that translates between bertkit and published checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bertkit.models.config import TransformerConfig

Names = Mapping[str, str | tuple[str, ...]]
"""Our weight -> theirs; several of theirs are stacked on the first axis. `{}` is the layer."""


@dataclass(frozen=True)
class Family:
    """How one family of checkpoints is read and written; nothing else differs between families."""

    name: str
    """The `model_type` in `config.json`."""
    read_config: Callable[[Mapping[str, Any]], TransformerConfig]
    write_config: Callable[[TransformerConfig], dict[str, Any]]
    body: Names
    """The encoder's weights, theirs with the prefix of a model that carries heads."""
    prefix: str
    """What a bare encoder's names lack: `bert.`"""
    heads: Mapping[str, Names]
    """For each head bertkit knows, its weights. Heads of one's own keep their names."""
    derived: Mapping[str, str]
    """Names of theirs that hold a copy of another of theirs: checked, not kept."""
    ignored: tuple[str, ...]
    """Names of theirs that hold no weight."""
    architectures: Mapping[frozenset[str], str]
    """Their class for each set of heads."""

    def names(self, ours: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Their names for each of our weights, the layers filled in."""
        return {name: self._theirs(name) for name in ours}

    def _theirs(self, name: str) -> tuple[str, ...]:
        parts = name.split(".")
        layer = ""
        if parts[0] == "heads":
            if parts[1] not in self.heads:  # of a task from outside: it keeps its own names
                return (name,)
            row: str | tuple[str, ...] = self.heads[parts[1]][".".join(parts[2:])]
        else:
            if parts[1] == "blocks":
                layer, parts[2] = parts[2], "{}"
            row = self.body[".".join(parts)]
        return tuple(t.format(layer) for t in ((row,) if isinstance(row, str) else row))

    def read(self, ours: Iterable[str], theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Our weights from theirs, those that are all there; the rest is for the caller to name."""
        found = {}
        for name, rows in self.names(ours).items():
            if all(row in theirs for row in rows):
                pieces = [theirs[row] for row in rows]
                found[name] = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        return found

    def write(self, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Their weights from ours."""
        theirs = {}
        for name, rows in self.names(ours).items():
            for row, piece in zip(rows, ours[name].chunk(len(rows)), strict=True):
                theirs[row] = piece.contiguous()
        return theirs


def module(ours: str, *theirs: str) -> dict[str, str | tuple[str, ...]]:
    """The table's rows of one module: its weight and its bias."""
    table: dict[str, str | tuple[str, ...]] = {}
    for part in ("weight", "bias"):
        names = tuple(f"{name}.{part}" for name in theirs)
        key = f"{ours}.{part}" if ours else part
        table[key] = names[0] if len(names) == 1 else names
    return table
