"""Training steps: batch splitting, random state, gradients, and evaluation."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.factories import tiny_model
from torch import Tensor

from bertkit.batch import Batch
from bertkit.data.collate import collate
from bertkit.data.samples import Sample
from bertkit.errors import TrainingError
from bertkit.models.model import Model
from bertkit.nn.embedding import EmbeddingTable
from bertkit.nn.norm import LayerNorm
from bertkit.objectives.loss import Loss, totals
from bertkit.objectives.pretrain import pretrain
from bertkit.training.loop import Step, evaluate, steps
from bertkit.training.master_weights import TOKENS, Masters
from bertkit.training.optimizer import adamw

VOCAB = 40


def samples(count: int, seed: int) -> list[Sample]:
    rng = np.random.default_rng(seed)
    collected = []
    for _ in range(count):
        length = int(rng.integers(6, 16))
        masked_positions = np.arange(1, length, 4)
        collected.append(
            Sample(
                ids=rng.integers(5, VOCAB, length),
                types=(np.arange(length) > 3).astype(np.int64),
                masked_positions=masked_positions,
                labels=rng.integers(5, VOCAB, len(masked_positions)),
                pair=int(rng.integers(2)),
            )
        )
    return collected


def groups(max_batch_tokens: int, count: int = 3) -> list[list[Batch]]:
    return [
        collate(samples(8, i), head="nsp", max_batch_tokens=max_batch_tokens) for i in range(count)
    ]


def model(dropout: float = 0.0) -> Model:
    return tiny_model(VOCAB, "mlm", "nsp", length=16, dropout=dropout)


def train(
    network: Model,
    batches: Sequence[Sequence[Batch]],
    *,
    start: int = 0,
    seed: int = 0,
    rows: Mapping[str, Tensor] | None = None,
) -> list[Step]:
    masters = Masters(network, torch.float32, rows)
    optimizer = adamw(masters.weights, learning_rate=1e-3, weight_decay=0.01)
    return list(
        steps(masters, pretrain, batches[start:], optimizer, lambda step: 1.0 / step,
              max_grad_norm=1.0, seed=seed, start=start),
    )  # fmt: skip


def test_dropout_differs_between_steps() -> None:
    batch = collate(samples(8, 0), head="nsp", max_batch_tokens=1024)
    masters = Masters(model(dropout=0.5), torch.float32)
    optimizer = adamw(masters.weights, learning_rate=0.0, weight_decay=0.0)
    losses = [
        step.loss
        for step in steps(
            masters, pretrain, [batch] * 3, optimizer, lambda _: 1.0, max_grad_norm=1.0, seed=0
        )
    ]
    assert len(set(losses)) == 3


def test_step_is_independent_of_batch_splitting() -> None:
    whole, cut = model(), model()
    assert len(groups(16)[0]) > 4 > len(groups(10**6)[0])
    a, b = train(whole, groups(10**6)), train(cut, groups(16))
    for expected, actual in zip(a, b, strict=True):
        assert actual.loss == pytest.approx(expected.loss, rel=1e-5)
        assert actual.gradient_norm == pytest.approx(expected.gradient_norm, rel=1e-4)
        assert actual.accuracy == expected.accuracy
        assert actual.tokens == expected.tokens
    for p, q in zip(whole.parameters(), cut.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-4, rtol=1e-3)


def gradient(dtype: torch.dtype, batches: Sequence[Batch]) -> Tensor:
    """Return the gradient passed to the optimizer as one vector."""
    masters, collected = Masters(model(), dtype), []

    class Keep(torch.optim.SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            collected.extend(
                w.grad.flatten() for w in masters.weights.values() if w.grad is not None
            )

    optimizer = Keep(masters.weights.values(), lr=0.0)
    list(
        steps(masters, pretrain, [batches], optimizer, lambda _: 1.0, max_grad_norm=np.inf, seed=0)
    )
    return torch.cat(collected)


def test_bf16_gradients_accumulate_without_error_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = groups(10**6, 1)[0]
    exact = gradient(torch.float32, batches)

    def error(times: int) -> float:
        """Return the relative bf16 error if the samples are repeated `times` times."""
        return float((gradient(torch.bfloat16, batches * times) - exact).norm() / exact.norm())

    once = error(1)
    assert error(40) < 1.2 * once
    # Control: gradients accumulated in bf16 and moved to the fp32 weights at the end.
    pull, left = Masters.receive_gradients, iter(range(39, -1, -1))
    monkeypatch.setattr(
        Masters, "receive_gradients", lambda masters: None if next(left) else pull(masters)
    )
    assert error(40) > 2 * once


def test_fp32_training_equals_plain_torch_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes for bf16 precision do not change fp32 results."""
    bertkit_model, torch_model = model(dropout=0.1), model(dropout=0.1)
    collected = train(bertkit_model, groups(16))
    monkeypatch.setattr(LayerNorm, "forward", torch.nn.LayerNorm.forward)
    monkeypatch.setattr(EmbeddingTable, "forward", torch.nn.Embedding.forward)
    monkeypatch.setattr(Masters, "receive_gradients", lambda masters: None)
    plain = train(torch_model, groups(16))
    assert [s.loss for s in collected] == [s.loss for s in plain]
    assert all(
        torch.equal(a, b)
        for a, b in zip(bertkit_model.parameters(), torch_model.parameters(), strict=True)
    )
    other = model(dropout=0.1)  # Control: another split changes the order of sums.
    train(other, groups(10**6))
    pairs = zip(bertkit_model.parameters(), other.parameters(), strict=True)
    assert not all(torch.equal(a, b) for a, b in pairs)


