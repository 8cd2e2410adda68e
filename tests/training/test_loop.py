"""Steps: how they are cut changes nothing, and chance depends on seed and step alone."""

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
    found = []
    for _ in range(count):
        length = int(rng.integers(6, 16))
        places = np.arange(1, length, 4)
        found.append(
            Sample(
                ids=rng.integers(5, VOCAB, length),
                types=(np.arange(length) > 3).astype(np.int64),
                masked_positions=places,
                labels=rng.integers(5, VOCAB, len(places)),
                pair=int(rng.integers(2)),
            )
        )
    return found


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
        steps(
            masters,
            pretrain,
            batches[start:],
            optimizer,
            lambda step: 1.0 / step,
            max_grad_norm=1.0,
            seed=seed,
            start=start,
        )
    )


def test_a_step_is_the_same_however_it_is_cut() -> None:
    whole, cut = model(), model()
    assert len(groups(16)[0]) > 4 > len(groups(10**6)[0])
    a, b = train(whole, groups(10**6)), train(cut, groups(16))
    for one, other in zip(a, b, strict=True):
        assert other.loss == pytest.approx(one.loss, rel=1e-5)
        assert other.gradient_norm == pytest.approx(one.gradient_norm, rel=1e-4)
        assert other.accuracy == one.accuracy
        assert other.tokens == one.tokens
    for p, q in zip(whole.parameters(), cut.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-4, rtol=1e-3)


