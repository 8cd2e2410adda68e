"""The same vectors as torch's, with sums over tokens that bf16 does not round away."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bertkit.nn.embedding import EmbeddingTable


def tables(rows: int) -> tuple[EmbeddingTable, nn.Embedding]:
    ours, theirs = EmbeddingTable(rows, 8), nn.Embedding(rows, 8)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def gradient(table: nn.Embedding, ids: Tensor, grad: Tensor) -> Tensor:
    table(ids).backward(grad)
    assert table.weight.grad is not None
    return table.weight.grad


def test_bf16_gradients_add_up_in_fp32() -> None:
    """As of segments: few rows, and thousands of tokens in each."""
    ids, grad = torch.randint(0, 2, (8192,)), (torch.randn(8192, 8) + 0.2).bfloat16()
    ours, theirs = (table.bfloat16() for table in tables(5))
    assert torch.equal(ours(ids), theirs(ids))
    exact = torch.zeros(5, 8, dtype=torch.float64).index_add(0, ids, grad.double())
    found, plain = gradient(ours, ids, grad), gradient(theirs, ids, grad)
    assert found.dtype == torch.bfloat16
    assert not found[2:].any()
    assert (found - exact).norm() / exact.norm() < 0.004
    assert (plain - exact).norm() / exact.norm() > 0.03  # the control: torch's own


def test_fp32_is_torchs_own() -> None:
    ids, grad = torch.randint(0, 9, (300,)), torch.randn(300, 8)
    ours, theirs = tables(9)
    assert torch.equal(ours(ids), theirs(ids))
    assert torch.equal(gradient(ours, ids, grad), gradient(theirs, ids, grad))


def test_no_ids_have_no_vectors() -> None:
    table = EmbeddingTable(5, 8).bfloat16()
    none = torch.empty(0, dtype=torch.int64)
    assert not gradient(table, none, torch.empty(0, 8).bfloat16()).any()