def test_dropout_depends_only_on_seed_and_step() -> None:
    network = model(dropout=0.3)
    first = train(copy.deepcopy(network), groups(64))
    torch.rand(7)  # Other uses of the global generator do not matter.
    again = train(copy.deepcopy(network), groups(64))
    other = train(copy.deepcopy(network), groups(64), seed=1)
    assert [s.loss for s in first] == [s.loss for s in again]
    assert first[0].loss != other[0].loss
    late = train(copy.deepcopy(network), groups(64), start=1)
    assert [s.number for s in late] == [2, 3]
    assert late[0].learning_rate == first[1].learning_rate == pytest.approx(5e-4)


def test_training_calls_the_forward_of_the_model() -> None:
    """A wrapper such as DDP runs its hooks in the forward pass of the model."""
    network, calls = model(), 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    network.register_forward_hook(count)
    train(network, groups(64))
    assert calls == sum(map(len, groups(64)))


def test_gradients_of_partly_trained_embedding_are_sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [
        [replace(b, targets={"nsp": b.targets["nsp"]}, token_indices=None) for b in group]
        for group in groups(64)
    ]
    network, sparse = tiny_model(VOCAB, "nsp", length=16), []
    few = {TOKENS: torch.unique(torch.cat([b.ids for group in batches for b in group]))}
    receive = Masters.receive_gradients

    def check_sparsity(masters: Masters) -> None:
        grad = masters.working[TOKENS].grad
        assert grad is not None
        sparse.append(grad.is_sparse)
        receive(masters)

    monkeypatch.setattr(Masters, "receive_gradients", check_sparsity)
    for rows in (few, {}):
        train(copy.deepcopy(network), batches, rows=rows)
    count = sum(map(len, batches))
    assert sparse == [True] * count + [False] * count


def test_parts_of_a_step_have_separate_dropout() -> None:
    """A step of two parts equals the sum of the steps of each part."""
    batches = [replace(batch, part=part) for part in (0, 1) for batch in groups(10**6, 2)[part]]
    assert [batch.part for batch in batches] == [0, 1]

    def losses(given: Sequence[Batch]) -> list[float]:
        seen: list[float] = []

        def recorded_loss(model: Model, batch: Batch, totals: object) -> Loss:
            loss = pretrain(model, batch, counts)
            seen.append(loss.total.item())
            return loss

        masters = Masters(model(dropout=0.5), torch.float32)
        optimizer = torch.optim.SGD(masters.weights.values(), lr=0.0)
        list(
            steps(
                masters, recorded_loss, [given], optimizer, lambda _: 1.0, max_grad_norm=1.0, seed=0
            )
        )
        return seen

    counts = totals(batches)
    part_losses = losses(batches)
    assert part_losses == [losses([batch])[0] for batch in batches]
    assert losses(batches[::-1]) == part_losses[::-1]
    other = losses([replace(batch, part=batch.part + 1) for batch in batches])
    assert other[0] != part_losses[0]


def test_step_records_data_wait() -> None:
    def slow() -> Iterator[list[Batch]]:
        for group in groups(64, 2):
            time.sleep(0.05)
            yield group

    network = model()
    masters = Masters(network, torch.float32)
    optimizer = torch.optim.SGD(masters.weights.values(), lr=0.0)
    collected = steps(
        masters, pretrain, slow(), optimizer, lambda _: 1.0, max_grad_norm=1.0, seed=0
    )
    for step in collected:
        assert step.data_wait >= 0.05
        time.sleep(0.2)  # Work after a step is not counted as waiting.
        assert step.record["data_wait"] == step.data_wait < 0.2
        assert "slowest_rank" not in step.record


def test_clipping_reports_the_unclipped_gradient_norm() -> None:
    network = model()
    masters = Masters(network, torch.float32)
    seen: list[float] = []

    class Spy(torch.optim.SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            norms = [w.grad.norm() for w in masters.weights.values() if w.grad is not None]
            seen.append(float(torch.stack(norms).norm()))

    optimizer = Spy(masters.weights.values(), lr=0.1)
    (step,) = steps(
        masters, pretrain, groups(64, 1), optimizer, lambda _: 1.0, max_grad_norm=1e-3, seed=0
    )
    assert step.gradient_norm > 1e-3
    assert seen == [pytest.approx(1e-3, rel=1e-3)]


def test_infinite_loss_raises_and_keeps_weights() -> None:
    network = model()
    before = copy.deepcopy(network.state_dict())

    def broken(model: Model, batch: Batch, totals: object) -> Loss:
        loss = pretrain(model, batch, totals)  # type: ignore[arg-type]
        return Loss(loss.total * float("inf"), loss.parts)

    masters = Masters(network, torch.float32)
    optimizer = adamw(masters.weights, learning_rate=1e-3, weight_decay=0.01)
    with pytest.raises(TrainingError, match=r"step 1: .*lower learning rate"):
        list(
            steps(masters, broken, groups(64), optimizer, lambda _: 1.0, max_grad_norm=1.0, seed=0)
        )
    assert all(torch.equal(before[k], v) for k, v in network.state_dict().items())
    assert all(w.grad is None for w in masters.weights.values())


def test_evaluation_averages_over_targets_without_training() -> None:
    network = model(dropout=0.3)
    before = copy.deepcopy(network.state_dict())
    whole, accuracy = evaluate(network, pretrain, groups(10**6, 1)[0])
    cut, same = evaluate(network, pretrain, groups(16, 1)[0])
    assert cut == pytest.approx(whole, rel=1e-5)
    assert accuracy == same
    assert set(whole) == {"mlm", "nsp"}
    assert all(torch.equal(before[k], v) for k, v in network.state_dict().items())