def gradient(dtype: torch.dtype, batches: Sequence[Batch]) -> Tensor:
    """What a step hands to the optimizer, in one row."""
    masters, found = Masters(model(), dtype), []

    class Keep(torch.optim.SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            found.extend(w.grad.flatten() for w in masters.weights.values() if w.grad is not None)

    optimizer = Keep(masters.weights.values(), lr=0.0)
    list(
        steps(masters, pretrain, [batches], optimizer, lambda _: 1.0, max_grad_norm=np.inf, seed=0)
    )
    return torch.cat(found)


def test_bf16_gradients_of_many_batches_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = groups(10**6, 1)[0]
    exact = gradient(torch.float32, batches)

    def error(times: int) -> float:
        """Of the same samples so many times over, whose mean loss is the same."""
        return float((gradient(torch.bfloat16, batches * times) - exact).norm() / exact.norm())

    once = error(1)
    assert error(40) < 1.2 * once
    # the control: what adds up in bf16, and goes to the masters at last
    pull, left = Masters.receive_gradients, iter(range(39, -1, -1))
    monkeypatch.setattr(
        Masters, "receive_gradients", lambda masters: None if next(left) else pull(masters)
    )
    assert error(40) > 2 * once


def test_in_fp32_layers_and_sums_are_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes bf16 exact changes no bit of fp32."""
    ours, theirs = model(dropout=0.1), model(dropout=0.1)
    found = train(ours, groups(16))
    monkeypatch.setattr(LayerNorm, "forward", torch.nn.LayerNorm.forward)
    monkeypatch.setattr(EmbeddingTable, "forward", torch.nn.Embedding.forward)
    monkeypatch.setattr(Masters, "receive_gradients", lambda masters: None)
    plain = train(theirs, groups(16))
    assert [s.loss for s in found] == [s.loss for s in plain]
    assert all(
        torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True)
    )
    other = model(dropout=0.1)  # the control: another cut is another order of sums
    train(other, groups(10**6))
    pairs = zip(ours.parameters(), other.parameters(), strict=True)
    assert not all(torch.equal(a, b) for a, b in pairs)


def test_dropout_depends_on_seed_and_step_alone() -> None:
    network = model(dropout=0.3)
    first = train(copy.deepcopy(network), groups(64))
    torch.rand(7)  # whatever else happens to the generator
    again = train(copy.deepcopy(network), groups(64))
    other = train(copy.deepcopy(network), groups(64), seed=1)
    assert [s.loss for s in first] == [s.loss for s in again]
    assert first[0].loss != other[0].loss
    late = train(copy.deepcopy(network), groups(64), start=1)
    assert [s.number for s in late] == [2, 3]
    assert late[0].learning_rate == first[1].learning_rate == pytest.approx(5e-4)


def test_training_goes_through_the_models_forward() -> None:
    """So that a module may be put around a model: DDP's hooks run where its forward does."""
    network, calls = model(), 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    network.register_forward_hook(count)
    train(network, groups(64))
    assert calls == sum(map(len, groups(64)))


def test_of_a_table_that_learns_by_rows_gradients_hold_what_was_read_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches = [
        [replace(b, targets={"nsp": b.targets["nsp"]}, token_indices=None) for b in group]
        for group in groups(64)
    ]
    network, sparse = tiny_model(VOCAB, "nsp", length=16), []
    few = {TOKENS: torch.unique(torch.cat([b.ids for group in batches for b in group]))}
    receive = Masters.receive_gradients

    def looked_at(masters: Masters) -> None:
        grad = masters.working[TOKENS].grad
        assert grad is not None
        sparse.append(grad.is_sparse)
        receive(masters)

    monkeypatch.setattr(Masters, "receive_gradients", looked_at)
    for rows in (few, {}):
        train(copy.deepcopy(network), batches, rows=rows)
    count = sum(map(len, batches))
    assert sparse == [True] * count + [False] * count


def test_a_part_of_a_step_has_dropouts_draws_of_its_own() -> None:
    """However the others are dealt: a step of two parts is that of each alone, added up."""
    batches = [replace(batch, part=part) for part in (0, 1) for batch in groups(10**6, 2)[part]]
    assert [batch.part for batch in batches] == [0, 1]

    def losses(given: Sequence[Batch]) -> list[float]:
        seen: list[float] = []

        def watched(model: Model, batch: Batch, totals: object) -> Loss:
            loss = pretrain(model, batch, counts)
            seen.append(loss.total.item())
            return loss

        masters = Masters(model(dropout=0.5), torch.float32)
        optimizer = torch.optim.SGD(masters.weights.values(), lr=0.0)
        list(steps(masters, watched, [given], optimizer, lambda _: 1.0, max_grad_norm=1.0, seed=0))
        return seen

    counts = totals(batches)
    both = losses(batches)
    assert both == [losses([batch])[0] for batch in batches]
    assert losses(batches[::-1]) == both[::-1]
    other = losses([replace(batch, part=batch.part + 1) for batch in batches])
    assert other[0] != both[0]


def test_a_step_says_how_long_its_batches_took() -> None:
    def slow() -> Iterator[list[Batch]]:
        for group in groups(64, 2):
            time.sleep(0.05)
            yield group

    network = model()
    masters = Masters(network, torch.float32)
    optimizer = torch.optim.SGD(masters.weights.values(), lr=0.0)
    found = steps(masters, pretrain, slow(), optimizer, lambda _: 1.0, max_grad_norm=1.0, seed=0)
    for step in found:
        assert step.data_wait >= 0.05
        time.sleep(0.2)  # what is done with a step is no wait for the next
        assert step.record["data_wait"] == step.data_wait < 0.2
        assert "slowest_rank" not in step.record


def test_clipping_bounds_the_gradient_but_reports_its_norm() -> None:
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


def test_a_loss_that_is_no_number_leaves_the_weights() -> None:
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


def test_evaluation_averages_over_targets_and_learns_nothing() -> None:
    network = model(dropout=0.3)
    before = copy.deepcopy(network.state_dict())
    whole, accuracy = evaluate(network, pretrain, groups(10**6, 1)[0])
    cut, same = evaluate(network, pretrain, groups(16, 1)[0])
    assert cut == pytest.approx(whole, rel=1e-5)
    assert accuracy == same
    assert set(whole) == {"mlm", "nsp"}
    assert all(torch.equal(before[k], v) for k, v in network.state_dict().items())
