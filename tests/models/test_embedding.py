"""The embedding is the sum of the vectors that its settings select."""

from __future__ import annotations

import math

import pytest
import torch
from tests.factories import tiny_config, tiny_model

from bertkit.batch import Batch, Packed
from bertkit.models.config import (
    LearnedPositions,
    NoPositions,
    NormSettings,
    Positions,
    RelativePositions,
    RotaryPositions,
    SinusoidalPositions,
)
from bertkit.models.embedding import Embedding

IDS = torch.tensor([1, 2, 3, 2, 1])
BATCH = Batch(IDS, torch.tensor([0, 1, 0, 0, 1]), Packed.of([2, 3]))


@pytest.mark.parametrize(
    ("positions", "names"),
    [
        (LearnedPositions(), ["token", "position", "segment"]),
        (SinusoidalPositions(), ["token", "position", "segment"]),
        (RelativePositions(learned=True), ["token", "position", "segment"]),
        (RelativePositions(), ["token", "segment"]),
        (RotaryPositions(), ["token", "segment"]),
        (NoPositions(), ["token", "segment"]),
    ],
)
def test_embedding_parts_depend_on_positions(positions: Positions, names: list[str]) -> None:
    embedding = Embedding(tiny_config(9, positions=positions)).eval()
    parts = embedding.parts(BATCH)
    assert list(parts) == names
    torch.testing.assert_close(embedding.added(BATCH), torch.stack([*parts.values()]).sum(0))
    torch.testing.assert_close(embedding(BATCH), embedding.norm(embedding.added(BATCH)))


def test_sinusoidal_positions_match_formula() -> None:
    waves = Embedding(tiny_config(9, positions=SinusoidalPositions())).parts(BATCH)["position"]
    for row, position in enumerate([0, 1, 0, 1, 2]):
        for i in range(8):
            angle = position / 10_000 ** (2 * i / 16)
            assert waves[row, i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert waves[row, 8 + i].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_embedding_without_norm_equals_sum() -> None:
    norm = NormSettings(place="pre", embedding=False, final=True)
    embedding = Embedding(tiny_config(9, norm=norm)).eval()
    torch.testing.assert_close(embedding(BATCH), embedding.added(BATCH))


@pytest.mark.parametrize("kind", [SinusoidalPositions(), RelativePositions(), NoPositions()])
def test_packed_sequences_match_single_sequences(kind: Positions) -> None:
    attention = {"attention.kv_heads": 1, "attention.width": 4}
    model = tiny_model(9, layers=2, positions=kind, spread=0.3, **attention).encoder.eval()
    alone = model(Batch(IDS[2:], BATCH.types[2:], Packed.of([3])))
    torch.testing.assert_close(model(BATCH)[2:], alone, atol=1e-5, rtol=0)
    shuffled = Batch(IDS[[2, 4, 3]], BATCH.types[[2, 4, 3]], Packed.of([3]))
    same = torch.allclose(model(shuffled)[[0, 2, 1]], alone, atol=1e-5)
    assert same == isinstance(kind, NoPositions)  # the other types encode the order of tokens
