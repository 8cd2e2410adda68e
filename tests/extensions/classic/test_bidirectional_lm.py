"""Loss and gradients of the bidirectional language model of ELMo."""

from __future__ import annotations

from typing import cast

import msgspec
import numpy as np
import pytest
import torch
from tests.factories import ELMO_OPTIONS
from torch.nn import functional as F

from bertkit.extensions.classic.bidirectional_lm import BiLM, new_bilm
from bertkit.extensions.classic.bidirectional_loss import both_ways
from bertkit.extensions.classic.character_ids import CHARACTERS, sentence_ids
from bertkit.extensions.classic.elmo import ElmoConfig
from bertkit.extensions.classic.whole_words import Sentence, sentence_batches
from bertkit.models.model import Model
from bertkit.objectives.loss import totals

LENGTHS = (3, 1, 4)


def model() -> BiLM:
    torch.manual_seed(0)
    return new_bilm(msgspec.convert(ELMO_OPTIONS, ElmoConfig), CHARACTERS, 11)


def sentences() -> list[Sentence]:
    random = np.random.default_rng(0)
    result = []
    for count in LENGTHS:
        words = random.integers(3, 11, count)
        ids = sentence_ids([f"w{word}" for word in words], 50)
        result.append(Sentence(ids, np.concatenate([[0], words, [1]])))
    return result


def test_loss_matches_both_directions() -> None:
    bilm = model().eval()
    (batch,) = sentence_batches(sentences(), 1000)
    loss = both_ways(cast(Model, bilm), batch, totals([batch]))
    expected = {"forward": 0.0, "backward": 0.0}
    count = sum(LENGTHS) + len(LENGTHS)
    for sentence in sentences():
        with torch.no_grad():
            states = bilm.elmo(torch.from_numpy(sentence.ids), [len(sentence.words)])[0][-1]
            forward, backward = (bilm.softmax(half) for half in states.chunk(2, -1))
        targets = torch.from_numpy(sentence.words)
        expected["forward"] += F.cross_entropy(forward[:-1], targets[1:], reduction="sum").item()
        expected["backward"] += F.cross_entropy(backward[1:], targets[:-1], reduction="sum").item()
    for name, value in expected.items():
        assert loss.parts[name].item() == pytest.approx(value / count, rel=1e-5)
    assert loss.total.item() == pytest.approx(sum(expected.values()) / count, rel=1e-5)


def test_loss_is_independent_of_batch_split() -> None:
    bilm = cast(Model, model().eval())
    single_batch, parts = sentence_batches(sentences(), 1000), sentence_batches(sentences(), 5)
    assert len(parts) > len(single_batch) == 1
    counts = totals(parts)
    expected = both_ways(bilm, single_batch[0], totals(single_batch)).total
    split_loss = sum(both_ways(bilm, part, counts).total for part in parts)
    torch.testing.assert_close(split_loss, expected)


def test_mask_embedding_is_zero_and_gets_no_gradient() -> None:
    bilm = model()
    (batch,) = sentence_batches(sentences(), 1000)
    both_ways(cast(Model, bilm), batch, totals([batch])).total.backward()
    embedding = bilm.elmo.words.embedding
    assert not embedding.weight[0].any()
    assert embedding.weight.grad is not None
    assert not embedding.weight.grad[0].any()
    assert all(weight.grad is not None for weight in bilm.parameters())
