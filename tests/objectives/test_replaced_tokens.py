"""Replaced-token detection: inputs, losses, and gradients of generator and discriminator."""

from __future__ import annotations

import pytest
import torch
from tests.factories import tiny_model
from torch.nn import functional as F

from bertkit.batch import Batch, Packed
from bertkit.models.model import Model
from bertkit.objectives.loss import totals
from bertkit.objectives.replaced_tokens import (
    GENERATOR_HEAD,
    Generator,
    replaced_tokens,
    with_generator,
)

SHAPE = Generator(hidden=4, heads=1, intermediate=8)


def pair() -> tuple[Model, Model]:
    model, generator = with_generator(tiny_model(40, "rtd", embedding=8, layers=2), SHAPE)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return model.eval(), generator


def batch_of(sizes: list[int]) -> Batch:
    layout = Packed.of(sizes)
    whole = torch.randint(5, 40, (layout.total,))
    token_indices = (layout.positions % 3 == 1).nonzero().squeeze(1)
    ids = whole.index_fill(0, token_indices, 4)
    targets = {"mlm": whole[token_indices], "rtd": whole}
    return Batch(ids, torch.zeros_like(ids), layout, token_indices, targets)


def test_generator_shares_only_embedding() -> None:
    model, generator = pair()
    assert model.heads[GENERATOR_HEAD] is generator
    assert generator.config.layers == 2
    generator_weights = dict(generator.named_parameters())
    shared = {
        n for n, p in generator_weights.items() if any(p is q for q in model.encoder.parameters())
    }
    assert shared == {f"encoder.embedding.{n}.weight" for n in ("tokens", "positions", "types")}
    assert generator.heads["mlm"].weight is model.encoder.embedding.tokens.weight


def test_loss_matches_formula() -> None:
    """Compare with the two sums of the paper for the sampled tokens."""
    model, generator = pair()
    batch, seen = batch_of([4, 6, 9]), []
    model.encoder.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    loss = replaced_tokens(7.0)(model, batch, totals([batch]))
    (corrupted,) = seen
    whole = batch.targets["rtd"]
    is_unmasked = torch.ones(len(whole), dtype=torch.bool).index_fill(0, batch.token_indices, False)
    assert torch.equal(corrupted.ids[is_unmasked], whole[is_unmasked])
    mlm_loss = F.cross_entropy(generator(batch)["mlm"], batch.targets["mlm"])
    logits = model.heads["rtd"](model.encoder(corrupted), corrupted)
    rtd_loss = F.binary_cross_entropy_with_logits(logits, (corrupted.ids != whole).float())
    torch.testing.assert_close(loss.total, mlm_loss + 7.0 * rtd_loss)
    torch.testing.assert_close(loss.parts["rtd"], 7.0 * rtd_loss.detach())
    assert loss.correct["rtd"] == ((logits > 0) == (corrupted.ids != whole)).sum()


def test_generator_gets_no_gradient_from_discriminator() -> None:
    """Sampling stops the gradient: only the MLM loss trains the generator's own layers."""
    model, generator = pair()
    batch = batch_of([4, 6, 9])
    found = []
    for weight in (0.0, 50.0):
        model.zero_grad()
        replaced_tokens(weight)(model, batch, totals([batch])).total.backward()
        found.append({n: p.grad.clone() for n, p in generator.encoder.blocks.named_parameters()})
    for name, grad in found[0].items():
        torch.testing.assert_close(grad, found[1][name], atol=0, rtol=0)
        assert grad.abs().sum() > 0, name


def test_tokens_are_sampled_by_probability() -> None:
    """Training samples new tokens for each batch; evaluation is deterministic."""
    model, generator = pair()
    batch = batch_of([4])  # one masked token
    with torch.no_grad():
        generator.heads["mlm"].bias.zero_()[torch.tensor([7, 9])] = torch.tensor([9.0, 8.0])
        probabilities = torch.softmax(generator(batch)["mlm"][0], -1)
        found = []
        model.encoder.register_forward_hook(lambda _, inputs, __: found.append(inputs[0].ids[1]))
        objective = replaced_tokens(50.0)
        for _ in range(3):
            objective(model, batch, totals([batch]))
        assert len({int(token) for token in found}) == 1
        model.train()
        found.clear()
        torch.manual_seed(0)
        for _ in range(400):
            objective(model, batch, totals([batch]))
    for token in (7, 9):
        fraction = sum(int(f) == token for f in found) / 400
        assert fraction == pytest.approx(float(probabilities[token]), abs=0.08)
