"""bf16 weights that work, fp32 weights that learn."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertkit.models.heads import LanguageModelHead
from bertkit.models.model import Model
from bertkit.models.transformer import Transformer
from bertkit.nn.embedding import EmbeddingTable
from bertkit.nn.precision import add_up

TOKENS = "encoder.embedding.tokens.weight"
"""The name of the table of tokens."""


class Masters:
    """The weights an optimizer moves: the model's own in fp32, or fp32 copies of bf16 ones.

    Small updates would vanish in bf16's eight bits; in the copies they add up. A frozen weight that
    bf16 holds exactly needs no copy. Of a table that `rows` names these rows alone learn, and the
    weight that an optimizer moves has them alone; the others stay as they are.
    Source: Micikevicius et al. 2018, section 3.1.
    """

    def __init__(
        self, model: Model, dtype: torch.dtype, rows: Mapping[str, Tensor] | None = None
    ) -> None:
        self.model, self.dtype = model, dtype
        self.working = dict(model.named_parameters())
        """Those that the model computes with."""
        self.weights: dict[str, Tensor] = dict(self.working)
        if dtype != torch.float32:
            fp32 = {name: _master(p, dtype) for name, p in self.working.items()}
            model.to(dtype)
            self.weights |= {n: w for n, w in fp32.items() if w is not None}
        self.rows = {n: r for n, r in (rows or {}).items() if self.working[n].requires_grad}
        self._tables = {name: self.weights[name].detach() for name in self.rows}
        for name, table in self._tables.items():
            self.weights[name] = table[self.rows[name]].requires_grad_()
        own: list[Tensor] = [self.working[name] for name in self.rows]
        if dtype != torch.float32:  # else the optimizer itself would meet gradients of rows
            heads = (head for head in model.modules() if isinstance(head, LanguageModelHead))
            own += [head.weight for head in heads]
        self._lookups = [
            module
            for module in model.modules()
            if isinstance(module, EmbeddingTable)
            and any(module.weight is weight for weight in own)
            and module.weight.device.type == "cpu"  # a GPU would have to be waited for
        ]

    @contextmanager
    def gradients_of_rows(self) -> Iterator[None]:
        """Of a table of which rows learn, and of one that a head of words shares, gradients hold
        the vectors that were looked up alone: others would be zeros, which take time to write and
        to add to what the head has.
        """
        for table in self._lookups:
            table.sparse = True
        try:
            yield
        finally:
            for table in self._lookups:
                table.sparse = False

    def whole(self) -> Model:
        """The model in fp32, with the weights that learn: what is saved."""
        if self.dtype == torch.float32:
            return self.model
        model = copy.deepcopy(self.model).float()
        model.load_state_dict({name: self.get(name) for name in self.weights}, strict=False)
        return model

    def get(self, name: str) -> Tensor:
        """A weight as it is saved: a table with all its rows."""
        weight = self.weights[name].detach()
        if name not in self.rows:
            return weight
        return self._tables[name].index_copy(0, self.rows[name], weight)

    @torch.no_grad()
    def put(self, name: str, value: Tensor) -> None:
        """Make it that; a table with all its rows."""
        if name in self.rows:
            self._tables[name].copy_(value)
            self.working[name].copy_(value)
            value = value[self.rows[name].to(value.device)]
        self.weights[name].copy_(value)

    @torch.no_grad()
    def receive_gradients(self) -> None:
        """Add the gradients of the working weights to those of the masters, in fp32.

        After each batch of a step: in bf16 the later ones of hundreds would vanish in the sum.
        """
        for name, p in self.working.items():
            weight = self.weights[name]
            if p.grad is None or weight is p:
                continue
            rows = self.rows.get(name)
            if rows is None:  # of a head of words that computed nothing, zeros are all there is
                gradient = p.grad.to_dense() if p.grad.is_sparse else p.grad
            else:
                gradient = _of_rows(p.grad, rows)
            weight.grad = add_up(weight.grad, gradient).float()
            p.grad = None

    @torch.no_grad()
    def update_model(self) -> None:
        """Copy the masters to the working weights; frozen ones never differ."""
        for name, rows in self.rows.items():
            self.working[name].index_copy_(0, rows, self.weights[name].to(self.dtype))
        copies = [
            (p, self.weights[name])
            for name, p in self.working.items()
            if p.requires_grad and self.weights[name] is not p and name not in self.rows
        ]
        if copies:
            torch._foreach_copy_([p for p, _ in copies], [w for _, w in copies])


def rows_read(model: Model, ids: Sequence[NDArray[np.int64]]) -> dict[str, Tensor]:
    """The rows of the table of tokens that sequences of these read, where they are few and nothing
    else learns from the table: no decoder and no head of words.

    The others get no gradient, and are most of a small model's weights; left out of `Masters`, they
    cost a step no time. Where more than half are read, none are named: a copy of them costs more.
    """
    words = any(isinstance(module, LanguageModelHead) for module in model.modules())
    if model.decoder is not None or words or not isinstance(model.encoder, Transformer):
        return {}
    table = model.encoder.embedding.tokens.weight
    rows = torch.from_numpy(np.flatnonzero(np.bincount(np.concatenate(ids))))
    return {TOKENS: rows.to(table.device)} if 2 * len(rows) <= len(table) else {}


def _of_rows(gradient: Tensor, rows: Tensor) -> Tensor:
    """A table's gradient at these rows, which are sorted and all that it is not zero at."""
    if not gradient.is_sparse:
        return gradient.index_select(0, rows)
    gradient = gradient.coalesce()
    there, (used,) = gradient.values(), gradient.indices()
    zeros = there.new_zeros(len(rows), *there.shape[1:])
    return zeros.index_copy_(0, torch.searchsorted(rows, used), there)


def _master(p: Tensor, dtype: torch.dtype) -> Tensor | None:
    """The fp32 copy of a weight; None for one that is frozen and none the worse in the `dtype`."""
    if p.requires_grad:
        return p.detach().float().clone().requires_grad_()
    return None if torch.equal(p.detach().to(dtype).float(), p) else p.detach().float()
