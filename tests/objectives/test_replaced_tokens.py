"""Replaced-token detection: who is asked what, and who learns from it."""

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
    places = (layout.positions % 3 == 1).nonzero().squeeze(1)
    ids = whole.index_fill(0, places, 4)
    targets = {"mlm": whole[places], "rtd": whole}
    return Batch(ids, torch.zeros_like(ids), layout, places, targets)


def test_the_generator_shares_the_embedding_and_nothing_else() -> None:
    model, generator = pair()
    assert model.heads[GENERATOR_HEAD] is generator
    assert generator.config.layers == 2
    own = dict(generator.named_parameters())
    shared = {n for n, p in own.items() if any(p is q for q in model.encoder.parameters())}
    assert shared == {f"encoder.embedding.{n}.weight" for n in ("tokens", "positions", "types")}
    assert generator.heads["mlm"].weight is model.encoder.embedding.tokens.weight


def test_the_loss_is_the_formula() -> None:
    """Against the paper's two sums, written out with the pieces that were drawn."""
    model, generator = pair()
    batch, seen = batch_of([4, 6, 9]), []
    model.encoder.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    loss = replaced_tokens(7.0)(model, batch, totals([batch]))
    (asked,) = seen
    whole = batch.targets["rtd"]
    elsewhere = torch.ones(len(whole), dtype=torch.bool).index_fill(0, batch.token_indices, False)
    assert torch.equal(asked.ids[elsewhere], whole[elsewhere])
    filling = F.cross_entropy(generator(batch)["mlm"], batch.targets["mlm"])
    said = model.heads["rtd"](model.encoder(asked), asked)
    finding = F.binary_cross_entropy_with_logits(said, (asked.ids != whole).float())
    torch.testing.assert_close(loss.total, filling + 7.0 * finding)
    torch.testing.assert_close(loss.parts["rtd"], 7.0 * finding.detach())
    assert loss.correct["rtd"] == ((said > 0) == (asked.ids != whole)).sum()


def test_the_generator_does_not_learn_from_the_model() -> None:
    """Drawing stops the gradient: only filling masks moves what the generator has of its own."""
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


def test_pieces_are_drawn_by_their_chances() -> None:
    """Masks are filled anew each time while learning, and always alike in evaluation."""
    model, generator = pair()
    batch = batch_of([4])  # one masked place
    with torch.no_grad():
        generator.heads["mlm"].bias.zero_()[torch.tensor([7, 9])] = torch.tensor([9.0, 8.0])
        chances = torch.softmax(generator(batch)["mlm"][0], -1)
        found = []
        model.encoder.register_forward_hook(lambda _, inputs, __: found.append(inputs[0].ids[1]))
        objective = replaced_tokens(50.0)
        for _ in range(3):
            objective(model, batch, totals([batch]))
        assert len({int(piece) for piece in found}) == 1
        model.train()
        found.clear()
        torch.manual_seed(0)
        for _ in range(400):
            objective(model, batch, totals([batch]))
    for piece in (7, 9):
        share = sum(int(f) == piece for f in found) / 400
        assert share == pytest.approx(float(chances[piece]), abs=0.08)
