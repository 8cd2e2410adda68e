"""Mixed precision: fp32 master weights of a model that computes in bf16."""

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
"""Name of the token embedding matrix."""


class Masters:
    """Weights that the optimizer updates: fp32 weights, or fp32 copies of bf16 weights.

    Small updates would be lost in the 8 significant bits of bf16; the fp32 copies accumulate them.
    A frozen weight that bf16 represents exactly needs no copy.

    Args:
        model: The model, which is converted to `dtype`.
        dtype: Precision in which the model computes.
        rows: Indices of the rows to train, by the name of an embedding matrix. The master weight
            contains only these rows; the other rows do not change.

    Source: Micikevicius et al. 2018, section 3.1.
    """

    def __init__(
        self, model: Model, dtype: torch.dtype, rows: Mapping[str, Tensor] | None = None
    ) -> None:
        self.model, self.dtype = model, dtype
        self.working = dict(model.named_parameters())
        """Weights that the model computes with, by name."""
        self.weights: dict[str, Tensor] = dict(self.working)
        if dtype != torch.float32:
            fp32 = {name: _master(p, dtype) for name, p in self.working.items()}
            model.to(dtype)
            self.weights |= {n: w for n, w in fp32.items() if w is not None}
        self.rows = {n: r for n, r in (rows or {}).items() if self.working[n].requires_grad}
        self._tables = {name: self.weights[name].detach() for name in self.rows}
        for name, table in self._tables.items():
            self.weights[name] = table[self.rows[name]].requires_grad_()
        sparse: list[Tensor] = [self.working[name] for name in self.rows]
        # In fp32, the optimizer would get the sparse gradients, which it does not support.
        if dtype != torch.float32:
            heads = (head for head in model.modules() if isinstance(head, LanguageModelHead))
            sparse += [head.weight for head in heads]
        self._lookups = [
            module
            for module in model.modules()
            if isinstance(module, EmbeddingTable)
            and any(module.weight is weight for weight in sparse)
            # On a GPU, sparse gradients would require a synchronization.
            and module.weight.device.type == "cpu"
        ]

    @contextmanager
    def sparse_gradients(self) -> Iterator[None]:
        """Compute sparse gradients of embedding matrices in a context.

        This applies to matrices with trained `rows`, and to matrices that are tied to an LM head.
        Dense gradients would be mostly zeros, which take time to write and to add.
        """
        for table in self._lookups:
            table.sparse = True
        try:
            yield
        finally:
            for table in self._lookups:
                table.sparse = False

    def whole(self) -> Model:
        """Return the model in fp32, with the master weights, to be saved."""
        if self.dtype == torch.float32:
            return self.model
        model = copy.deepcopy(self.model).float()
        model.load_state_dict({name: self.get(name) for name in self.weights}, strict=False)
        return model

    def get(self, name: str) -> Tensor:
        """Return a weight as it is saved: an embedding matrix with all its rows."""
        weight = self.weights[name].detach()
        if name not in self.rows:
            return weight
        return self._tables[name].index_copy(0, self.rows[name], weight)

    @torch.no_grad()
    def put(self, name: str, value: Tensor) -> None:
        """Set a weight. The value of an embedding matrix has all its rows."""
        if name in self.rows:
            self._tables[name].copy_(value)
            self.working[name].copy_(value)
            value = value[self.rows[name].to(value.device)]
        self.weights[name].copy_(value)

    @torch.no_grad()
    def receive_gradients(self) -> None:
        """Add the gradients of the model's weights to the gradients of the masters, in fp32.

        This must be called after each batch of a step. In bf16, a sum over hundreds of batches
        would lose the later gradients.
        """
        for name, p in self.working.items():
            weight = self.weights[name]
            if p.grad is None or weight is p:
                continue
            rows = self.rows.get(name)
            if rows is None:
                # The gradient is sparse if the matrix is tied to an LM head that was not used.
                gradient = p.grad.to_dense() if p.grad.is_sparse else p.grad
            else:
                gradient = _select_rows(p.grad, rows)
            weight.grad = add_up(weight.grad, gradient).float()
            p.grad = None

    @torch.no_grad()
    def update_model(self) -> None:
        """Copy the masters to the model's weights, except frozen weights, which never differ."""
        for name, rows in self.rows.items():
            self.working[name].index_copy_(0, rows, self.weights[name].to(self.dtype))
        copies = [
            (p, self.weights[name])
            for name, p in self.working.items()
            if p.requires_grad and self.weights[name] is not p and name not in self.rows
        ]
        if copies:
            torch._foreach_copy_([p for p, _ in copies], [w for _, w in copies])


def find_used_rows(model: Model, ids: Sequence[NDArray[np.int64]]) -> dict[str, Tensor]:
    """Find the token embeddings that the training data uses, so that only these are trained.

    The other embeddings get no gradient, but are most of a small model's weights. Training only the
    used rows saves the time of updating the other rows in each step.

    Args:
        model: The model.
        ids: Token ids of the training sequences.

    Returns:
        Row indices for `Masters`. Empty if a decoder or an LM head uses the matrix, or if more than
        half of the rows are used: copying them would cost more time than it saves.
    """
    has_lm_head = any(isinstance(module, LanguageModelHead) for module in model.modules())
    if model.decoder is not None or has_lm_head or not isinstance(model.encoder, Transformer):
        return {}
    table = model.encoder.embedding.tokens.weight
    rows = torch.from_numpy(np.flatnonzero(np.bincount(np.concatenate(ids))))
    return {TOKENS: rows.to(table.device)} if 2 * len(rows) <= len(table) else {}


def _select_rows(gradient: Tensor, rows: Tensor) -> Tensor:
    """Return rows of an embedding gradient. `rows` is sorted and contains all nonzero rows."""
    if not gradient.is_sparse:
        return gradient.index_select(0, rows)
    gradient = gradient.coalesce()
    values, (used,) = gradient.values(), gradient.indices()
    zeros = values.new_zeros(len(rows), *values.shape[1:])
    return zeros.index_copy_(0, torch.searchsorted(rows, used), values)


def _master(p: Tensor, dtype: torch.dtype) -> Tensor | None:
    """Return an fp32 copy of a weight, or None if it is frozen and exact in `dtype`."""
    if p.requires_grad:
        return p.detach().float().clone().requires_grad_()
    return None if torch.equal(p.detach().to(dtype).float(), p) else p.detach().float()
