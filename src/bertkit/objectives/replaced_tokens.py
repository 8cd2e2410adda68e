"""Replaced token detection: a generator fills masks, and the model detects replaced tokens.

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
"""Name of the head that contains the generator during training."""

POSITIONS_PER_CHUNK = 1024
"""Maximum number of masked positions whose token probabilities are in memory at the same time."""


class Generator(Settings, frozen=True):
    """Settings of the generator's size, and of the weight of replaced token detection."""

    hidden: Count
    """Hidden size of the generator."""
    heads: Count
    """Number of attention heads in each layer of the generator."""
    intermediate: Count
    """Inner size of the generator's feed-forward networks."""
    layers: Count | None = None
    """Number of layers of the generator. Default: the number of layers of the model."""
    weight: Weight = 50.0
    """Weight of the replaced token detection loss. The generator's MLM loss has weight 1."""

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise ValueError(f"hidden must be divisible by heads ({self.heads}), got {self.hidden}")


def with_generator(model: Model, shape: Generator) -> tuple[Model, Model]:
    """Add a generator to a model, as an additional head.

    The generator and the model share token, position, and segment embeddings, but not the LayerNorm
    after the embeddings (section 3.2).

    Args:
        model: The discriminator.
        shape: Size of the generator.

    Returns:
        The model with the generator as an additional head, and the generator.
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
    """Return the objective of ELECTRA: the generator's MLM loss plus `weight` times the RTD loss.

    The MLM loss is computed for masked tokens, and the loss of replaced token detection (RTD) for
    all tokens. The targets of a batch are the original tokens at masked positions (`mlm`) and at
    all positions (`rtd`).

    Args:
        weight: Weight of the RTD loss.
    """

    def objective(model: Model, batch: Batch, totals: Totals) -> Loss:
        generator = model.heads[GENERATOR_HEAD]
        assert isinstance(generator, Model)
        head = generator.heads["mlm"]
        assert isinstance(head, MaskedLM)
        features = head.features(generator.encoder(batch), batch)
        targets = batch.targets["mlm"]
        mlm_loss, mlm_correct = linear_cross_entropy(features, head.weight, head.bias, targets)
        # With a fixed seed, the same tokens are sampled in each evaluation.
        rng = None if model.training else torch.Generator(features.device).manual_seed(0)
        assert batch.token_indices is not None
        sampled = _sample(features.detach(), head, rng)
        ids = batch.ids.index_copy(0, batch.token_indices, sampled)
        is_replaced = ids != batch.targets["rtd"]
        filled = replace(batch, ids=ids)
        logits = model.heads["rtd"](model.encoder(filled), filled).float()
        rtd_loss = F.binary_cross_entropy_with_logits(logits, is_replaced.float(), reduction="sum")
        parts = {"mlm": mlm_loss / max(totals["mlm"], 1), "rtd": weight * rtd_loss / totals["rtd"]}
        return Loss(
            parts["mlm"] + parts["rtd"],
            {name: part.detach() for name, part in parts.items()},
            {"mlm": mlm_correct, "rtd": ((logits > 0) == is_replaced).sum()},
        )

    return objective


@torch.no_grad()
def _sample(features: Tensor, head: MaskedLM, rng: torch.Generator | None) -> Tensor:
    """Sample a token for each masked position from the generator. Shapes: (M, E) -> (M,)."""
    sampled = []
    for rows in features.split(POSITIONS_PER_CHUNK):
        probs = torch.softmax(F.linear(rows, head.weight, head.bias).float(), -1)
        sums = probs.cumsum(-1)
        # This requires one random number per row. torch.multinomial would require one for each
        # token of the vocabulary.
        threshold = torch.rand(len(rows), 1, generator=rng, device=rows.device) * sums[:, -1:]
        sampled.append(
            torch.searchsorted(sums, threshold, right=True).squeeze(1).clamp(max=len(head.bias) - 1)
        )
    return torch.cat(sampled) if sampled else features.new_empty(0, dtype=torch.int64)
