"""The language model of an ELMo: its loss by hand, and nothing of the word that is told."""

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
    made = []
    for count in LENGTHS:
        words = random.integers(3, 11, count)
        ids = sentence_ids([f"w{word}" for word in words], 50)
        made.append(Sentence(ids, np.concatenate([[0], words, [1]])))
    return made


def test_the_loss_is_that_of_both_directions() -> None:
    bilm = model().eval()
    (batch,) = sentence_batches(sentences(), 1000)
    loss = both_ways(cast(Model, bilm), batch, totals([batch]))
    wanted = {"forward": 0.0, "backward": 0.0}
    count = sum(LENGTHS) + len(LENGTHS)
    for one in sentences():
        with torch.no_grad():
            states = bilm.elmo(torch.from_numpy(one.ids), [len(one.words)])[0][-1]
            forward, backward = (bilm.softmax(side) for side in states.chunk(2, -1))
        told = torch.from_numpy(one.words)
        wanted["forward"] += F.cross_entropy(forward[:-1], told[1:], reduction="sum").item()
        wanted["backward"] += F.cross_entropy(backward[1:], told[:-1], reduction="sum").item()
    for name, value in wanted.items():
        assert loss.parts[name].item() == pytest.approx(value / count, rel=1e-5)
    assert loss.total.item() == pytest.approx(sum(wanted.values()) / count, rel=1e-5)


def test_a_step_may_be_cut_into_batches() -> None:
    bilm = cast(Model, model().eval())
    whole, parts = sentence_batches(sentences(), 1000), sentence_batches(sentences(), 5)
    assert len(parts) > len(whole) == 1
    counts = totals(parts)
    together = both_ways(bilm, whole[0], totals(whole)).total
    cut = sum(both_ways(bilm, part, counts).total for part in parts)
    torch.testing.assert_close(cut, together)


def test_the_mask_has_no_vector_and_learns_none() -> None:
    bilm = model()
    (batch,) = sentence_batches(sentences(), 1000)
    both_ways(cast(Model, bilm), batch, totals([batch])).total.backward()
    table = bilm.elmo.words.embedding
    assert not table.weight[0].any()
    assert table.weight.grad is not None
    assert not table.weight.grad[0].any()
    assert all(weight.grad is not None for weight in bilm.parameters())
