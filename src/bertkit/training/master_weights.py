"""Mixed precision: fp32 master weights for a model that computes in bf16."""

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
    """Master weights, which the optimizer updates.

    If the model computes in fp32, they are the weights of the model. If it computes in bf16, they
    are fp32 copies of its weights, because bf16 has only 8 significant bits and would lose small
    updates. A frozen weight that bf16 represents exactly needs no copy.

    Args:
        model: The model, which is converted to `dtype`.
        dtype: Precision in which the model computes.
        rows: For an embedding matrix, by its name, the indices of the rows to train. The master
            weight contains only these rows, and all other rows do not change.

    Source: Micikevicius et al. 2018, section 3.1.
    """

    def __init__(
        self, model: Model, dtype: torch.dtype, rows: Mapping[str, Tensor] | None = None
    ) -> None:
        self.model, self.dtype = model, dtype
        self.working = dict(model.named_parameters())
        """Weights with which the model computes, by name."""
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
        # In fp32, the optimizer would receive the sparse gradients, which it does not support.
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
        """Within a context, compute sparse gradients for some embedding matrices.

        These are the matrices of which only some `rows` are trained and, unless the model computes
        in fp32, the matrices that are tied to an LM head. Their dense gradients would be mostly
        zeros, which take time to write and to add.
        """
        for table in self._lookups:
            table.sparse = True
        try:
            yield
        finally:
            for table in self._lookups:
                table.sparse = False

    def whole(self) -> Model:
        """Return an fp32 model with the master weights, which can be saved."""
        if self.dtype == torch.float32:
            return self.model
        model = copy.deepcopy(self.model).float()
        model.load_state_dict({name: self.get(name) for name in self.weights}, strict=False)
        return model

    def get(self, name: str) -> Tensor:
        """Return a weight as it is saved. An embedding matrix is returned with all its rows."""
        weight = self.weights[name].detach()
        if name not in self.rows:
            return weight
        return self._tables[name].index_copy(0, self.rows[name], weight)

    @torch.no_grad()
    def put(self, name: str, value: Tensor) -> None:
        """Set a weight. The value of an embedding matrix must contain all its rows."""
        if name in self.rows:
            self._tables[name].copy_(value)
            self.working[name].copy_(value)
            value = value[self.rows[name].to(value.device)]
        self.weights[name].copy_(value)

    @torch.no_grad()
    def receive_gradients(self) -> None:
        """Add the gradients of the model to the gradients of the master weights, in fp32.

        Call this method after each batch of a step. In bf16, a sum over hundreds of batches would
        lose the later gradients.
        """
        for name, p in self.working.items():
            weight = self.weights[name]
            if p.grad is None or weight is p:
                continue
            rows = self.rows.get(name)
            if rows is None:
                # The gradient is sparse if the matrix is tied to an LM head that the batch did not
                # use.
                gradient = p.grad.to_dense() if p.grad.is_sparse else p.grad
            else:
                gradient = _select_rows(p.grad, rows)
            weight.grad = add_up(weight.grad, gradient).float()
            p.grad = None

    @torch.no_grad()
    def update_model(self) -> None:
        """Copy the master weights to the model, except frozen weights, which do not change."""
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

    The other embeddings receive no gradient, but in a small model they are most of the weights.
    Training only the rows that are used saves the time for updating the others in each step.

    Args:
        model: The model.
        ids: Token ids of the training sequences.

    Returns:
        The argument `rows` of `Masters`. It is empty if a decoder or an LM head uses the embedding
        matrix. It is also empty if more than half of the rows are used, because copying the rows
        would then take more time than it saves.
    """
    has_lm_head = any(isinstance(module, LanguageModelHead) for module in model.modules())
    if model.decoder is not None or has_lm_head or not isinstance(model.encoder, Transformer):
        return {}
    table = model.encoder.embedding.tokens.weight
    rows = torch.from_numpy(np.flatnonzero(np.bincount(np.concatenate(ids))))
    return {TOKENS: rows.to(table.device)} if 2 * len(rows) <= len(table) else {}


def _select_rows(gradient: Tensor, rows: Tensor) -> Tensor:
    """Return rows of the gradient of an embedding matrix as a dense tensor.

    `rows` must be sorted, and contain all rows that are not zero.
    """
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
