"""The network on what is known of words: each text of a pair alone, and nothing else learns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.factories import tiny_elmo
from torch import nn

from bertkit.batch import Batch, Packed
from bertkit.extensions.classic.feature_classifier import MeanHead, spread_of
from bertkit.extensions.classic.word_network import (
    MixedLayers,
    WordStateEncoder,
    known_by_elmo,
    known_by_vectors,
)
from bertkit.pipelines import pipeline
from bertkit.tasks.classify import Classify, LabelExample
from bertkit.tasks.classify import ClassifyOptions as ClassifyOptions
from bertkit.text.word_vectors import Vectors

ROWS = {
    "train": [
        LabelExample("the class", "a loop, or two", "yes"),
        LabelExample("class", "name", "no"),
    ],
    "dev": [LabelExample("the class", "", "no")],
}


def batch(ids: list[int], types: list[int], lengths: list[int]) -> Batch:
    return Batch(torch.tensor(ids), torch.tensor(types), Packed.of(lengths))


def test_the_texts_of_a_pair_are_read_apart_and_packed_is_alone() -> None:
    words = nn.Embedding(9, 6)
    states = WordStateEncoder(words, 6, width=8, dropout=0.3).eval()
    together = states(batch([1, 2, 3, 4, 5, 6, 7], [0, 1, 1, 0, 0, 0, 1], [3, 4]))
    for part in ([1], [2, 3], [4, 5, 6], [7]):
        alone = states(batch(part, [0] * len(part), [len(part)]))
        torch.testing.assert_close(together[part[0] - 1 : part[-1]], alone)


def test_the_classifier_is_the_formula() -> None:
    x = torch.randn(7, 4)
    pair = MeanHead(4, 3, pairs=True)
    u, v = x[3:6].mean(0), x[6]
    wanted = pair.out(torch.cat([u, v, (u - v).abs(), u * v]))
    found = pair(x, batch([0] * 7, [0, 1, 1, 0, 0, 0, 1], [3, 4]))
    torch.testing.assert_close(found[1], wanted)
    single = MeanHead(4, 3)
    found = single(x, batch([0] * 7, [0] * 7, [3, 4]))
    torch.testing.assert_close(found[0], single.out(x[:3].mean(0)))


@pytest.mark.parametrize("tuned", [False, True])
def test_vectors_learn_only_when_asked(tuned: bool, tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    Vectors(["class", "the"], np.ones((2, 6), np.float32)).save(path)
    known, _ = known_by_vectors(path, ROWS, 9, tune=tuned)
    words = known.module()
    states = WordStateEncoder(words, 6, width=8, dropout=0.0)
    states(batch([1, 2, 0], [0, 0, 0], [3])).sum().backward()
    assert (next(words.parameters()).grad is not None) == tuned


def test_elmo_reads_each_text_alone_and_the_mixture_begins_as_the_mean(tmp_path: Path) -> None:
    folder = tiny_elmo(tmp_path / "elmo")
    known = known_by_elmo(folder, ROWS, length=3)
    assert known.ids == {
        "train": [[[0, 1], [2, 3, 4]], [[5], [6]]], "dev": [[[7, 8], [9]]],
    }  # fmt: skip
    words = known.module()
    assert isinstance(words, MixedLayers)
    layers = pipeline("words", folder)(["the class", ["a", "loop", ","], "class", "name"])
    read = torch.from_numpy(np.concatenate([one.layers for one in layers], 1))
    train = words.states[:, :7].float()
    torch.testing.assert_close(train.mean(1), torch.zeros(3, train.shape[2]), rtol=0, atol=0.01)
    spreads = train.std(1)
    assert (((spreads - 1).abs() < 0.01) | (spreads < 0.01)).all()  # or a number never changes
    assert (spreads > 0.5).any(1).all()
    mean, spread = spread_of(read)
    wanted = ((read - mean) / spread).mean(0)[:6]
    found = words(torch.tensor([0, 1, 2, 3, 4, 5, 7])).detach()
    torch.testing.assert_close(found[:6], wanted, rtol=0.01, atol=0.01)  # kept as fp16
    assert known.width == wanted.shape[1]
    assert (found[0] - found[6]).abs().max() < 1e-6  # the same word in the same text
    other = words(torch.tensor([5]))[0]
    assert (found[1] - other).abs().max() > 1e-3  # the control: in another text
    words(torch.tensor([0, 1])).square().sum().backward()
    assert {name for name, _ in words.named_parameters()} == {"mix.scores", "mix.scale"}
    assert all(weight.grad is not None for weight in words.parameters())


def test_features_hold_the_words_of_both_texts(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    Vectors(["class", "the", "loop"], np.eye(3, dtype=np.float32) * 7).save(path)
    known, coverage = known_by_vectors(path, ROWS, 3, tune=False)
    assert coverage == {"train": 4 / 9, "dev": 1.0}
    task = Classify.from_examples(ROWS["train"], ClassifyOptions())
    one, two = known.features(task, "train", ROWS["train"], labelled=True)
    assert one.encoding.ids.tolist() == [3, 1, 0, 2, 0]  # words in their order, cut at three
    assert one.encoding.types.tolist() == [0, 0, 1, 1, 1]
    assert (one.target, two.target) == (1, 0)
    (alone,) = known.features(task, "dev", ROWS["dev"], labelled=False)
    assert alone.encoding.ids.tolist() == [3, 1, 0]
    assert alone.target is None
    table = known.module()(torch.arange(4)).detach()
    assert torch.equal(table[0], torch.zeros(3))
    torch.testing.assert_close(table[1:].square().mean(), torch.tensor(1.0))
