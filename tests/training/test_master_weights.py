"""fp32 master weights of bf16 models."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from tests.factories import tiny_config, tiny_model

from bertkit.models.model import Model, build
from bertkit.training.master_weights import TOKENS, Masters, find_used_rows


def model() -> Model:
    return tiny_model(20, "mlm", hidden=8)


def nudge(masters: Masters, size: float, times: int) -> None:
    """Run updates that are too small for a bf16 weight of 1."""
    for _ in range(times):
        for p in masters.model.parameters():
            p.grad = torch.full_like(p, size)
        masters.receive_gradients()
        with torch.no_grad():
            for weight in masters.weights.values():
                assert weight.grad is not None
                assert weight.grad.dtype == torch.float32
                weight -= weight.grad
                weight.grad = None
        masters.update_model()


def test_small_updates_accumulate_in_bf16() -> None:
    masters = Masters(model(), torch.bfloat16)
    norm = dict(masters.model.named_parameters())["encoder.embedding.norm.weight"]
    assert torch.equal(norm, torch.ones_like(norm))
    nudge(masters, 1e-4, 300)
    assert norm.dtype == torch.bfloat16
    assert torch.allclose(norm.float(), torch.tensor(0.97), atol=4e-3)
    bf16_only = torch.ones(1, dtype=torch.bfloat16)  # Control: bf16 loses every update.
    for _ in range(300):
        bf16_only -= 1e-4
    assert bf16_only.item() == 1.0


def test_fp32_has_no_copies() -> None:
    masters = Masters(model(), torch.float32)
    for name, p in masters.model.named_parameters():
        assert masters.weights[name] is p
    before = [p.clone() for p in masters.weights.values()]
    nudge(masters, 0.25, 1)
    assert all(
        torch.equal(a - 0.25, b) for a, b in zip(before, masters.model.parameters(), strict=True)
    )


def test_gradients_of_many_batches_accumulate() -> None:
    masters, bf16_only = Masters(model(), torch.bfloat16), torch.zeros((), dtype=torch.bfloat16)
    for _ in range(1000):
        for p in masters.model.parameters():
            p.grad = torch.full_like(p, 0.25)
        masters.receive_gradients()
        bf16_only += 0.25
        assert all(p.grad is None for p in masters.model.parameters())
    for weight in masters.weights.values():
        assert weight.grad is not None
        assert torch.equal(weight.grad, torch.full_like(weight, 250.0))
    assert bf16_only.item() == 64.0  # Control: bf16 loses every addition above 64.


def test_missing_gradients_stay_missing() -> None:
    masters = Masters(model(), torch.bfloat16)
    masters.receive_gradients()
    assert all(weight.grad is None for weight in masters.weights.values())


def test_frozen_weight_exact_in_bf16_has_no_copy() -> None:
    network = model()
    exact, rounded, trained = (
        f"encoder.blocks.0.feedforward.{name}" for name in ("up.weight", "up.bias", "down.weight")
    )
    weights = dict(network.named_parameters())
    with torch.no_grad():
        weights[exact].copy_(weights[exact].bfloat16())
        weights[rounded].fill_(1.0 + 2**-12)
    for name, weight in weights.items():
        weight.requires_grad_(name == trained)
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    masters = Masters(network, torch.bfloat16)
    assert masters.weights[exact] is dict(masters.model.named_parameters())[exact]
    assert masters.weights[rounded].dtype == torch.float32
    assert [name for name, w in masters.weights.items() if w.requires_grad] == [trained]
    whole = masters.whole().state_dict()
    assert all(torch.equal(weight, whole[name]) for name, weight in before.items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_only_used_embedding_rows_are_updated(dtype: torch.dtype) -> None:
    network = tiny_model(20, "nsp", hidden=8)
    before = network.encoder.embedding.tokens.weight.detach().clone()
    rows = find_used_rows(network, [np.array([3, 7, 3]), np.array([11])])
    assert rows[TOKENS].tolist() == [3, 7, 11]
    masters = Masters(network, dtype, rows)
    assert masters.weights[TOKENS].shape == (3, 8)
    nudge(masters, 0.25, 4)
    whole = masters.whole().state_dict()[TOKENS]
    updated = torch.isin(torch.arange(20), rows[TOKENS])
    assert torch.equal(whole[~updated], before[~updated])  # Exact despite bf16.
    assert torch.allclose(whole[updated], before[updated] - 1.0, atol=1e-6)
    assert torch.equal(masters.model.encoder.embedding.tokens.weight, whole.to(dtype))
    assert torch.equal(masters.get(TOKENS), whole)
    value = torch.randn(20, 8)
    masters.put(TOKENS, value)
    assert torch.equal(masters.get(TOKENS), value)
    assert torch.equal(masters.weights[TOKENS], value[updated])
    assert torch.equal(masters.model.encoder.embedding.tokens.weight, value.to(dtype))


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.bf16)], ids=str
)
def test_only_looked_up_rows_have_a_gradient(dtype: torch.dtype) -> None:
    ids = torch.tensor([3, 11, 7, 3, 3])
    rows, grads = {TOKENS: torch.tensor([3, 5, 7, 11])}, []
    up = torch.randn(5, 8).to(dtype)
    for sparse in (True, False):
        torch.manual_seed(0)
        masters = Masters(tiny_model(20, "nsp", hidden=8), dtype, rows)
        table = masters.model.encoder.embedding.tokens
        with masters.sparse_gradients() if sparse else nullcontext():
            table(ids).backward(up)
        assert table.weight.grad.is_sparse == sparse
        masters.receive_gradients()
        grads.append(masters.weights[TOKENS].grad)
        table(ids).backward(up)
        assert not table.weight.grad.is_sparse  # Gradients outside the context are dense.
    assert torch.equal(*grads)
    assert grads[0].dtype == torch.float32
    assert grads[0].any(1).tolist() == [True, False, True, True]


@pytest.mark.bf16
@pytest.mark.parametrize("computes", [True, False], ids=["head computes", "head idle"])
def test_tied_embedding_gets_the_same_gradient(computes: bool) -> None:
    ids, up, grads = torch.tensor([3, 11, 7, 3, 3]), torch.randn(5, 8).bfloat16(), []
    for sparse in (True, False):
        torch.manual_seed(0)
        masters = Masters(tiny_model(20, "nsp", "mlm", hidden=8), torch.bfloat16)
        table = masters.model.encoder.embedding.tokens
        with masters.sparse_gradients() if sparse else nullcontext():
            assert table.sparse == sparse
            words = table.weight.sin().sum() if computes else 0.0
            ((table(ids) * up).sum() + words).backward()
        assert table.weight.grad.is_sparse == (sparse and not computes)
        masters.receive_gradients()
        grads.append(masters.weights[TOKENS].grad)
    assert torch.equal(*grads)
    assert bool(grads[0].any(1).all()) == computes


def test_find_used_rows_skips_tied_embeddings() -> None:
    ids = [np.array([3, 7])]
    network = tiny_model(20, "nsp")
    assert TOKENS in find_used_rows(network, ids)
    assert TOKENS in find_used_rows(network, [np.arange(10)])
    assert find_used_rows(network, [np.arange(11)]) == {}
    assert find_used_rows(tiny_model(20, "nsp", "mlm"), ids) == {}
    within = Model(
        network.encoder, {"own": torch.nn.Sequential(tiny_model(20, "mlm").heads["mlm"])}
    )
    assert find_used_rows(within, ids) == {}
    decoder = tiny_config(20, **{"attention.cross": True, "attention.causal": True})
    assert find_used_rows(build(tiny_config(20), decoder=decoder), ids) == {}


def test_frozen_embedding_has_no_trained_rows() -> None:
    network = tiny_model(20, "nsp")
    table = network.encoder.embedding.tokens.weight.requires_grad_(False)
    masters = Masters(network, torch.float32, find_used_rows(network, [np.array([3, 7])]))
    assert masters.weights[TOKENS] is table
