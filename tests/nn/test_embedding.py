"""EmbeddingTable matches torch.nn.Embedding and accumulates bf16 gradients in fp32."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bertkit.nn.embedding import EmbeddingTable


def tables(rows: int) -> tuple[EmbeddingTable, nn.Embedding]:
    bertkit_table, torch_table = EmbeddingTable(rows, 8), nn.Embedding(rows, 8)
    torch_table.load_state_dict(bertkit_table.state_dict())
    return bertkit_table, torch_table


def gradient(table: nn.Embedding, ids: Tensor, grad: Tensor) -> Tensor:
    table(ids).backward(grad)
    assert table.weight.grad is not None
    return table.weight.grad


def test_bf16_gradients_accumulate_in_fp32() -> None:
    """Token types are an example: few rows with thousands of tokens each."""
    ids, grad = torch.randint(0, 2, (8192,)), (torch.randn(8192, 8) + 0.2).bfloat16()
    bertkit_table, torch_table = (table.bfloat16() for table in tables(5))
    assert torch.equal(bertkit_table(ids), torch_table(ids))
    exact = torch.zeros(5, 8, dtype=torch.float64).index_add(0, ids, grad.double())
    actual, plain = gradient(bertkit_table, ids, grad), gradient(torch_table, ids, grad)
    assert actual.dtype == torch.bfloat16
    assert not actual[2:].any()
    assert (actual - exact).norm() / exact.norm() < 0.004
    assert (plain - exact).norm() / exact.norm() > 0.03  # the control: torch.nn.Embedding


def test_fp32_matches_torch() -> None:
    ids, grad = torch.randint(0, 9, (300,)), torch.randn(300, 8)
    bertkit_table, torch_table = tables(9)
    assert torch.equal(bertkit_table(ids), torch_table(ids))
    assert torch.equal(gradient(bertkit_table, ids, grad), gradient(torch_table, ids, grad))


def test_empty_ids_have_zero_gradient() -> None:
    table = EmbeddingTable(5, 8).bfloat16()
    no_ids = torch.empty(0, dtype=torch.int64)
    assert not gradient(table, no_ids, torch.empty(0, 8).bfloat16()).any()
