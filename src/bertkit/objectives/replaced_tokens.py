"""Replaced-token detection: a generator fills masks, the model tells its pieces from real ones.

Source: Clark et al. 2020 (ELECTRA), section 2.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from msgspec import structs
from torch import Tensor
from torch.nn import functional as F

from bertkit.batch import Batch
from bertkit.config import Count, Settings, Weight
from bertkit.models.heads import MaskedLM
from bertkit.models.model import Model, build
from bertkit.nn.cross_entropy import linear_cross_entropy
from bertkit.objectives.loss import Loss, Objective, Totals

GENERATOR_HEAD = "generator"
"""The name of the head that holds the generator while a model learns."""

POSITIONS_AT_ONCE = 1024
"""Places for which the chances of all pieces are in memory at a time."""


class Generator(Settings, frozen=True):
    """The shape of the generator, and what its adversary weighs."""

    hidden: Count
    heads: Count
    intermediate: Count
    layers: Count | None = None
    """As many as the model has, by default."""
    weight: Weight = 50.0
    """What finding replaced pieces weighs in the loss, beside filling masks with 1."""

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise ValueError(f"heads = {self.heads} do not divide hidden = {self.hidden}")


def with_generator(model: Model, shape: Generator) -> tuple[Model, Model]:
    """The model with a generator as a head besides, which shares its embedding; and the generator.

    Shared are the vectors of pieces, positions and segments, not their norm (section 3.2).
    """
    config = model.transformer.config
    config = structs.replace(
        config,
        embedding=config.width,
        hidden=shape.hidden,
        heads=shape.heads,
        intermediate=shape.intermediate,
        layers=shape.layers or config.layers,
        layer_sharing=None,
    )
    generator = build(config, ("mlm",))
    own, shared = generator.encoder.embedding, model.encoder.embedding
    own.tokens, own.positions, own.types = shared.tokens, shared.positions, shared.types
    head = generator.heads["mlm"]
    assert isinstance(head, MaskedLM)
    head.tied = (shared.tokens,)
    return model.with_heads({GENERATOR_HEAD: generator}), generator


def replaced_tokens(weight: float) -> Objective:
    """The generator's loss at masked places plus `weight` times the model's at all tokens.

    The batch's targets are the pieces at masked places (mlm) and at every place (rtd).
    """

    def objective(model: Model, batch: Batch, totals: Totals) -> Loss:
        generator = model.heads[GENERATOR_HEAD]
        assert isinstance(generator, Model)
        head = generator.heads["mlm"]
        assert isinstance(head, MaskedLM)
        features = head.features(generator.encoder(batch), batch)
        wanted = batch.targets["mlm"]
        filling, filled = linear_cross_entropy(features, head.weight, head.bias, wanted)
        # held-out text gets the same pieces every time
        chance = None if model.training else torch.Generator(features.device).manual_seed(0)
        assert batch.token_indices is not None
        drawn = _drawn(features.detach(), head, chance)
        ids = batch.ids.index_copy(0, batch.token_indices, drawn)
        is_replaced = ids != batch.targets["rtd"]
        seen = replace(batch, ids=ids)
        logits = model.heads["rtd"](model.encoder(seen), seen).float()
        finding = F.binary_cross_entropy_with_logits(logits, is_replaced.float(), reduction="sum")
        parts = {
            "mlm": filling / max(totals["mlm"], 1),
            "rtd": weight * finding / totals["rtd"],
        }
        return Loss(
            parts["mlm"] + parts["rtd"],
            {name: part.detach() for name, part in parts.items()},
            {"mlm": filled, "rtd": ((logits > 0) == is_replaced).sum()},
        )

    return objective


@torch.no_grad()
def _drawn(features: Tensor, head: MaskedLM, chance: torch.Generator | None) -> Tensor:
    """A piece for each masked place, drawn from the generator's chances. Shapes: (M, E) -> (M,)."""
    sampled = []
    for rows in features.split(POSITIONS_AT_ONCE):
        chances = torch.softmax(F.linear(rows, head.weight, head.bias).float(), -1)
        sums = chances.cumsum(-1)
        # one random number a row; torch.multinomial takes one a piece
        draw = torch.rand(len(rows), 1, generator=chance, device=rows.device) * sums[:, -1:]
        sampled.append(
            torch.searchsorted(sums, draw, right=True).squeeze(1).clamp(max=len(head.bias) - 1)
        )
    return torch.cat(sampled) if sampled else features.new_empty(0, dtype=torch.int64)
